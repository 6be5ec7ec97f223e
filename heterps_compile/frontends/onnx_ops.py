"""What every ONNX op is in the cost model's words, and what it costs: one table.

FLOPs are counted from shapes: a multiply-add is two, a comparison, an exponential or a square root is one. An op made
of several such steps counts each (a sigmoid is a negation, an exponential, an addition and a division: 4). Moving data
costs none; what moving costs in time is for the cost model to say from the bytes.

Left out: what a runtime saves by fusing; the text and tree ops of ``ai.onnx.ml`` (an op the table does not name is
``other`` and counts one FLOP for each element it makes).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log2, prod

import onnx_ir as ir

from heterps_compile.errors import GraphError
from heterps_compile.ir.graph import OpKind

from .onnx_names import describe, op_name

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """A node with what a formula needs to know.

    Attributes:
        node: The node.
        inputs: Shapes of its inputs by position; None where one is absent, no tensor, or unknown.
        outputs: Shapes of its outputs, likewise.
        parameters: Positions of the inputs that are parameters.
        floating: Positions of the inputs that are of a floating type.
    """

    node: ir.Node
    inputs: Sequence[Shape | None]
    outputs: Sequence[Shape | None]
    parameters: frozenset[int] = frozenset()
    floating: frozenset[int] = frozenset()

    def shape(self, position: int) -> Shape:
        """Return the shape of an input that the op cannot do without."""
        found = self.inputs[position]
        if found is None:
            raise IndexError(position)
        return found

    def has(self, position: int) -> bool:
        """Tell whether an optional input is given."""
        return position < len(self.inputs) and self.inputs[position] is not None

    @property
    def out(self) -> Shape:
        """Return the shape of the first output that is known."""
        return next((shape for shape in self.outputs if shape is not None), ())

    def int(self, name: str, default: int) -> int:
        """Return an attribute that is a whole number."""
        return int_attribute(self.node, name, default)

    def text(self, name: str, default: str) -> str:
        """Return an attribute that is a text."""
        found = self.node.attributes.get(name)
        return str(found.value) if found is not None and found.type == ir.AttributeType.STRING else default


def int_attribute(node: ir.Node, name: str, default: int) -> int:
    """Return a node's attribute, or the default where it has none of that name and type."""
    found = node.attributes.get(name)
    return int(found.value) if found is not None and found.type == ir.AttributeType.INT else default


Flops = Callable[[Operation], int]
Kind = Callable[[Operation], OpKind]
Rule = tuple[OpKind | Kind, Flops]


def free(op: Operation) -> int:
    """Cost nothing."""
    return 0


def per_output(steps: int) -> Flops:
    """Cost so many steps for each element made."""
    return lambda op: steps * prod(op.out)


def per_input(steps: int) -> Flops:
    """Cost so many steps for each element of the first input."""
    return lambda op: steps * prod(op.shape(0))


def _convolution(op: Operation) -> int:
    return (2 * prod(op.shape(1)[1:]) + op.has(2)) * prod(op.out)


def _integer_convolution(op: Operation) -> int:
    return 2 * prod(op.shape(1)[1:]) * prod(op.out)


def _quantized_convolution(op: Operation) -> int:
    return (2 * prod(op.shape(3)[1:]) + op.has(8)) * prod(op.out)


def _transposed_convolution(op: Operation) -> int:
    return 2 * prod(op.shape(0)) * prod(op.shape(1)[1:]) + (prod(op.out) if op.has(2) else 0)


def _deformable_convolution(op: Operation) -> int:
    sampled = prod(op.shape(0)[:2]) * prod(op.out[2:]) * prod(op.shape(1)[2:])
    return 2 * prod(op.out) * prod(op.shape(1)[1:]) + 8 * sampled  # bilinear: 4 multiply-adds a sample


def _gemm(op: Operation) -> int:
    depth = op.shape(0)[0 if op.int("transA", 0) else 1]
    return (2 * depth + op.has(2)) * prod(op.out)


