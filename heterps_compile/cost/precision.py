"""In which precision a model computes: float32, TF32 products, or automatic mixed precision in bfloat16 or float16.

On NVIDIA GPUs from Ampere on, tensor cores multiply float32 values in TF32 where the framework lets them. PyTorch does
by default for convolutions and recurrence (cuDNN), and for matrix products only on demand
(``torch.set_float32_matmul_precision("high")``). So ``fp32`` is TF32 for the former, and ``tf32`` for both; values stay
float32 (:func:`product_dtype`).

Parameters, gradients and the optimiser's state are float32 whichever it is. Of a float32 value that a node makes,
autocast decides by the node, as PyTorch lists its ops for GPUs::

    matrix products, convolutions, attention, recurrence    narrow, whatever enters
    softmax; layer and group norms; sums, powers, logarithms float32
    batch norms                                             as their first input
    all others                                              narrow where every float that enters is, else float32
    a cast to float32                                       float32

A narrow node reads a narrow copy of its float32 parameters, which is made anew for every micro-batch, and kept as long
as that is under way.

Autocast's list for CPUs is shorter: norms, softmaxes and sums stay narrow. Only what a pool of CPUs alone saves for the
backward follows it (``saved.py``); times and messages of every pool follow the list for GPUs.

Left out: running it (``runtime/pipeline/autocast.py``); ops of a module's own that cast.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from heterps_compile.cluster.devices import TFLOAT32, Cluster
from heterps_compile.ir.graph import OPAQUE, Graph, Node, OpKind

FULL, TF32 = "fp32", "tf32"

PRECISIONS: Mapping[str, str] = MappingProxyType(
    {FULL: "float32", TF32: "float32", "bf16": "bfloat16", "fp16": "float16"}
)
"""The precisions by name, each with the dtype of the values that matrix products and convolutions make."""

SCALED = ("fp16",)
"""Those whose gradients need the loss to be scaled: float16 has none below 6e-8."""

OUT_OF_AUTOCAST = "which the model keeps out of torch.autocast"
"""In the note of a plan of which stages cannot be run in another precision: they would not keep it out."""

_WIDE = PRECISIONS[FULL]
_CUDNN = frozenset({OpKind.CONV, OpKind.RECURRENT})
_NARROW = _CUDNN | {OpKind.GEMM, OpKind.MATMUL, OpKind.ATTENTION}
_LIKE_FIRST = frozenset({"batch_norm", "batchnormalization", "instance_norm", "instancenormalization"})
_STAY_WIDE = frozenset({
    "acos", "asin", "cosh", "cumprod", "cumsum", "dist", "erfinv", "exp", "expm1", "log", "log10", "log1p", "log2",
    "logsumexp", "norm", "pow", "prod", "reciprocal", "rsqrt", "sinh", "softplus", "sum", "tan", "reducelogsum",
    "reducelogsumexp", "reducel1", "reducel2", "reduceprod", "reducesum", "reducesumsquare",
    "binary_cross_entropy_with_logits", "cosine_similarity", "cross_entropy_loss", "kl_div", "l1_loss", "mse_loss",
    "nll_loss", "smooth_l1_loss", "to", "_to_copy", "cast", "castlike", "type_as", "float",
})  # fmt: skip
"""Ops by their plain name; a cast is one where it makes a float32."""
_STAY_WIDE_ON_CPUS = frozenset({
    "avg_pool3d", "binary_cross_entropy", "grid_sampler", "polar", "prod", "quantile", "nanquantile", "stft", "cdist",
    "trace", "view_as_complex", "cholesky", "inverse", "mse_loss", "cosine_embedding_loss", "nll_loss", "ctc_loss",
    "kl_div", "to", "_to_copy", "cast", "castlike", "type_as", "float",
})  # fmt: skip
"""Of autocast's list for CPUs; norms and softmaxes are none."""


