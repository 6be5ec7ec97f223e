"""Deal interchangeable layers to the stages evenly, so that plans of one worth are one plan.

Where a cut runs among layers that are alike, several places of it are often worth the same: a stage that is not the
slowest has room. A search takes the one it comes upon first; a small change anywhere in the model, and it comes upon
another::

    e e e e e e | e | e e e fc        ->        e e e | e e e | e e e e fc

Among placements of the same value, throughput and price this one is taken, whatever the search came upon:

1. Stages that hold layers of one class alone, side by side, stand in the order of their device types in the pool.
2. Those on one type share their layers so that the stages' times, the slowest first, are the shortest; the larger
   shares first.
3. Every other cut beside interchangeable layers stands where those times are the shortest; of equal places, where the
   earlier stage has more layers.

Layers are dealt in the order of the problem, which is that of the model's structure (``ir/node_order.py``): the place
of a table's result in what reads it, not its name.

The rules are followed one cut, or one row of such stages, at a time, until none changes anything.

Left out: other plateaus of the objective, on which layers that differ move; moves of several of these cuts at once;
rule 2 where there are more than 500 ways to share, in which case rule 3 is for its cuts too.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, islice, pairwise

import numpy as np

from heterps_compile.cost.evaluate import detail, evaluate, to_arrays
from heterps_compile.cost.interchangeable import interchangeable_layers
from heterps_compile.cost.problem import Placement, Problem, SearchResult

_Worth = tuple[float, float, float]
"""Value, throughput and price per hour."""

_Rank = tuple[tuple[float, ...], tuple[int, ...]]
"""Times of the stages, the slowest first; their layers, as numbers below 0: the lower the better."""

_SAME = 1e-12  # relative: the rounding of a sum in another order
_MOST_SWEEPS = 20
_MOST_SHARES = 500  # ways to part a row of equal stages that are tried


def deal_alike(problem: Problem, result: SearchResult) -> SearchResult:
    """Return a result with its interchangeable layers dealt by the rules; its value is the same but for rounding."""
    alike = interchangeable_layers(problem)
    if len(set(alike)) == len(alike):
        return result
    placement = _dealt(problem, alike, result.placement)
    if placement == result.placement:
        return result
    value = float(evaluate(problem, *to_arrays([placement])).values[0])
    return result.with_placement(placement, value)


def _dealt(problem: Problem, alike: Sequence[int], placement: Placement) -> Placement:
    """Apply the rules until nothing changes."""
    worth = _worth(problem, [placement])[0]
    placement = _kept(problem, worth, [placement, _ordered(alike, placement)])[-1]
    ranks: dict[Placement, _Rank] = {}
    for _ in range(_MOST_SWEEPS):
        before = placement
        for begin, end in _rows(alike, placement):
            placement = _best(problem, worth, ranks, [placement, *_shares(placement, begin, end)])
        for cut in range(1, len(placement.starts())):
            placement = _best(problem, worth, ranks, [placement, *_places(alike, _stages(placement), cut)])
        if placement == before:
            break
    return placement


def _stages(placement: Placement) -> list[tuple[int, int]]:
    """Return the device type and the number of layers of every stage."""
    return [(placement.types[i], j - i) for i, j in pairwise((*placement.starts(), len(placement.types)))]


def _classes(alike: Sequence[int], placement: Placement) -> list[int]:
    """Return for every stage the class of all its layers, -1 where they are of several."""
    bounds = pairwise((*placement.starts(), len(placement.types)))
    return [alike[i] if len(set(alike[i:j])) == 1 else -1 for i, j in bounds]


def _ordered(alike: Sequence[int], placement: Placement) -> Placement:
    """Apply rule 1."""
    classes = _classes(alike, placement)
    numbered = list(enumerate(_stages(placement)))
    begin = 0
    while begin < len(numbered):
        end = begin + 1
        while end < len(numbered) and classes[end] == classes[begin] >= 0:
            end += 1
        numbered[begin:end] = sorted(numbered[begin:end], key=lambda item: (item[1][0], -item[1][1]))
        begin = end
    return _of_stages([stage for _, stage in numbered])


def _rows(alike: Sequence[int], placement: Placement) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the rows of stages that rule 2 is about."""
    kinds = list(zip(_classes(alike, placement), (type_ for type_, _ in _stages(placement)), strict=True))
    for kind, row in groupby(range(len(kinds)), key=lambda stage: kinds[stage]):
        numbers = list(row)
        if kind[0] >= 0 and len(numbers) > 1:
            yield numbers[0], numbers[-1] + 1


