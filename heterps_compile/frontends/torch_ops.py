"""The table of torch ops: what kind of work each is, and how many floating-point operations it takes.

One name stands for an op however it is called: ``aten.add_.Tensor``, ``operator.iadd``, ``Tensor.add`` and
``torch.add`` are all ``add``. A multiply-add counts two; biases of matrix products and convolutions are left out,
as ``torch.utils.flop_counter`` leaves them out.

Left out: transcendental functions cost what an addition costs, and sparse tensors cost what dense ones do.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from heterps_compile.ir.graph import OpKind

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an op.

    Attributes:
        inputs: Shapes of its tensor operands in order, those of a module after its inputs.
        outputs: Shapes of the tensors it makes.
        parameters: Positions among the inputs of what is a parameter.
        args: Its plain arguments, tensors replaced by None.
        kwargs: Its plain keyword arguments.
    """

    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    parameters: tuple[int, ...] = ()
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


Formula = Callable[[Call], int]


def _none(call: Call) -> int:
    return 0


def _output(call: Call) -> int:
    return sum(map(math.prod, call.outputs))


def _input(call: Call) -> int:
    return sum(map(math.prod, call.inputs[:1]))


def _times(factor: int) -> Formula:
    return lambda call: factor * _output(call)


def _linear(call: Call) -> int:
    return 2 * _output(call) * call.inputs[1][-1]


def _matmul(call: Call) -> int:
    return 2 * _output(call) * call.inputs[0][-1]


def _addmm(call: Call) -> int:
    return 2 * _output(call) * call.inputs[1][-1]


def _bilinear(call: Call) -> int:
    weight = call.inputs[2]
    return 2 * _output(call) * weight[1] * (weight[2] + 1)


def _einsum(call: Call) -> int:
    equation = next((a for a in call.args if isinstance(a, str)), "")
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    if "." in equation or len(terms) != len(call.inputs):
        return 2 * max(_output(call), max(map(math.prod, call.inputs), default=0))
    pairs = zip(terms, call.inputs, strict=True)
    sizes = {letter: n for term, shape in pairs for letter, n in zip(term, shape, strict=True)}
    return max(1, 2 * (len(terms) - 1)) * math.prod(sizes.values())


def _convolution(call: Call) -> int:
    positional = call.args[6] if len(call.args) > 6 else False
    if call.kwargs.get("transposed", positional) is True:
        return _transposed(call)
    return 2 * _output(call) * math.prod(call.inputs[1][1:])


def _conv(call: Call) -> int:
    return 2 * _output(call) * math.prod(call.inputs[1][1:])


def _transposed(call: Call) -> int:
    return 2 * _input(call) * math.prod(call.inputs[1][1:])


def _attention(call: Call) -> int:
    query, key, value = call.inputs[:3]
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _multihead(call: Call) -> int:
    query, key = call.inputs[0], call.inputs[1]
    width = query[-1]
    batch = math.prod(query) // (width * query[0]) if len(query) == 3 else 1
    steps, others = math.prod(query) // (width * batch), math.prod(key) // (key[-1] * batch)
    projections = 2 * batch * (2 * steps + 2 * others) * width * width
    return projections + 4 * batch * steps * others * width


def _recurrent(call: Call) -> int:
    steps = math.prod(call.inputs[0][:-1])
    return 2 * steps * sum(math.prod(shape) for shape in call.inputs[1:] if len(shape) == 2)


def _bag(call: Call) -> int:
    table = call.parameters[0] if call.parameters else 0
    indices = next((shape for i, shape in enumerate(call.inputs) if i != table), ())
    return math.prod(indices) * call.inputs[table][-1]


