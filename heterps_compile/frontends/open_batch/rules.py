"""Where the samples of a batch lie in what a node makes, given where they lie in what it reads: a rule for every op.

A rule is a proof of one step: rows of a sample in the result depend on rows of that sample alone. Where a number in the
node stands for the batch, the rule adds the change that takes it out. Where it is not provable, it refuses.

The ops that work element by element are those that :data:`~heterps_compile.frontends.onnx_ops.OPS` says do so.

Left out: ops that draw random numbers, control flow, sequences; ops without a rule here.
"""

from collections.abc import Callable, Iterator, Mapping

from heterps_compile.frontends.onnx_ops import OPS
from heterps_compile.ir.graph import OpKind

from . import compute_rules as compute
from . import move_rules as move
from .node_view import NodeView
from .samples import Samples

Rule = Callable[[NodeView], Samples | tuple[Samples | None, ...] | None]

_MS = "com.microsoft::"


def _each(rule: Rule, *names: str) -> Iterator[tuple[str, Rule]]:
    return ((name, rule) for line in names for name in line.split())


def _elementwise() -> Iterator[str]:
    """Yield the ops that the table of kinds says work element by element."""
    return (name for name, (kind, _) in OPS.items() if kind is OpKind.ELEMENTWISE)


_NO_RULE = frozenset(
    {
        "RotaryEmbedding", f"{_MS}RotaryEmbedding", f"{_MS}GemmaRotaryEmbedding", "SwiGLU", f"{_MS}BiasSplitGelu",
        f"{_MS}QuantizeLinear", f"{_MS}DequantizeLinear",
    }
)  # fmt: skip
"""Element by element as far as costs go, and yet operands are not simply broadcast."""

RULES: Mapping[str, Rule] = {
    name: rule
    for name, rule in (
        *_each(compute.element_by_element, *_elementwise()),
        *_each(compute.first_alone, "Identity Cast BitCast Dropout RegexFullMatch ai.onnx.ml::LabelEncoder"),
        *_each(compute.element_by_element, "StringConcat"),
        *_each(compute.first_of_all, "CastLike"),
        *_each(compute.images, "Conv ConvTranspose ConvInteger QLinearConv", f"{_MS}FusedConv {_MS}QLinearConv"),
        *_each(
            compute.images, "AveragePool LpPool GlobalAveragePool GlobalMaxPool GlobalLpPool LRN InstanceNormalization"
        ),
        *_each(compute.images, "GroupNormalization DepthToSpace SpaceToDepth Col2Im"),
        *_each(compute.pool, "MaxPool"),
        *_each(
            compute.rows,
            "ai.onnx.ml::TreeEnsembleClassifier ai.onnx.ml::TreeEnsembleRegressor ai.onnx.ml::TreeEnsemble",
        ),
        *_each(compute.rows, "ai.onnx.ml::LinearClassifier ai.onnx.ml::LinearRegressor ai.onnx.ml::SVMClassifier"),
        *_each(compute.rows, "ai.onnx.ml::SVMRegressor ai.onnx.ml::Scaler ai.onnx.ml::Normalizer ai.onnx.ml::Imputer"),
        *_each(compute.rows, "ai.onnx.ml::Binarizer"),
        *_each(compute.batch_normalization, "BatchNormalization"),
        *_each(compute.matmul, "MatMul"),
        *_each(compute.integer_matmul, "MatMulInteger"),
        *_each(compute.quantized_matmul, "QLinearMatMul"),
        *_each(compute.gemm, "Gemm"),
        *_each(compute.einsum, "Einsum"),
        *_each(compute.softmax, "Softmax LogSoftmax Hardmax"),
        *_each(compute.layer_normalization, "LayerNormalization RMSNormalization SimplifiedLayerNormalization"),
        *_each(compute.skip_normalization, f"{_MS}SkipLayerNormalization {_MS}SkipSimplifiedLayerNormalization"),
        *_each(compute.lp_normalization, "LpNormalization TopK"),
        *_each(compute.mean_variance, "MeanVarianceNormalization"),
        *_each(compute.reduce, "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare"),
        *_each(compute.reduce, "ReduceLogSum ReduceLogSumExp"),
        *_each(compute.arg, "ArgMax ArgMin"),
        *_each(compute.cumulative, "CumSum CumProd"),
        *_each(move.transpose, "Transpose"),
        *_each(move.reshape, "Reshape"),
        *_each(move.flatten, "Flatten"),
        *_each(move.squeeze, "Squeeze"),
        *_each(move.unsqueeze, "Unsqueeze"),
        *_each(move.concat, "Concat"),
        *_each(move.split, "Split"),
        *_each(move.slice_, "Slice"),
        *_each(move.gather, "Gather"),
        *_each(move.gather_elements, "GatherElements"),
        *_each(move.scatter_elements, "ScatterElements"),
        *_each(move.gather_nd, "GatherND"),
        *_each(move.scatter_nd, "ScatterND"),
        *_each(move.expand, "Expand"),
        *_each(move.tile, "Tile"),
        *_each(move.pad, "Pad"),
        *_each(move.resize, "Resize Upsample"),
        *_each(move.one_hot, "OneHot"),
        *_each(move.last_two, "Trilu"),
        *_each(move.last_two, "Det"),
        *_each(move.shape_of, "Shape Size"),
        *_each(compute.recurrent, "LSTM GRU RNN"),
        *_each(compute.reverse_sequence, "ReverseSequence"),
        *_each(compute.quantize, "QuantizeLinear DequantizeLinear"),
        *_each(compute.dynamic_quantize, "DynamicQuantizeLinear"),
        *_each(compute.attention, "Attention", f"{_MS}MultiHeadAttention"),
    )
    if name not in _NO_RULE
}
"""Op, with its domain where that is not ONNX's own, -> where the samples lie in what it makes."""
