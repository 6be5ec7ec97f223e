"""What the replicas of a stage agree on, for the rules of ``sync_rules/``: gradients, parameters, the network.

Gradients are those of a batch: of an embedding the rows that it touches, of all else every element. A storage that
several layers of the stage read counts once; tables on servers do not count.

Left out: parameters that several stages hold, which their replicas sum together.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import prod

from heterps_compile.ir.graph import OpKind
from heterps_compile.ir.layers import LayerGraph
from heterps_compile.sync_rules.assignment import LayerWords
from heterps_compile.sync_rules.network import Network
from heterps_compile.sync_rules.rule import FlatBuffer, SyncGroup, TensorShape

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
    gradients, parameters, shapes = dict[int, int](), dict[int, int](), list[TensorShape]()
    for index, layer in enumerate(layers.layers):
        if layer.name not in wanted:
            continue
        weights = list(_weights(layers, index, costs[index], set() if by_layer else seen))
        shapes += weights
        for counted, found in zip(
            (gradients, parameters), _elements(layers, index, costs[index], weights), strict=True
        ):
            _add(counted, found)
    return SyncGroup(replicas, _buffers(gradients), _buffers(parameters), len(shapes), network, tuple(shapes))


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
        weights = list(_weights(layers, index, cost, set(several)))
        gradients, parameters = _elements(layers, index, cost, weights)
        groups = _buffers(gradients), _buffers(parameters)
        found.append(SyncGroup(2, *groups, tensors=len(weights), shapes=tuple(weights)))
    return found


def _elements(
    layers: LayerGraph, index: int, cost: LayerCost, weights: Iterable[TensorShape]
) -> tuple[dict[int, int], dict[int, int]]:
    """Return the elements of a layer's gradients and of its parameters by their bytes, of those weights."""
    gradients, parameters = dict[int, int](), dict[int, int]()
    touched = cost.touched_bytes if layers.layers[index].kind is OpKind.EMBEDDING else None
    for weight in weights:
        size, elements = weight.element_bytes, prod(weight.shape)
        read = elements if touched is None else min(elements, touched // size)
        touched = None if touched is None else touched - read * size
        _add(parameters, {size: elements})
        _add(gradients, {size: read})
    return gradients, parameters


def _add(counted: dict[int, int], more: dict[int, int]) -> None:
    for size, elements in more.items():
        counted[size] = counted.get(size, 0) + elements


def _weights(layers: LayerGraph, index: int, cost: LayerCost, seen: set[str]) -> Iterator[TensorShape]:
    """Yield the trained weights of a layer whose storage nobody counted yet."""
    for name in layers.layers[index].parameters:
        weight = layers.graph.parameters[name]
        if name in cost.served or weight.kind != "weight" or weight.storage in seen:
            continue
        seen.add(weight.storage)
        elements = prod(weight.shape)
        if elements:
            yield TensorShape(tuple(weight.shape), weight.size_bytes // elements)


def _buffers(elements: dict[int, int]) -> tuple[FlatBuffer, ...]:
    return tuple(FlatBuffer(count, size) for size, count in elements.items() if count)
