"""Which layers are interchangeable: two that may change places in every plan without changing what the plan is worth.

Layers i and j are interchangeable where the problem stays as it is when they swap places: the same kind, times and
parallel fractions on every type, types allowed, weights, activations, synchronisation; the same values from the same
layers, and values of the same sizes to the same layers; the same ties. Swaps compose, so that this parts the layers
into classes. The embeddings of one width that feed one concatenation are a class, the query and the key of an attention
are one.

A layer that cannot be cut apart from a neighbour is interchangeable with none; of layers that read one input of the
model, the first is charged for reading it, and stands alone.

Left out: symmetries that swap more than two layers at once, such as whole towers.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence

from .problem import Problem


def interchangeable_layers(problem: Problem) -> tuple[int, ...]:
    """Return for every layer the first layer of its class, itself where it is the first; O(layers + edges), hashed."""
    values = _Values(problem)
    likely: dict[Hashable, list[int]] = defaultdict(list)
    for layer in range(problem.layer_count):
        likely[_sign(problem, values, layer)].append(layer)
    first = list(range(problem.layer_count))
    for layers in likely.values():
        leaders: list[int] = []
        for layer in layers:
            leader = next((other for other in leaders if values.stay_when_swapped(other, layer)), None)
            if leader is None or _is_glued(problem, layer):
                leaders.append(layer)
            else:
                first[layer] = leader
    return tuple(first)


def class_of(alike: Sequence[int], layer: int) -> tuple[int, ...]:
    """Return the layers that are interchangeable with one, itself included, ascending."""
    return tuple(i for i, first in enumerate(alike) if first == alike[layer])


class _Values:
    """What every layer reads, makes and is tied to."""

    def __init__(self, problem: Problem) -> None:
        count = problem.layer_count
        starts, readers = problem.edge_starts.tolist(), problem.edge_readers.tolist()
        # a value: its producer, its bytes, its readers
        self.values: list[tuple[int, float, tuple[int, ...]]] = [
            (producer, size, tuple(readers[begin:end]))
            for producer, size, begin, end in zip(
                problem.edge_producer.tolist(), problem.edge_bytes.tolist(), starts[:-1], starts[1:], strict=True
            )
        ]
        self.touching: list[list[int]] = [[] for _ in range(count)]  # values that a layer makes or reads
        self.ties: list[list[tuple[int, int, float]]] = [[] for _ in range(count)]
        for number, (producer, _, read_by) in enumerate(self.values):
            for layer in {producer, *read_by}:
                self.touching[layer].append(number)
        for first, second, size in zip(
            problem.tied_first.tolist(), problem.tied_second.tolist(), problem.tied_bytes.tolist(), strict=True
        ):
            for layer in (first, second):
                self.ties[layer].append((first, second, size))

    def stay_when_swapped(self, one: int, other: int) -> bool:
        """Whether the values and ties that touch two layers are the same ones with the layers swapped."""
        swap: dict[int, int] = {one: other, other: one}
        numbers = {*self.touching[one], *self.touching[other]}
        before = sorted((p, size, tuple(sorted(r))) for p, size, r in (self.values[n] for n in numbers))
        after = sorted(
            (swap.get(p, p), size, tuple(sorted(swap.get(i, i) for i in r)))
            for p, size, r in (self.values[n] for n in numbers)
        )
        ties = {*self.ties[one], *self.ties[other]}
        tied = sorted((*sorted((a, b)), size) for a, b, size in ties)
        retied = sorted((*sorted((swap.get(a, a), swap.get(b, b))), size) for a, b, size in ties)
        return before == after and tied == retied


def _sign(problem: Problem, values: _Values, layer: int) -> Hashable:
    """Return what interchangeable layers share: all that is the layer's own, and the sizes of what it touches."""
    touched = (values.values[n] for n in values.touching[layer])
    further = (
        problem.shared_s, problem.layer_compute_parallel, problem.layer_data_parallel, problem.served_s,
        problem.rows_s, problem.requests_s,
    )  # fmt: skip
    return (
        problem.layer_kinds[layer],
        problem.compute_s[layer].tobytes(),
        problem.data_s[layer].tobytes(),
        problem.sync_s[layer].tobytes(),
        problem.allowed[layer].tobytes(),
        float(problem.weight_bytes[layer]),
        float(problem.activation_bytes[layer]),
        tuple(b"" if table is None else table[layer].tobytes() for table in further),
        tuple(each.of_layer(layer) for each in problem.rules or ()),
        tuple(sorted((size, producer == layer, len(read_by)) for producer, size, read_by in touched)),
        tuple(sorted(size for _, _, size in values.ties[layer])),
    )


def _is_glued(problem: Problem, layer: int) -> bool:
    return bool(problem.uncuttable[layer] or problem.uncuttable[layer + 1])