_ROWS: tuple[tuple[OpKind, Formula, str], ...] = (
    (OpKind.CONV, _conv, "conv1d conv2d conv3d"),
    (OpKind.CONV, _convolution, "convolution _convolution"),
    (OpKind.CONV, _transposed, "conv_transpose1d conv_transpose2d conv_transpose3d"),
    (OpKind.GEMM, _linear, "linear"),
    (OpKind.GEMM, _matmul, "mm bmm matmul mv dot inner tensordot"),
    (OpKind.GEMM, _addmm, "addmm baddbmm addmv"),
    (OpKind.GEMM, _einsum, "einsum"),
    (OpKind.GEMM, _bilinear, "bilinear"),
    (OpKind.ATTENTION, _attention, "scaled_dot_product_attention"),
    (OpKind.ATTENTION, _multihead, "multi_head_attention"),
    (OpKind.RECURRENT, _recurrent, "lstm gru rnn rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_cell"),
    (OpKind.EMBEDDING, _none, "embedding"),
    (OpKind.EMBEDDING, _bag, "embedding_bag _embedding_bag"),
    (
        OpKind.NORM,
        _times(8),
        "layer_norm native_layer_norm group_norm native_group_norm rms_norm instance_norm batch_norm "
        "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional "
        "_native_batch_norm_legit_no_training cudnn_batch_norm local_response_norm",
    ),
    (OpKind.NORM, lambda c: 3 * _input(c), "normalize linalg_vector_norm norm frobenius_norm"),
    (OpKind.SOFTMAX, _times(5), "softmax _softmax log_softmax _log_softmax softmin"),
    (
        OpKind.POOL,
        _input,
        "max_pool1d max_pool2d max_pool3d max_pool2d_with_indices avg_pool1d avg_pool2d avg_pool3d "
        "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d adaptive_max_pool1d "
        "adaptive_max_pool2d lp_pool1d lp_pool2d",
    ),
    (
        OpKind.REDUCE,
        _input,
        "sum mean prod amax amin max min argmax argmin any all var std var_mean std_mean logsumexp cumsum cumprod "
        "count_nonzero median mse_loss l1_loss smooth_l1_loss nll_loss cross_entropy cross_entropy_loss "
        "binary_cross_entropy binary_cross_entropy_with_logits kl_div topk sort argsort cosine_similarity trace",
    ),
    (
        OpKind.ELEMENTWISE,
        _output,
        "add sub rsub mul div truediv true_divide floordiv floor_divide remainder fmod mod pow neg abs sign sgn exp "
        "exp2 expm1 log log2 log10 log1p sqrt rsqrt square reciprocal sin cos tan asin acos atan sinh cosh asinh "
        "acosh atanh tanh sigmoid erf erfc relu relu6 leaky_relu elu selu celu gelu silu mish softplus softsign "
        "hardtanh hardswish hardsigmoid logsigmoid log_sigmoid prelu threshold tanhshrink softshrink hardshrink "
        "clamp clamp_min clamp_max clip minimum maximum fmin fmax floor ceil round trunc frac lerp addcmul addcdiv "
        "eq ne lt le gt ge logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not "
        "bitwise_xor and or xor not invert where masked_fill isnan isinf isfinite nan_to_num dropout "
        "native_dropout feature_dropout alpha_dropout bernoulli glu heaviside sym_max sym_min sym_not sym_float "
        "sym_int sym_ite lshift rshift matrix_exp item float_power atan2 diff fill",
    ),
    (
        OpKind.MOVE,
        _none,
        "cat concat concatenate stack hstack vstack dstack clone copy contiguous to _to_copy type type_as float half "
        "double bfloat16 long int bool gather index index_select index_add index_copy index_put scatter scatter_add "
        "scatter_reduce slice_scatter select_scatter diagonal_scatter masked_select masked_scatter nonzero repeat "
        "repeat_interleave tile pad constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d "
        "replication_pad2d roll flip tril triu take take_along_dim one_hot unique lift_fresh_copy im2col unfold_copy "
        "fold col2im pixel_shuffle pixel_unshuffle channel_shuffle upsample_nearest2d upsample_bilinear2d interpolate "
        "grid_sampler setitem block_diag cpu cuda bucketize searchsorted",
    ),
    (
        OpKind.VIEW,
        _none,
        "view _unsafe_view view_as reshape reshape_as flatten unflatten squeeze unsqueeze expand expand_as "
        "broadcast_to transpose permute t T mT H movedim moveaxis swapaxes swapdims select slice narrow "
        "split split_with_sizes chunk tensor_split unbind getitem alias detach as_strided diagonal unfold identity "
        "ravel view_as_real view_as_complex real imag lift_fresh data positive "
        "broadcast_tensors meshgrid",
    ),
    (
        OpKind.SHAPE,
        _none,
        "size shape sym_size sym_numel sym_stride sym_storage_offset numel nelement dim ndim ndimension stride dtype "
        "device layout is_floating_point is_cuda len getattr finfo iinfo",
    ),
    (
        OpKind.CONSTANT,
        _none,
        "arange zeros ones full empty eye linspace logspace scalar_tensor tensor zeros_like ones_like full_like "
        "empty_like rand randn randint rand_like randn_like randperm new_zeros new_ones new_full new_empty new_tensor "
        "tril_indices triu_indices hann_window as_tensor",
    ),
    (OpKind.CONTROL, _output, "cond while_loop scan map wrap_with_autocast"),
)