def in_precision(graph: Graph, precision: str, *, on_cpu: bool = False) -> Graph:
    """Return a graph whose values have the dtypes that they have under autocast, by the rules of the module; O(nodes).

    Args:
        graph: As the model was read.
        precision: One of :data:`PRECISIONS`.
        on_cpu: Whether to take autocast's list for CPUs, in which less stays wide, instead of that for GPUs.
    """
    if PRECISIONS[precision] == _WIDE:
        return graph
    narrow, values, parted = PRECISIONS[precision], dict(graph.values), dict[str, str]()
    for node in graph.nodes:
        made = [name for name in node.outputs if values[name].dtype in {_WIDE, OPAQUE}]
        entering = [parted.get(name, values[name].dtype) for name in node.inputs if name in values]
        if made and _is_narrow(graph, node, entering, narrow, on_cpu=on_cpu):
            parted.update({name: narrow for name in made if values[name].dtype == OPAQUE})
            values.update({name: replace(values[name], dtype=narrow) for name in made if name not in parted})
    return replace(graph, values=values)


def is_product(node: Node) -> bool:
    """Return whether autocast computes a node narrow, whatever enters."""
    return node.kind in _NARROW


def stays_wide(node: Node, *, on_cpu: bool = False) -> bool:
    """Return whether autocast computes a node in float32, whatever enters."""
    plain = plain_name(node.op)
    if on_cpu:
        return plain in _STAY_WIDE_ON_CPUS
    return plain not in _LIKE_FIRST and (node.kind in {OpKind.NORM, OpKind.SOFTMAX} or plain in _STAY_WIDE)


def _is_narrow(graph: Graph, node: Node, entering: list[str], narrow: str, *, on_cpu: bool) -> bool:
    if is_product(node):
        return True
    if stays_wide(node, on_cpu=on_cpu):
        return False
    if plain_name(node.op) in _LIKE_FIRST or (on_cpu and node.kind is OpKind.NORM):
        return entering[:1] == [narrow]
    has_wide_parameter = any(
        graph.parameters[name].dtype == _WIDE and graph.parameters[name].shape  # a number by itself widens nothing
        for name in node.inputs
        if name in graph.parameters
    )
    return narrow in entering and _WIDE not in entering and not has_wide_parameter


def plain_name(op: str) -> str:
    """Return the name of an op without its domain, library and overload: ``sum`` of ``aten.sum.dim_IntList``."""
    name = op.rpartition("::")[2]
    parts = name.split(".")
    return (parts[1] if parts[0] == "aten" and len(parts) > 1 else parts[-1]).rstrip("_").lower()


def copied_parameters(graph: Graph, node: Node) -> Iterator[str]:
    """Yield the float32 parameters of which a node reads a narrow copy, in a graph of :func:`in_precision`."""
    dtypes = {graph.values[name].dtype for name in node.outputs}
    if node.kind in _NARROW and dtypes & (set(PRECISIONS.values()) - {_WIDE}):
        yield from (n for n in node.inputs if n in graph.parameters and graph.parameters[n].dtype == _WIDE)


def product_dtype(kind: str, dtype: str, precision: str, *, is_measured: bool = False) -> str:
    """Return the dtype at whose peak a layer multiplies.

    Args:
        kind: Of the layer.
        dtype: Of its values.
        precision: One of :data:`PRECISIONS`.
        is_measured: Whether its rate was measured, which has TF32 in it where PyTorch takes it by default.
    """
    is_rounded = kind in _NARROW if precision == TF32 else kind in _CUDNN
    is_known = is_measured and kind in _CUDNN
    return TFLOAT32 if dtype == _WIDE and is_rounded and not is_known else dtype


def rate_notes(cluster: Cluster, precision: str) -> Iterator[str]:
    """Report types that have no rate for a precision, and compute at that of float32, and those that take TF32 for it.

    Left out: types with rates of kinds of work, of which :meth:`.LayerTimes.rate_notes` tells.
    """
    dtype = TFLOAT32 if precision == TF32 else PRECISIONS[precision]
    rounding = [repr(each.name) for each in cluster.device_types if TFLOAT32 in each.peak_flops and not each.rates]
    if precision == FULL and rounding:
        yield (
            f"fp32 on {', '.join(rounding)} is taken as PyTorch runs it: convolutions and recurrence in TF32, matrix "
            f"products in float32; --precision tf32 takes TF32 for these too"
        )
    for device in cluster.device_types:
        if precision == TF32 and dtype not in device.peak_flops and not device.rates:
            yield f"the pool has no {dtype} rate for {device.name!r}: its products are estimated in float32"
        elif dtype not in device.peak_flops and not device.rates:
            yield (
                f"the pool has no {dtype} rate for {device.name!r}: its products are estimated at the float32 rate, "
                f"and gain in {precision} by moving fewer bytes alone"
            )
