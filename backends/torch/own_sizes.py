"""Compute the sizes that enter a stage from its own inputs.

::

    model     x -> Shape -> Gather -> Concat -> Reshape(y)
    cut       x -> Shape -> Gather  |  n, y -> Concat -> Reshape(y)
    here                            |  y.size(0) -> Gather -> Concat -> Reshape(y)

A size that crosses as a tensor has no number when ``torch.export`` traces the stage. So the stage repeats the
arithmetic from ``Shape`` on, and ignores that tensor.

Not covered: a size that no dimension of the stage's other inputs determines.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from heterps_compile.frontends.sizes import nodes_of_size, of_shapes_alone
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import StageCut

from .onnx_ops.dtypes import torch_type
from .onnx_ops.shape_arithmetic import LARGEST
from .open_dims import Multiple, find_dims


@dataclass(frozen=True, slots=True)
class ShapeOnly:
    """A tensor whose shape alone is read.

    Attributes:
        dims: Numbers, or place and axis of an input and the multiple of its dimension.
        dtype: Its type.
    """

    dims: tuple[int | tuple[int, int, Multiple], ...]
    dtype: torch.dtype

    def __call__(self, values: Sequence[Tensor]) -> Tensor:
        """Return a tensor of one element, expanded."""
        sizes = [d if isinstance(d, int) else d[2].of(values[d[0]].shape[d[1]]) for d in self.dims]
        return torch.empty((), dtype=self.dtype).expand(sizes)


def with_own_sizes(graph: Graph, cut: StageCut) -> tuple[StageCut, tuple[int | ShapeOnly, ...]]:
    """Add the arithmetic on shapes whose results enter a stage.

    Returns:
        The stage, and for each of its inputs now: the place among those before, or how to make it.
    """
    made = of_shapes_alone(graph)
    small = (name for name in cut.inputs if name in made and graph.numel(name) <= LARGEST)
    crossing = {name: nodes_of_size(graph, name) for name in small}
    inputs: dict[str, int | ShapeOnly] = {name: place for place, name in enumerate(cut.inputs)}
    kept = [name for name in inputs if name not in crossing]
    roots = {root for _, read in crossing.values() for root in read}.difference(kept)
    dims = find_dims(graph, (*kept, *roots)) if crossing else {}
    sources = {
        dim: (cut.inputs.index(name), axis)
        for name in kept
        for axis, dim in enumerate(dims.get(name, ()))
        if isinstance(dim, Multiple)
    }

    def source(dim: int | Multiple) -> int | tuple[int, int, Multiple]:
        if isinstance(dim, int):
            return dim
        return (*sources[dim], Multiple()) if dim in sources else (*sources[Multiple(dim.symbol)], dim)

    sized = {
        root: ShapeOnly(tuple(map(source, dims[root])), torch_type(graph.values[root].dtype))
        for root in roots.intersection(dims)
        if all(isinstance(d, int) or d in sources or Multiple(d.symbol) in sources for d in dims[root])
    }
    nodes = set(cut.nodes)
    for name, (arithmetic, read) in crossing.items():
        if read <= {*kept, *sized}:
            nodes |= arithmetic
            del inputs[name]
            inputs |= {root: sized[root] for root in read.intersection(sized)}
    return replace(cut, nodes=tuple(sorted(nodes)), inputs=tuple(inputs)), tuple(inputs.values())