OPS: Mapping[str, tuple[OpKind, Formula]] = MappingProxyType(
    {name: (kind, formula) for kind, formula, names in _ROWS for name in names.split()}
)
"""Kind and FLOPs of every op, by name."""

UNKNOWN: tuple[OpKind, Formula] = (OpKind.OTHER, _output)
"""What an op that is in no table is taken for."""

MODULES: Mapping[str, str] = MappingProxyType(
    {
        "ConvTranspose1d": "conv_transpose1d",
        "ConvTranspose2d": "conv_transpose2d",
        "ConvTranspose3d": "conv_transpose3d",
        "MultiheadAttention": "multi_head_attention",
        "EmbeddingBag": "embedding_bag",
        "LayerNorm": "layer_norm",
        "GroupNorm": "group_norm",
        "RMSNorm": "rms_norm",
        "LocalResponseNorm": "local_response_norm",
        "LogSoftmax": "log_softmax",
        "Softmax2d": "softmax",
        "LeakyReLU": "leaky_relu",
        "LogSigmoid": "logsigmoid",
        "LSTMCell": "lstm_cell",
        "GRUCell": "gru_cell",
        "RNNCell": "rnn_cell",
        "PixelShuffle": "pixel_shuffle",
        "PixelUnshuffle": "pixel_unshuffle",
        "CosineSimilarity": "cosine_similarity",
        "CrossEntropyLoss": "cross_entropy",
        "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
        "BCELoss": "binary_cross_entropy",
        "MSELoss": "mse_loss",
        "L1Loss": "l1_loss",
        "NLLLoss": "nll_loss",
        "AlphaDropout": "alpha_dropout",
        "ConstantPad1d": "pad",
        "ConstantPad2d": "pad",
        "ZeroPad2d": "pad",
        "Upsample": "interpolate",
        "Dropout1d": "dropout",
        "Dropout2d": "dropout",
        "Dropout3d": "dropout",
        **{f"{kind}Norm{d}d": f"{kind.lower()}_norm" for kind in ("Batch", "Instance") for d in (1, 2, 3)},
        "SyncBatchNorm": "batch_norm",
        **{
            f"{adaptive}{kind}Pool{d}d": f"{adaptive.lower()}{'_' if adaptive else ''}{kind.lower()}_pool{d}d"
            for adaptive in ("", "Adaptive")
            for kind in ("Avg", "Max")
            for d in (1, 2, 3)
        },
    }
)
"""The op of each class of ``torch.nn`` that is not named as its op in small letters."""


def module_op(class_name: str) -> str:
    """Return the op of a class of ``torch.nn``: ``"linear"`` for ``"Linear"``."""
    return MODULES.get(class_name, class_name.lower())


def plain_name(name: str) -> str:
    """Return an op's name without the marks of in-place and reflected forms: ``add`` for ``add_``, ``__iadd__``."""
    bare = name.strip("_") if name.startswith("__") else name.removesuffix("_")
    if name.startswith("__") and bare not in OPS and bare[1:] in OPS:
        return bare[1:]
    return bare if bare not in ("iadd", "isub", "imul", "itruediv", "ior", "iand") else bare[1:]
