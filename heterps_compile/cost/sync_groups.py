"""What the replicas of a stage agree on, for the rules of ``sync_rules/``: gradients, parameters, the network.

Gradients are those of a batch (``gradients.py``), sparse ones apart. A storage that several layers of the stage read
counts once, and each layer's rows of a sparse gradient; tables on servers do not count.

Left out: parameters that several stages hold, which their replicas sum together.
"""

from collections.abc import Iterable, Sequence
from math import prod

from heterps_compile.ir.layers import LayerGraph
from heterps_compile.sync_rules.assignment import LayerWords
from heterps_compile.sync_rules.network import Network
from heterps_compile.sync_rules.rule import FlatBuffer, SparseRows, SyncGroup, TensorShape

from .gradients import Gradient, gradients_of
from .layer_cost import LayerCost


def layer_words(layers: LayerGraph, costs: Sequence[LayerCost]) -> tuple[LayerWords, ...]:
    """Return what patterns of rules may call the layers."""
    return tuple(
        LayerWords(layer.name, layer.kind.value, cost.label) for layer, cost in zip(layers.layers, costs, strict=True)
    )


def sync_group(
    layers: LayerGraph,
    costs: Sequence[LayerCost],
    names: Sequence[str],
    replicas: int,
    network: Network,
    *,
    by_layer: bool = False,
) -> SyncGroup:
    """Return what the replicas of a stage agree on.

    Args:
        layers: Of the model.
        costs: The work of each.
        names: Of the stage's layers.
        replicas: Of the stage.
        network: Between them.
        by_layer: Count a storage for every layer that reads it, as the times of a problem do.
    """
    wanted, seen = set(names), set[str]()
    found = list[_Counted]()
    for index, layer in enumerate(layers.layers):
        if layer.name in wanted:
            found += _counted(layers, index, costs[index], set() if by_layer else seen)
    return _group(replicas, found, network)


def groups_of_layers(layers: LayerGraph, costs: Sequence[LayerCost], *, tied: bool) -> list[SyncGroup]:
    """Return what two replicas of every layer alone agree on, over no network.

    Args:
        layers: Of the model.
        costs: The work of each.
        tied: Whether storages that several layers read count, for each of them, or for none.
    """
    readers: dict[str, int] = {}
    for layer in layers.layers:
        for storage in {layers.graph.parameters[name].storage for name in layer.parameters}:
            readers[storage] = readers.get(storage, 0) + 1
    several = set[str]() if tied else {storage for storage, count in readers.items() if count > 1}
    found = []
    for index, cost in enumerate(costs):
        alone = [each for each in _counted(layers, index, cost, set(several)) if each[1]]
        found.append(_group(2, alone, Network(0.0)))
    return found


_Counted = tuple[Gradient, bool]
"""A gradient, and whether its storage counts here: rows of a sparse one count also where the storage did before."""


def _counted(layers: LayerGraph, index: int, cost: LayerCost, seen: set[str]) -> list[_Counted]:
    """Return the gradients of a layer; storages that nobody counted yet are counted."""
    parameters, found = layers.graph.parameters, list[_Counted]()
    for gradient in gradients_of(layers, index, cost):
        storage = parameters[gradient.name].storage
        if storage not in seen or gradient.looked_up is not None:
            found.append((gradient, storage not in seen))
        seen.add(storage)
    return found


def _group(replicas: int, counted: Sequence[_Counted], network: Network) -> SyncGroup:
    gradients = _buffers((each.element_bytes, each.elements) for each, _ in counted if not each.is_sparse)
    held = [each for each, is_first in counted if is_first]
    parameters = _buffers((each.element_bytes, prod(each.shape)) for each in held)
    shapes = tuple(TensorShape(each.shape, each.element_bytes) for each in held if not each.is_sparse)
    sparse = tuple(
        SparseRows(each.looked_up or 0, each.row_bytes, each.table_rows) for each, _ in counted if each.is_sparse
    )
    return SyncGroup(replicas, gradients, parameters, len(held), network, shapes, sparse)


def _buffers(counted: Iterable[tuple[int, int]]) -> tuple[FlatBuffer, ...]:
    """Return a buffer for all of one element's bytes, of pairs of these and of elements."""
    elements: dict[int, int] = {}
    for size_bytes, count in counted:
        elements[size_bytes] = elements.get(size_bytes, 0) + count
    return tuple(FlatBuffer(count, size_bytes) for size_bytes, count in elements.items() if count)
