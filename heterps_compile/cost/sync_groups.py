"""What the replicas of a stage agree on, for the rules of ``sync_rules/``: gradients, parameters, the network.

Gradients are those of a batch: of an embedding the rows that it touches, of all else every element. A storage that
several layers of the stage read counts once; tables on servers do not count.

Left out: parameters that several stages hold, which their replicas sum together.
"""

from collections.abc import Iterator, Sequence
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
    layers: LayerGraph, costs: Sequence[LayerCost], names: Sequence[str], replicas: int, network: Network
) -> SyncGroup:
    """Return what the replicas of a stage agree on.

    Args:
        layers: Of the model.
        costs: The work of each.
        names: Of the stage's layers.
        replicas: Of the stage.
        network: Between them.
    """
    wanted, seen = set(names), set[str]()
    gradients, parameters, shapes = dict[int, int](), dict[int, int](), list[TensorShape]()
    for index, layer in enumerate(layers.layers):
        if layer.name not in wanted:
            continue
        weights = list(_weights(layers, index, costs[index], seen))
        shapes += weights
        own = [(weight.element_bytes, prod(weight.shape)) for weight in weights]
        for size, elements in own:
            parameters[size] = parameters.get(size, 0) + elements
        touched = costs[index].touched_bytes if layer.kind is OpKind.EMBEDDING else None
        for size, elements in own:
            read = elements if touched is None else min(elements, touched // size)
            touched = None if touched is None else touched - read * size
            gradients[size] = gradients.get(size, 0) + read
    return SyncGroup(replicas, _buffers(gradients), _buffers(parameters), len(seen), network, tuple(shapes))


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