def _matmul(op: Operation) -> int:
    return 2 * op.shape(0)[-1] * prod(op.out)


def _fused_matmul(op: Operation) -> int:
    return 2 * op.shape(0)[-2 if op.int("transA", 0) else -1] * prod(op.out)


def _blocked_matmul(op: Operation) -> int:
    return 2 * op.int("K", op.shape(0)[-1]) * prod(op.out)


def _einsum(op: Operation) -> int:
    sizes: dict[str, int] = {}
    terms = op.text("equation", "").replace(" ", "").partition("->")[0].split(",")
    for term, shape in zip(terms, op.inputs, strict=True):
        before, dots, after = term.partition("...")
        if shape is None:
            raise IndexError(term)
        letters = [*before, *(f".{i}" for i in range(len(shape) - len(before) - len(after)) if dots), *after]
        for letter, size in zip(letters, shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    return len(terms) * prod(sizes.values())


def _recurrence(gates: int) -> Flops:
    def flops(op: Operation) -> int:
        steps, batch, features = op.shape(0)
        directions, hidden = op.shape(2)[0], min(op.shape(2)[1:])  # some ops keep the weights transposed
        per_step = 2 * gates * hidden * (features + hidden) + 4 * gates * hidden
        return steps * batch * directions * per_step

    return flops


_CACHED_KEYS = {"Attention": 4, "com.microsoft::MultiHeadAttention": 6, "com.microsoft::GroupQueryAttention": 3}


def _attention(op: Operation) -> int:
    """Count queries times keys, a softmax, and weights times values; keys may continue a cache."""
    query = op.shape(0)
    keys = op.shape(1)[-2] if op.has(1) else query[-2]
    cache = _CACHED_KEYS.get(op_name(op.node), len(op.inputs))
    past = op.shape(cache)[-2] if op.has(cache) else 0
    heads = query[1] if len(query) == 4 else op.int("q_num_heads", op.int("num_heads", 1))
    scores = query[0] * heads * query[-2] * (keys + past)
    return 4 * prod(query) * (keys + past) + 5 * scores


def _linear_attention(op: Operation) -> int:
    query = op.shape(0)
    depth = query[-1] if len(query) == 4 else query[-1] // max(op.int("q_num_heads", 1), 1)
    return 4 * prod(query) * depth  # a depth x depth state a head, written and read once a token


def _projected_attention(op: Operation) -> int:
    batch, length, features = op.shape(0)
    width = op.shape(1)[1] // 3
    return 2 * batch * length * features * op.shape(1)[1] + 4 * batch * length * length * width


def _pool(op: Operation) -> int:
    found = op.node.attributes.get("kernel_shape")
    kernel = found.value if found is not None and found.type == ir.AttributeType.INTS else ()
    return prod(op.out) * prod(kernel)


def _neighbours(op: Operation) -> int:
    return (op.int("size", 1) + 4) * prod(op.out)


def _resize(op: Operation) -> int:
    taps = {"linear": 2, "bilinear": 2, "cubic": 4}.get(op.text("mode", "nearest"), 0)
    resized = sum(a != b for a, b in zip(op.shape(0), op.out, strict=True))
    return 2 * taps**resized * prod(op.out) if taps else 0


def _fourier(op: Operation) -> int:
    points = max(op.shape(0)[1:], default=1)
    return int(2.5 * prod(op.out) * log2(max(points, 2)))  # 5 N log2 N for N complex points


def _sort(op: Operation) -> int:
    axis = op.int("axis", -1)
    return int(prod(op.shape(0)) * log2(max(op.shape(0)[axis], 2)))


def _operands(op: Operation) -> int:
    return max(len(op.inputs) - 1, 1) * prod(op.out)


def _matmul_kind(op: Operation) -> OpKind:
    return OpKind.GEMM if op.parameters & {0, 1} else OpKind.MATMUL


def _quantized_matmul_kind(op: Operation) -> OpKind:
    return OpKind.GEMM if op.parameters & {0, 3} else OpKind.MATMUL


def _einsum_kind(op: Operation) -> OpKind:
    if len(op.inputs) > 1:
        return OpKind.GEMM if op.parameters else OpKind.MATMUL
    return OpKind.MOVE if prod(op.shape(0)) == prod(op.out) else OpKind.REDUCE


def _gather_kind(op: Operation) -> OpKind:
    is_packed = op.node.domain != ""  # rows of 4-bit numbers, unpacked as they are read
    is_table = 0 in op.parameters and (0 in op.floating or is_packed) and len(op.shape(0)) >= 2
    return OpKind.EMBEDDING if is_table else OpKind.MOVE


def _dropout_kind(op: Operation) -> OpKind:
    return OpKind.ELEMENTWISE if op.has(2) else OpKind.VIEW


def _dropout(op: Operation) -> int:
    return 2 * prod(op.out) if op.has(2) else 0


def _each(kind: OpKind | Kind, flops: Flops, *names: str) -> Iterator[tuple[str, Rule]]:
    return ((name, (kind, flops)) for line in names for name in line.split())


_MS = "com.microsoft::"

OPS: Mapping[str, Rule] = dict(
    (
        # products with weights, and between activations
        *_each(OpKind.CONV, _convolution, f"Conv {_MS}FusedConv {_MS}NhwcFusedConv {_MS}NhwcConv"),
        *_each(OpKind.CONV, _integer_convolution, "ConvInteger CausalConvWithState"),
        *_each(OpKind.CONV, _quantized_convolution, f"QLinearConv {_MS}QLinearConv"),
        *_each(OpKind.CONV, _transposed_convolution, f"ConvTranspose {_MS}ConvTransposeWithDynamicPads"),
        *_each(OpKind.CONV, _deformable_convolution, "DeformConv"),
        *_each(_matmul_kind, _gemm, f"Gemm {_MS}FusedGemm {_MS}GemmFastGelu {_MS}GemmFloat8"),
        *_each(_matmul_kind, _matmul, f"MatMul MatMulInteger {_MS}MatMulInteger16 {_MS}DynamicQuantizeMatMul"),
        *_each(_matmul_kind, _matmul, f"{_MS}MatMulIntegerToFloat"),
        *_each(_matmul_kind, _fused_matmul, f"{_MS}FusedMatMul {_MS}FusedMatMulActivation {_MS}TransposeMatMul"),
        *_each(_quantized_matmul_kind, _matmul, f"QLinearMatMul {_MS}QGemm"),
        *_each(OpKind.GEMM, _blocked_matmul, f"{_MS}MatMulNBits {_MS}MatMulBnb4 {_MS}MatMulFpQ4"),
        *_each(_einsum_kind, _einsum, "Einsum"),
        *_each(OpKind.RECURRENT, _recurrence(1), "RNN"),
        *_each(OpKind.RECURRENT, _recurrence(3), "GRU"),
        *_each(OpKind.RECURRENT, _recurrence(4), f"LSTM {_MS}DynamicQuantizeLSTM"),
        *_each(OpKind.ATTENTION, _attention, f"Attention {_MS}MultiHeadAttention"),
        *_each(OpKind.ATTENTION, _attention, f"{_MS}GroupQueryAttention {_MS}DecoderMaskedMultiHeadAttention"),
        *_each(OpKind.ATTENTION, _linear_attention, f"LinearAttention {_MS}LinearAttention"),
        *_each(OpKind.ATTENTION, _projected_attention, f"{_MS}Attention {_MS}QAttention"),
        # rows of tables
        *_each(_gather_kind, free, f"Gather {_MS}GatherBlockQuantized"),
        *_each(OpKind.EMBEDDING, per_output(9), f"{_MS}EmbedLayerNormalization"),
        # statistics over some axes
        *_each(OpKind.NORM, per_output(2), "BatchNormalization"),
        *_each(OpKind.NORM, per_output(7), "LayerNormalization InstanceNormalization GroupNormalization"),
        *_each(OpKind.NORM, per_output(7), f"{_MS}GroupNorm MeanVarianceNormalization"),
        *_each(OpKind.NORM, per_output(8), f"{_MS}SkipLayerNormalization {_MS}SkipGroupNorm"),
        *_each(OpKind.NORM, per_output(4), "RMSNormalization SimplifiedLayerNormalization LpNormalization"),
        *_each(OpKind.NORM, per_output(5), f"{_MS}SkipSimplifiedLayerNormalization"),
        *_each(OpKind.NORM, _neighbours, "LRN"),
        *_each(OpKind.SOFTMAX, per_output(5), f"Softmax LogSoftmax {_MS}QLinearSoftmax"),
        *_each(OpKind.SOFTMAX, per_output(6), f"{_MS}BiasSoftmax"),
        *_each(OpKind.SOFTMAX, per_output(1), "Hardmax"),
        *_each(OpKind.POOL, _pool, f"MaxPool AveragePool LpPool {_MS}QLinearAveragePool {_MS}NhwcMaxPool"),
        *_each(
            OpKind.POOL, per_input(1), f"GlobalAveragePool GlobalMaxPool GlobalLpPool {_MS}QLinearGlobalAveragePool"
        ),
        *_each(OpKind.POOL, per_output(8), "RoiAlign MaxRoiPool GridSample"),
        *_each(OpKind.POOL, per_output(8), f"{_MS}GridSample {_MS}CropAndResize"),
        *_each(OpKind.REDUCE, per_input(1), "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ArgMax ArgMin"),
        *_each(OpKind.REDUCE, per_input(2), "ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum ReduceLogSumExp"),
        *_each(OpKind.REDUCE, per_input(1), f"CumSum CumProd {_MS}ReduceSumInteger {_MS}QLinearReduceMean"),
        *_each(OpKind.REDUCE, per_input(6), "SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss"),
        *_each(OpKind.REDUCE, _sort, "TopK Unique"),
        *_each(OpKind.REDUCE, per_input(1), "NonMaxSuppression Det"),
        # element by element
        *_each(OpKind.ELEMENTWISE, per_output(1), "Abs Neg Sign Floor Ceil Round Reciprocal Sqrt Exp Log Relu Not"),
        *_each(OpKind.ELEMENTWISE, per_output(1), "Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Tanh Erf"),
        *_each(OpKind.ELEMENTWISE, per_output(1), "Add Sub Mul Div Mod Pow And Or Xor BitShift BitwiseAnd BitwiseOr"),
        *_each(OpKind.ELEMENTWISE, per_output(1), "BitwiseXor BitwiseNot Equal Greater Less GreaterOrEqual"),
        *_each(OpKind.ELEMENTWISE, per_output(1), "LessOrEqual IsNaN IsInf Where ThresholdedRelu"),
        *_each(OpKind.ELEMENTWISE, per_output(2), "Clip LeakyRelu PRelu Shrink"),
        *_each(OpKind.ELEMENTWISE, per_output(3), "HardSigmoid Softsign Softplus Elu"),
        *_each(OpKind.ELEMENTWISE, per_output(4), "Sigmoid Celu Selu HardSwish"),
        *_each(OpKind.ELEMENTWISE, per_output(5), f"Gelu Swish Mish SwiGLU {_MS}Gelu {_MS}QuickGelu {_MS}ScaledSiLU"),
        *_each(OpKind.ELEMENTWISE, per_output(6), f"{_MS}BiasGelu {_MS}BiasSplitGelu"),
        *_each(OpKind.ELEMENTWISE, per_output(8), f"{_MS}FastGelu"),
        *_each(OpKind.ELEMENTWISE, per_output(3), f"RotaryEmbedding {_MS}RotaryEmbedding {_MS}GemmaRotaryEmbedding"),
        *_each(OpKind.ELEMENTWISE, per_output(3), f"QuantizeLinear {_MS}QuantizeLinear"),
        *_each(OpKind.ELEMENTWISE, per_input(5), "DynamicQuantizeLinear"),
        *_each(OpKind.ELEMENTWISE, per_output(2), f"DequantizeLinear {_MS}DequantizeLinear"),
        *_each(OpKind.ELEMENTWISE, per_output(5), f"{_MS}QLinearAdd {_MS}QLinearMul {_MS}QLinearSigmoid"),
        *_each(OpKind.ELEMENTWISE, per_output(5), f"{_MS}QLinearLeakyRelu {_MS}QLinearWhere"),
        *_each(OpKind.ELEMENTWISE, _operands, "Sum Max Min"),
        *_each(OpKind.ELEMENTWISE, lambda op: _operands(op) + prod(op.out), "Mean"),
        *_each(OpKind.ELEMENTWISE, per_output(1), f"{_MS}BiasAdd {_MS}MulInteger"),
        *_each(_dropout_kind, _dropout, "Dropout"),
        # data from one place to another
        *_each(OpKind.MOVE, free, "Cast CastLike Concat Split Slice Transpose Pad Tile Expand DepthToSpace"),
        *_each(OpKind.MOVE, free, "SpaceToDepth GatherElements GatherND Scatter ScatterElements ScatterND Compress"),
        *_each(OpKind.MOVE, free, "NonZero ReverseSequence Trilu CenterCropPad TensorScatter OneHot MaxUnpool Col2Im"),
        *_each(OpKind.MOVE, free, f"ConcatFromSequence SplitToSequence {_MS}Pad {_MS}ExpandDims {_MS}QLinearConcat"),
        *_each(OpKind.MOVE, free, f"{_MS}Trilu {_MS}UnfoldTensor {_MS}RemovePadding {_MS}RestorePadding"),
        *_each(OpKind.MOVE, _resize, "Resize Upsample"),
        *_each(OpKind.VIEW, free, "Reshape Squeeze Unsqueeze Flatten Identity BitCast Optional OptionalGetElement"),
        *_each(OpKind.VIEW, free, "SequenceConstruct SequenceAt SequenceInsert SequenceErase SequenceEmpty"),
        *_each(OpKind.SHAPE, free, "Shape Size SequenceLength OptionalHasElement"),
        *_each(OpKind.CONSTANT, free, f"Constant ConstantOfShape Range EyeLike {_MS}Range"),
        *_each(OpKind.CONSTANT, per_output(1), "RandomNormal RandomUniform RandomNormalLike RandomUniformLike"),
        *_each(OpKind.CONSTANT, per_output(4), "HannWindow HammingWindow BlackmanWindow MelWeightMatrix"),
        *_each(OpKind.CONSTANT, per_output(1), "Bernoulli Multinomial"),
        # signals
        *_each(OpKind.OTHER, _fourier, "DFT STFT"),
        *_each(OpKind.OTHER, per_output(6), "AffineGrid"),
    )
)
"""Op, with its domain where that is not ONNX's own, -> what it is and what it costs."""

_CONTROL = frozenset({"If", "Loop", "Scan", "SequenceMap"})


def classify(op: Operation) -> tuple[OpKind, int]:
    """Return a node's kind and FLOPs; what its subgraphs cost is the caller's to add.

    Raises:
        GraphError: where its shapes are none that the op takes.
    """
    name = op_name(op.node)
    if name in _CONTROL:
        return OpKind.CONTROL, 0
    rule = OPS.get(name)
    if rule is None:
        return OpKind.OTHER, sum(prod(shape) for shape in op.outputs if shape is not None)
    kind, flops = rule
    try:
        return kind if isinstance(kind, OpKind) else kind(op), max(flops(op), 0)
    except (IndexError, ValueError, TypeError, ZeroDivisionError) as e:
        shapes = ", ".join("none" if shape is None else str(list(shape)) for shape in op.inputs)
        raise GraphError(
            f"{describe(op.node)} has inputs of the shapes {shapes}, which its op does not take; mend the model"
        ) from e
