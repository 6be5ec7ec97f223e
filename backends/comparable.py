"""What of a model two runtimes agree on, and how closely: verification compares that alone.

1. What drops at random drops nothing in what is compared, but where PyTorch runs its own model; a note says so.
2. Outputs that depend on any other random draw are left out, but where PyTorch runs its own model: stages draw the
   numbers that the whole model draws.
3. Where results are rounded to few bits, differences are as large as the rounding: runtimes fuse ops, and round at
   other places.

Left out: how far the rounding of one node is carried by those after it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from heterps_compile.escape import printable, shorten
from heterps_compile.ir.graph import ONNX, TORCH, Graph, Node
from heterps_compile.plan.plan_notes import NOT_VERIFIED

from .contract import Capabilities

_STEPS_OF = {
    "float16": 2.0**-10, "bfloat16": 2.0**-7, "float8_e4m3fn": 2.0**-3, "float8_e4m3fnuz": 2.0**-3,
    "float8_e5m2": 2.0**-2, "float8_e5m2fnuz": 2.0**-2, "float4_e2m1fn": 2.0**-1,
}  # fmt: skip
"""How far two neighbouring numbers of a data type are apart, relative to their size."""
_STEPS_OF_QUANTIZED = {"int16": 2.0**-15, "uint16": 2.0**-16, "int8": 2.0**-7, "uint8": 2.0**-8}
_QUANTIZES = ("QuantizeLinear", "DynamicQuantizeLinear", "QLinear", "QGemm", "QAttention", "QEmbed")
_ROUND_INSIDE = frozenset({"DynamicQuantizeLSTM", "DynamicQuantizeMatMul"})
"""Ops that round floats to uint8 by their range, and return floats."""
_STEPS_ALLOWED, _MOST = 8, 0.25
_DRAWS_IN_TORCH = frozenset({
    "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "normal", "bernoulli",
    "multinomial", "uniform", "exponential", "poisson", "rrelu_with_noise",
})  # fmt: skip
_NAME_SHOWN, _NAMES_SHOWN = 80, 3


@dataclass(frozen=True, slots=True)
class Comparable:
    """What is compared.

    Attributes:
        graph: The graph, or a copy of it with the same nodes that drops nothing at random.
        outputs: Names of the outputs whose numbers are compared.
        rounding: The difference that rounding inside of the model accounts for, relative to an output's scale.
        notes: What a user should know of it.
    """

    graph: Graph
    outputs: tuple[str, ...]
    rounding: float
    notes: tuple[str, ...]


def find_comparable(graph: Graph, capabilities: Capabilities) -> Comparable:
    """Say what of a graph can be compared, staged by a backend that can do this, with the model's own runtime."""
    if graph.family in capabilities.draws_as:
        return Comparable(graph, graph.outputs, 0.0, ())
    quiet = _without_dropout(graph)
    depends = _depends_on_chance(quiet)
    left_out = [name for name in graph.outputs if name in depends]
    outputs = tuple(name for name in graph.outputs if name not in depends)
    notes = []
    if quiet is not graph:
        notes.append("verified with nothing dropped: this model drops at random, and no two runs drop the same")
    if _drops_in_torch(graph):
        notes.append(
            "verified with nothing dropped: this model drops at random, and the masks of other runtimes than PyTorch "
            "are not PyTorch's"
        )
    if left_out:
        shown = ", ".join(f"'{printable(shorten(name, _NAME_SHOWN))}'" for name in left_out[:_NAMES_SHOWN])
        more = f" and {len(left_out) - _NAMES_SHOWN} more" if len(left_out) > _NAMES_SHOWN else ""
        notes.append(f"{NOT_VERIFIED}, since their numbers are drawn at random: outputs {shown}{more}")
    step = max((_step(graph, node) for node in graph.nodes), default=0.0)
    return Comparable(quiet, outputs, min(_STEPS_ALLOWED * step, _MOST), tuple(notes))


def _without_dropout(graph: Graph) -> Graph:
    """Return the graph over a copy of its model in which every Dropout is in inference mode, or itself if all are."""
    if graph.family != ONNX:
        return graph
    from heterps_compile.frontends.onnx_bodies import every_node  # noqa: PLC0415 - onnx for its models alone
    from heterps_compile.frontends.onnx_structure import drops  # noqa: PLC0415

    if not any(map(drops, every_node(graph.source.model.graph))):
        return graph
    model = graph.source.model.clone()
    for node in every_node(model.graph):
        if drops(node):
            node.resize_inputs(2)  # the third says whether to train
    return replace(graph, source=replace(graph.source, model=model))


def _drops_in_torch(graph: Graph) -> bool:
    if graph.family != TORCH:
        return False
    from heterps_compile.frontends.torch_draws import drops  # noqa: PLC0415 - torch for its models alone

    nodes = list(graph.source.graph.nodes)
    return any(drops(graph, nodes[node.origin]) for node in graph.nodes)


def _depends_on_chance(graph: Graph) -> set[str]:
    """Return the names of values that depend on random numbers."""
    found: set[str] = set()
    draws = _drawing(graph)
    for index, node in enumerate(graph.nodes):
        if index in draws or not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return found


def _drawing(graph: Graph) -> set[int]:
    return set(_drawing_in_onnx(graph) if graph.family == ONNX else _drawing_in_torch(graph))


def _drawing_in_onnx(graph: Graph) -> Iterator[int]:
    from heterps_compile.frontends.onnx_structure import is_random  # noqa: PLC0415 - onnx for its models alone

    nodes = list(graph.source.model.graph)
    return (i for i, node in enumerate(graph.nodes) if is_random(nodes[node.origin]))


def _drawing_in_torch(graph: Graph) -> Iterator[int]:
    from heterps_compile.frontends.torch_ops import plain_name  # noqa: PLC0415 - torch for its models alone

    # an op is called aten.rand_like.default, torch.rand_like or rand_like
    names = (set(map(plain_name, node.op.split("."))) for node in graph.nodes)
    return (i for i, found in enumerate(names) if not found.isdisjoint(_DRAWS_IN_TORCH))


def _step(graph: Graph, node: Node) -> float:
    """Return how coarsely a node rounds, relative to the size of what it gives."""
    op = node.op.rpartition("::")[2]
    if "fake_quantize" in op:
        return _STEPS_OF_QUANTIZED["int8"]
    if op in _ROUND_INSIDE:
        return _STEPS_OF_QUANTIZED["uint8"]
    dtypes = [graph.values[name].dtype for name in node.outputs if name in graph.values]
    table = _STEPS_OF | _STEPS_OF_QUANTIZED if op.startswith(_QUANTIZES) else _STEPS_OF
    return max((table.get(dtype, 0.0) for dtype in dtypes), default=0.0)
