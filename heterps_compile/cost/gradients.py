"""What training makes for the weights of a layer, for a batch: the one place that says how large a gradient is.

A gradient is as large as its weight. That holds for a table that rows are looked up in, too: PyTorch's embeddings,
ONNX's ``Gather`` and jax make an array of all its rows, most of them zero; memory, replicas and the optimizer have all
of it. There are two exceptions:

- Every look-up in the table has ``sparse=True``: its gradient has the r rows of w bytes that are looked up, each with
  an index of 8 bytes and as often as it occurs. Replicas gather instead of summing in a ring. Each of k has r / k of
  the rows and sends them to k - 1 others, as much as a ring sends of half their bytes (``sync_rules/network.py``)::

      (k - 1) r / k (w + 8) = 2 (k - 1) / k S      S = r (w + 8) / 2

  but no more than a ring of the whole table where it has fewer rows than that, as each replica sends a row once.
- Servers that the run starts step the table (``--sync servers``): the rows of a batch, each once, go to them.

Tables that lie on servers by the plan have no gradient here (``served_tables.py``).

Left out: rows that samples share, which a gradient has once after it is summed; a second copy of the largest gradient,
which a backward makes before it is added to that of the micro-batches before.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from heterps_compile.ir.layers import LayerGraph

from .layer_cost import LayerCost, LookedUp

INDEX_BYTES = 8
"""Of a row of a sparse gradient."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """What a layer makes for one weight.

    Attributes:
        name: Of the parameter.
        shape: Of the parameter.
        element_bytes: Of one element.
        looked_up: Rows of the parameter, each as often as it is looked up, where the gradient is of these alone; None
            where it is as large as the parameter.
        is_pushed: Whether these rows go to servers.
    """

    name: str
    shape: tuple[int, ...]
    element_bytes: int
    looked_up: int | None = None
    is_pushed: bool = False

    @property
    def is_sparse(self) -> bool:
        """Return whether replicas gather it: its rows, with an index each."""
        return self.looked_up is not None and not self.is_pushed

    @property
    def row_elements(self) -> int:
        """Return the elements of a row."""
        return prod(self.shape[1:])

    @property
    def table_rows(self) -> int:
        """Return how many rows the parameter has."""
        return self.shape[0] if self.shape else 1

    @property
    def distinct(self) -> int:
        """Return the most rows of it that are not the same."""
        return self.table_rows if self.looked_up is None else min(self.looked_up, self.table_rows)

    @property
    def elements(self) -> int:
        """Return the elements of a gradient that is not sparse: all of the parameter, or of rows that are pushed."""
        return self.distinct * self.row_elements

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row of a sparse gradient, with its index."""
        return self.row_elements * self.element_bytes + INDEX_BYTES

    @property
    def held_bytes(self) -> int:
        """Return what a replica holds of it."""
        if self.is_sparse:
            return (self.looked_up or 0) * self.row_bytes
        return self.elements * self.element_bytes

    @property
    def ring_bytes(self) -> float:
        """Return S, of which a ring sends as much as replicas do."""
        if self.is_sparse:
            return min((self.looked_up or 0) / 2, self.table_rows) * self.row_bytes
        return float(self.held_bytes)


def gradients_of(layer_graph: LayerGraph, index: int, cost: LayerCost) -> tuple[Gradient, ...]:
    """Return the gradients of a layer's trained weights that it holds, each storage once; O(its parameters)."""
    parameters = layer_graph.graph.parameters
    looked_up: dict[str, list[LookedUp]] = {}
    for each in cost.looked_up:
        looked_up.setdefault(parameters[each.name].storage, []).append(each)
    found: dict[str, Gradient] = {}
    for name in layer_graph.layers[index].parameters:
        weight = parameters[name]
        elements = prod(weight.shape)
        if name in cost.served or weight.kind != "weight" or weight.storage in found or not elements:
            continue
        rows = looked_up.get(weight.storage)
        found[weight.storage] = Gradient(
            name,
            tuple(weight.shape),
            weight.size_bytes // elements,
            None if rows is None else sum(each.rows for each in rows),
            is_pushed=rows is not None and all(each.is_pushed for each in rows),
        )
    return tuple(found.values())


def held_bytes(gradients: Iterable[Gradient]) -> int:
    """Return what a replica holds of gradients."""
    return sum(each.held_bytes for each in gradients)


def ring_bytes(layer_graph: LayerGraph, index: int, cost: LayerCost) -> float:
    """Return the bytes of which a ring sends as much as replicas of a layer do of its gradients."""
    return sum(each.ring_bytes for each in gradients_of(layer_graph, index, cost))
