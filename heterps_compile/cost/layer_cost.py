"""The work of every layer, FLOPs and bytes from shapes alone, and whether data or computation dominates it.

What fuses is free: an elementwise or view result that stays inside its layer is assumed to stay in registers
or cache, as in ONNX Runtime and compiled PyTorch; every other intermediate is written once and read once.
An embedding reads the rows it gathers, not its table.

Left out: caches, padding to tile sizes, the order in which a kernel walks its operands; the device a layer ends on
(``problem.py`` has its time on every type).
"""

from dataclasses import dataclass

from heterps_compile.ir.graph import Graph, OpKind
from heterps_compile.ir.layers import Layer, LayerGraph

from .precision import copied_parameters

DATA_INTENSIVE = "data"
COMPUTE_INTENSIVE = "compute"


@dataclass(frozen=True, slots=True)
class LayerCost:
    """The work of one layer for one batch.

    Attributes:
        flops: Floating-point operations, forward.
        parameter_bytes: Weights, buffers and constants it reads.
        touched_bytes: The part of its parameters that one batch reads: all, or the rows an embedding gathers.
        input_bytes: Activations that enter it.
        output_bytes: Activations that leave it.
        moved_bytes: All traffic with memory, forward: inputs, outputs, touched parameters, large intermediates.
        operations: Kernels it starts; views start none.
        label: ``"data"`` or ``"compute"``; "" until annotated.
        reason: The numbers behind the label.
        inside_bytes: The largest array that is made inside and does not leave.
        copied_bytes: Narrow copies of its float32 parameters, where it computes in less (``precision.py``).
    """

    flops: int
    parameter_bytes: int
    touched_bytes: int
    input_bytes: int
    output_bytes: int
    moved_bytes: int
    operations: int
    label: str = ""
    reason: str = ""
    inside_bytes: int = 0
    copied_bytes: int = 0

    @property
    def flop_per_byte(self) -> float:
        """Return the arithmetic intensity."""
        return self.flops / self.moved_bytes if self.moved_bytes else 0.0


_STAYS_IN_CACHE = frozenset({OpKind.ELEMENTWISE, OpKind.VIEW, OpKind.SHAPE, OpKind.CONSTANT})
_STARTS_NO_KERNEL = frozenset({OpKind.VIEW, OpKind.SHAPE})


def layer_costs(layer_graph: LayerGraph) -> tuple[LayerCost, ...]:
    """Return the work of every layer for one batch, forward; O(nodes + edges)."""
    entering = [0] * len(layer_graph.layers)
    leaving = [0] * len(layer_graph.layers)
    for edge in layer_graph.edges:
        if edge.producer >= 0:
            leaving[edge.producer] += edge.size_bytes
        for reader in edge.consumers:
            entering[reader] += edge.size_bytes
    crossing = {edge.value for edge in layer_graph.edges}
    return tuple(
        _layer_cost(layer_graph.graph, layer, entering[i], leaving[i], crossing)
        for i, layer in enumerate(layer_graph.layers)
    )


def _layer_cost(graph: Graph, layer: Layer, input_bytes: int, output_bytes: int, crossing: set[str]) -> LayerCost:
    flops = operations = intermediate_bytes = inside_bytes = 0
    gathered: dict[str, int] = {}
    copied: dict[str, int] = {}
    for i in layer.nodes:
        node = graph.nodes[i]
        flops += node.flops
        operations += node.kind not in _STARTS_NO_KERNEL
        if node.kind is OpKind.EMBEDDING:
            rows_bytes = sum(graph.size_bytes(out) for out in node.outputs)
            for name in node.inputs:
                if name in graph.parameters:
                    gathered[name] = gathered.get(name, 0) + rows_bytes
        copied.update({name: graph.parameters[name].size_bytes // 2 for name in copied_parameters(graph, node)})
        kept = [graph.size_bytes(out) for out in node.outputs if out not in crossing]
        if node.kind not in _STAYS_IN_CACHE:
            intermediate_bytes += sum(kept)
        inside_bytes = max(inside_bytes, node.scratch_bytes, *(kept if node.kind is not OpKind.VIEW else ()))
    sizes = {name: graph.parameters[name].size_bytes for name in layer.parameters}
    touched_bytes = sum(min(size, gathered.get(name, size)) for name, size in sizes.items())
    return LayerCost(
        flops=flops,
        parameter_bytes=sum(sizes.values()),
        touched_bytes=touched_bytes,
        input_bytes=input_bytes,
        output_bytes=output_bytes,
        # a copy is written and read beside the reading of what it is of
        moved_bytes=input_bytes + output_bytes + touched_bytes + 2 * intermediate_bytes + 2 * sum(copied.values()),
        operations=operations,
        inside_bytes=inside_bytes,
        copied_bytes=sum(copied.values()),
    )