def _shares(placement: Placement, begin: int, end: int) -> list[Placement]:
    """Return the placements in which a row of stages shares its layers in any other way, the larger shares first."""
    stages = _stages(placement)
    total, type_ = sum(count for _, count in stages[begin:end]), stages[begin][0]
    ways = list(islice(_partitions(total, end - begin, total), _MOST_SHARES + 1))
    if len(ways) > _MOST_SHARES:
        return []
    return [_of_stages([*stages[:begin], *((type_, count) for count in way), *stages[end:]]) for way in ways]


def _partitions(total: int, parts: int, largest: int) -> Iterator[tuple[int, ...]]:
    """Yield the ways to write a number as a sum of so many parts above 0 that do not grow."""
    if parts == 1:
        if total <= largest:
            yield (total,)
        return
    for first in range(min(largest, total - parts + 1), (total - 1) // parts, -1):
        for rest in _partitions(total - first, parts - 1, first):
            yield (first, *rest)


def _kept(problem: Problem, worth: _Worth, tried: list[Placement]) -> list[Placement]:
    return [p for p, its in zip(tried, _worth(problem, tried), strict=True) if _is_worth(its, worth)]


def _best(problem: Problem, worth: _Worth, ranks: dict[Placement, _Rank], tried: list[Placement]) -> Placement:
    """Return the placement of that worth whose stages' times, the slowest first, are the shortest."""
    kept = _kept(problem, worth, tried)
    if len(kept) == 1:
        return kept[0]
    for placement in kept:
        if placement not in ranks:
            found = detail(problem, placement).stages
            times = sorted((float(f"{stage.time_s:.9g}") for stage in found), reverse=True)
            ranks[placement] = tuple(times), tuple(stage.first_layer - stage.end_layer for stage in found)
    return min(kept, key=lambda placement: ranks[placement])


def _places(alike: Sequence[int], stages: Sequence[tuple[int, int]], cut: int) -> Iterator[Placement]:
    """Yield the placements in which one cut is slid along the interchangeable layers beside it."""
    begin = sum(count for _, count in stages[: cut - 1])
    middle = begin + stages[cut - 1][1]
    end = middle + stages[cut][1]
    earliest, latest = middle, middle
    while earliest - 1 > begin and alike[earliest - 1] == alike[middle - 1]:
        earliest -= 1
    while latest + 1 < end and alike[latest] == alike[middle]:
        latest += 1
    for place in range(earliest, latest + 1):
        if place != middle:
            shorter = [(stages[cut - 1][0], place - begin), (stages[cut][0], end - place)]
            yield _of_stages([*stages[: cut - 1], *shorter, *stages[cut + 1 :]])


def _of_stages(stages: Sequence[tuple[int, int]]) -> Placement:
    types = [type_ for type_, count in stages for _ in range(count)]
    numbers = [number for number, (_, count) in enumerate(stages) for _ in range(count)]
    return Placement.of_stages(tuple(types), numbers)


def _worth(problem: Problem, placements: list[Placement]) -> list[_Worth]:
    found = evaluate(problem, *to_arrays(placements))
    return [
        (float(value), float(throughput), float(price))
        for value, throughput, price in zip(found.values, found.throughput, found.price_per_hour, strict=True)
    ]


def _is_worth(one: _Worth, other: _Worth) -> bool:
    """Whether two placements are worth the same but for rounding; what is no plan is worth nothing."""
    return bool(np.isfinite(one[0]) and np.allclose(one, other, rtol=_SAME, atol=0.0))
