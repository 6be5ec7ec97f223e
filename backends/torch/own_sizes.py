"""Compute the sizes that enter a stage from its own inputs.

::

    model     x -> Shape -> Gather -> Concat -> Reshape(y)
    cut       x -> Shape -> Gather  |  n, y -> Concat -> Reshape(y)
    here                            |  y.size(0) -> Gather -> Concat -> Reshape(y)

A size that crosses as a tensor has no number when ``torch.export`` traces the stage. So the stage repeats the
arithmetic from ``Shape`` on, and ignores that tensor.

A dimension counts as equal to another if it is so at three numbers of every symbol. A size that no dimension of the
stage's other inputs determines is read from the elements of that tensor.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from heterps_compile.frontends.sizes import nodes_of_size, of_shapes_alone
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import StageCut

from .onnx_ops.dtypes import torch_type
from .onnx_ops.shape_arithmetic import LARGEST, host_array
from .open_dims import sizes_at_three


@dataclass(frozen=True, slots=True)
class ShapeOnly:
    """A tensor whose shape alone is read.

    Attributes:
        dims: Numbers, or place and axis of an input with the same dimension.
        dtype: Its type.
    """

    dims: tuple[int | tuple[int, int], ...]
    dtype: torch.dtype

    def __call__(self, values: Sequence[Tensor]) -> Tensor:
        """Return a tensor of one element, expanded."""
        sizes = [d if isinstance(d, int) else values[d[0]].shape[d[1]] for d in self.dims]
        return torch.empty((), dtype=self.dtype).expand(sizes)


@dataclass(frozen=True, slots=True)
class Elements:
    """The elements of a small input, as numbers."""

    place: int

    def __call__(self, values: Sequence[Tensor]) -> Any:
        """Return a host value."""
        given = values[self.place]
        if not torch.compiler.is_exporting():
            return given.numpy(force=True)
        return host_array(given.reshape(-1).tolist()).reshape(tuple(given.shape))


Made = ShapeOnly | Elements


def with_own_sizes(graph: Graph, cut: StageCut) -> tuple[StageCut, dict[str, int | Made]]:
    """Add the arithmetic on shapes whose results enter a stage.

    Returns:
        The stage, and for each of its inputs now: the place among those before, or how to make it.
    """
    made = of_shapes_alone(graph)
    small = (name for name in cut.inputs if name in made and graph.numel(name) <= LARGEST)
    crossing = {name: nodes_of_size(graph, name) for name in small}
    inputs: dict[str, int | Made] = {name: place for place, name in enumerate(cut.inputs)}
    kept = [name for name in inputs if name not in crossing]
    roots = {root for _, read in crossing.values() for root in read}.difference(kept)
    dims = sizes_at_three(graph, (*kept, *roots)) if crossing else {}
    sources: dict[tuple[int, ...], int | tuple[int, int]] = {}
    for name in (*kept, *roots):
        for axis, sizes in enumerate(dims.get(name, ())):
            if len(set(sizes)) == 1:
                sources[sizes] = sizes[0]
            elif name in kept:
                sources.setdefault(sizes, (cut.inputs.index(name), axis))
    sized = {
        root: ShapeOnly(tuple(sources[sizes] for sizes in dims[root]), torch_type(graph.values[root].dtype))
        for root in roots.intersection(dims)
        if sources.keys() >= set(dims[root])
    }
    nodes = set(cut.nodes)
    for name, (arithmetic, read) in crossing.items():
        if read <= {*kept, *sized}:
            nodes |= arithmetic
            del inputs[name]
            inputs |= {root: sized[root] for root in read.intersection(sized)}
        else:
            inputs[name] = Elements(cut.inputs.index(name))
    return replace(cut, nodes=tuple(sorted(nodes)), inputs=tuple(inputs)), inputs
