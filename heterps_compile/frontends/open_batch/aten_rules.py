"""Where the samples of a batch lie in what a call of PyTorch makes: a rule for every op.

They are to the ops of PyTorch what :mod:`.rules` is to those of ONNX.

The ops that work element by element are those that :data:`~heterps_compile.frontends.torch_ops.OPS` says do so.

Left out: ops that draw random numbers, sub-graphs; ops without a rule here.
"""

from collections.abc import Callable, Iterator, Mapping

from heterps_compile.frontends.torch_ops import OPS
from heterps_compile.ir.graph import OpKind

from . import aten_compute_rules as compute
from . import aten_move_rules as move
from .call_view import CallView, Made

Rule = Callable[[CallView], Made]

_NO_RULE = frozenset({"item", "matrix_exp", "feature_dropout", "alpha_dropout", "bernoulli"})
"""Element by element as far as costs go, and yet operands are not simply broadcast."""


def _each(rule: Rule, *names: str) -> Iterator[tuple[str, Rule]]:
    return ((name, rule) for line in names for name in line.split())


def _elementwise() -> Iterator[str]:
    """Yield the ops that the table of kinds says work element by element."""
    return (name for name, (kind, _) in OPS.items() if kind is OpKind.ELEMENTWISE and name not in _NO_RULE)


RULES: Mapping[str, Rule] = dict(
    (
        *_each(compute.element_by_element, *_elementwise()),
        *_each(compute.first_alone, "clone contiguous detach alias _to_copy type float half double bfloat16 long"),
        *_each(compute.first_alone, "int bool lift_fresh lift_fresh_copy positive real imag view_as_real bucketize"),
        *_each(compute.first_alone, "dropout native_dropout feature_dropout alpha_dropout"),
        *_each(compute.element_by_element, "copy"),
        *_each(compute.first_of_all, "to type_as zeros_like ones_like full_like empty_like"),
        *_each(compute.data_type_alone, "new_zeros new_ones new_full new_empty"),
        *_each(compute.convolution, "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"),
        *_each(compute.convolution, "convolution"),
        *_each(compute.images, "group_norm channel_shuffle"),
        *_each(compute.batch_normalization, "batch_norm native_batch_norm cudnn_batch_norm"),
        *_each(compute.batch_normalization, "_native_batch_norm_legit _native_batch_norm_legit_no_training"),
        *_each(compute.instance_normalization, "instance_norm"),
        *_each(compute.behind(1), "max_pool1d avg_pool1d adaptive_avg_pool1d adaptive_max_pool1d"),
        *_each(compute.behind(2), "max_pool2d max_pool2d_with_indices avg_pool2d adaptive_avg_pool2d"),
        *_each(compute.behind(2), "_adaptive_avg_pool2d adaptive_max_pool2d upsample_nearest2d upsample_bilinear2d"),
        *_each(compute.behind(2), "upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa"),
        *_each(compute.channels, "im2col"),
        *_each(compute.behind(1), "upsample_nearest1d upsample_linear1d"),
        *_each(compute.behind(3), "max_pool3d avg_pool3d adaptive_avg_pool3d adaptive_max_pool3d upsample_nearest3d"),
        *_each(compute.behind(3), "pixel_shuffle pixel_unshuffle upsample_trilinear3d"),
        *_each(compute.behind(2), "tril triu"),
        *_each(compute.parametric_relu, "prelu"),
        *_each(compute.layer_normalization, "layer_norm native_layer_norm rms_norm"),
        *_each(compute.linear, "linear"),
        *_each(compute.matmul, "matmul mm bmm mv dot"),
        *_each(compute.added_matmul, "addmm baddbmm addmv"),
        *_each(compute.einsum, "einsum"),
        *_each(compute.attention, "scaled_dot_product_attention"),
        *_each(compute.recurrent, "lstm gru rnn_tanh rnn_relu"),
        *_each(compute.cell, "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell"),
        *_each(compute.embedding, "embedding"),
        *_each(compute.softmax, "softmax _softmax log_softmax _log_softmax"),
        *_each(compute.reduce, "sum mean amax amin prod any all var std var_mean std_mean logsumexp count_nonzero"),
        *_each(compute.reduce, "linalg_vector_norm norm argmax argmin median nansum nanmean"),
        *_each(compute.extreme, "max min"),
        *_each(compute.cumulative, "cumsum cumprod logcumsumexp cummax cummin"),
        *_each(compute.ordered, "sort argsort topk kthvalue"),
        *_each(compute.differences, "diff"),
        *_each(compute.halves, "glu"),
        *_each(compute.of_unknown_size, "nonzero unique masked_select"),
        *_each(move.permute, "permute"),
        *_each(move.transpose, "transpose swapaxes swapdims"),
        *_each(move.matrix_transpose, "t mT"),
        *_each(move.move_axes, "movedim moveaxis"),
        *_each(move.reshape, "view _unsafe_view reshape"),
        *_each(move.as_reshape, "unflatten"),
        *_each(move.flatten, "flatten"),
        *_each(move.squeeze, "squeeze"),
        *_each(move.unsqueeze, "unsqueeze"),
        *_each(move.concat, "cat concat concatenate"),
        *_each(move.stack, "stack"),
        *_each(move.split, "split split_with_sizes chunk tensor_split"),
        *_each(move.unbind, "unbind"),
        *_each(move.slice_, "slice"),
        *_each(move.select, "select"),
        *_each(move.index_select, "index_select"),
        *_each(move.gather, "gather scatter scatter_add scatter_reduce"),
        *_each(move.index, "index"),
        *_each(move.expand, "expand"),
        *_each(move.expand_as, "expand_as"),
        *_each(move.repeat, "repeat tile"),
        *_each(move.repeat_interleave, "repeat_interleave"),
        *_each(move.roll, "roll flip"),
        *_each(move.pad, "pad constant_pad_nd"),
        *_each(move.one_hot, "one_hot"),
        *_each(move.unfold, "unfold"),
    )
)
"""Op, by its plain name, -> where the samples lie in what it makes."""
