"""The most that one accelerator can hold: a knapsack over sets of blocks, whose loads count the nets they cut.

Blocks have *prices* here. With load(S) the time of the blocks of S and of the nets that lie partly in S, the function
is, for every load T at once::

    fullest(T) = most of the price of S, over all sets S of blocks that an accelerator may hold with load(S) <= T

Blocks are taken one after the other, each into S or not. What later blocks need to know of those before is, for every
net with blocks on either side, whether all, none or some of its earlier blocks are in S: a *state*. An operator graph
has few of these in a good order (a dozen for a transformer), and every state keeps the best price for each load::

    block     a        b         c                        nets {a b}, {b c}
    states    a out -> b out  -> end       price[load]
              a in  -> b in   -> end       in and out: the net is cut, its time is added to the load

Loads are whole numbers of steps of T / steps, rounded down so that no set is missed. What a block loses by rounding is
handed on to a neighbour, along a tree of nets, and is lost for good only where the tree's net is cut: a set of few cut
nets is off by a few steps, however many blocks it has.

Takes O(n * states * steps). Memory limits are left out, which makes the function larger and bounds from it lower.

Left out: which prices to take (``load_bounds.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heterps_compile.passes.deadline import Deadline

from .blocks import Blocks

Ints = NDArray[np.int32]

MOST_PRICE = 2**29
"""Of all blocks together: prices are whole numbers of 32 bits."""
_NOTHING = -(2**30)
"""The price where no set has the load; adding prices to it keeps it below 0."""
_MOST_STATES = 1_000
_MOST_CHOICES = 150_000_000
"""Choices remembered, one byte each."""
_MOST_STEPS, _FEWEST_STEPS = 1_500, 200


@dataclass(frozen=True, slots=True)
class Source:
    """Where a state comes from.

    Attributes:
        state: The state before.
        is_in: Whether the block is in S.
        cut: Nets that are found to lie partly in S now.
    """

    state: int
    is_in: bool
    cut: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """The states of blocks taken in an order.

    Attributes:
        order: The blocks.
        sources: For every block in turn, and every state after it, the states it comes from.
    """

    order: tuple[int, ...]
    sources: tuple[tuple[tuple[Source, ...], ...], ...]

    @property
    def count(self) -> int:
        """How many states there are, those after each block added up."""
        return sum(map(len, self.sources))


class Fullest:
    """The function for blocks and loads up to some T; prices come with each call.

    Attributes:
        steps: Loads are 0 .. steps.
        step_ms: What a step is.
    """

    def __init__(self, blocks: Blocks, states: States, most_ms: float, deadline: Deadline) -> None:
        self.steps = min(_MOST_STEPS, _MOST_CHOICES // max(states.count, 1))
        self.step_ms = most_ms / self.steps
        self._states, self._deadline = states, deadline
        self._block_steps, self._net_steps = _in_steps(blocks, states.order, self.step_ms)
        self._choices: list[NDArray[np.uint8]] = []
        self._prices = np.zeros(0, np.int32)

    def _growth(self, block: int, source: Source) -> int:
        """Return by how many steps the load grows where a state comes from a source."""
        return sum(self._net_steps[net] for net in source.cut) + (self._block_steps[block] if source.is_in else 0)

    def __call__(self, prices: Ints) -> Ints:
        """Return [steps + 1], the most of the price of a set with at most each load; prices are 0 or more.

        Raises:
            TimeUpError: where the deadline comes first.
        """
        self._choices.clear()
        width = self.steps + 1
        before = np.full((1, width), _NOTHING, np.int32)
        before[0, 0] = 0
        for block, sources_of in zip(self._states.order, self._states.sources, strict=True):
            self._deadline.check()
            after = np.full((len(sources_of), width), _NOTHING, np.int32)
            choice = np.zeros((len(sources_of), width), np.uint8)
            for state, sources in enumerate(sources_of):
                for number, source in enumerate(sources):
                    growth = self._growth(block, source)
                    if growth >= width:
                        continue
                    offered = before[source.state, : width - growth]
                    if source.is_in:
                        offered = offered + prices[block]
                    held = after[state, growth:]
                    choice[state, growth:][offered > held] = number
                    np.maximum(held, offered, out=held)
            self._choices.append(choice)
            before = after
        self._prices = before[0]
        return np.maximum.accumulate(before[0])

    def best_set(self, load: int) -> list[int]:
        """Return the blocks of the best set with at most a load, in steps, for the prices of the last call."""
        load = int(self._prices[: load + 1].argmax())
        state, held = 0, []
        for block, sources_of, choice in zip(
            reversed(self._states.order), reversed(self._states.sources), reversed(self._choices), strict=True
        ):
            source = sources_of[state][choice[state, load]]
            if source.is_in:
                held.append(block)
            state, load = source.state, load - self._growth(block, source)
        return held


def narrow_order(blocks: Blocks, deadline: Deadline) -> list[int]:
    """Return an order of the blocks in which few nets have blocks on either side.

    Always next is the block, in a net with those before, that opens fewest nets net of those it ends; among equals the
    one whose neighbour was taken last, so that one branch is followed to its end.

    Raises:
        TimeUpError: where the deadline comes first.
    """
    nets_of = _nets_of(blocks)
    left = [len(net) for net in blocks.nets]
    touched = [0] * blocks.count
    is_done = [False] * blocks.count
    order: list[int] = []
    near: set[int] = set()

    def opened(block: int) -> int:
        return sum((left[net] == len(blocks.nets[net])) - (left[net] == 1) for net in nets_of[block])

    for first in range(blocks.count):
        if is_done[first]:
            continue
        near.add(first)
        while near:
            deadline.check()
            block = min(near, key=lambda b: (opened(b), -touched[b], b))
            near.discard(block)
            is_done[block] = True
            order.append(block)
            for net in nets_of[block]:
                left[net] -= 1
                for other in blocks.nets[net]:
                    if not is_done[other]:
                        near.add(other)
                        touched[other] = len(order)
    return order


def _nets_of(blocks: Blocks) -> list[list[int]]:
    nets_of: list[list[int]] = [[] for _ in range(blocks.count)]
    for number, net in enumerate(blocks.nets):
        for block in net:
            nets_of[block].append(number)
    return nets_of


def _in_steps(blocks: Blocks, order: Sequence[int], step_ms: float) -> tuple[list[int], list[int]]:
    """Return the times of blocks and nets in whole steps, such that no set has more steps than its load.

    Along a tree, from its leaves on, every block hands what it has beyond whole steps on to its parent. With both in a
    set nothing is lost, with the child alone less is counted. With the parent alone too much would be counted, but then
    a net that holds both is cut: it is made shorter by as much. Where no net has so much, nothing is handed on.
    """
    around: list[list[tuple[int, int]]] = [[] for _ in range(blocks.count)]
    root = list(range(blocks.count))

    def find(block: int) -> int:
        while root[block] != block:
            root[block] = root[root[block]]
            block = root[block]
        return block

    for net in sorted(range(len(blocks.nets)), key=lambda number: -blocks.net_ms[number]):
        first, *others = blocks.nets[net]
        for other in others:
            one, two = find(first), find(other)
            if one != two:
                root[one] = two
                around[first].append((other, net))
                around[other].append((first, net))
    net_ms = [float(time_ms) for time_ms in blocks.net_ms]
    rest_ms = [float(time_ms) for time_ms in blocks.accelerator_ms]
    block_steps = [0] * blocks.count
    is_seen = [False] * blocks.count
    for start in order:
        if is_seen[start]:
            continue
        is_seen[start] = True
        waiting, tree = [(start, -1, -1)], []
        while waiting:
            block, parent, by = waiting.pop()
            tree.append((block, parent, by))
            for other, net in around[block]:
                if not is_seen[other]:
                    is_seen[other] = True
                    waiting.append((other, block, net))
        for block, parent, by in reversed(tree):
            steps, over_ms = divmod(rest_ms[block], step_ms)  # exact but for the last bit
            block_steps[block] = int(steps)
            if parent >= 0 and over_ms <= net_ms[by]:
                net_ms[by] -= over_ms
                rest_ms[parent] += over_ms
    return block_steps, [int(time_ms // step_ms) for time_ms in net_ms]


def states_of(blocks: Blocks, deadline: Deadline) -> States | None:
    """Return the states of blocks in a narrow order, None where there are too many.

    Raises:
        TimeUpError: where the deadline comes first.
    """
    out, inside, both = 0, 1, 2
    order = narrow_order(blocks, deadline)
    nets_of = _nets_of(blocks)
    left = [len(net) for net in blocks.nets]
    states: dict[tuple[tuple[int, int], ...], int] = {(): 0}
    table: list[tuple[tuple[Source, ...], ...]] = []
    count = 0
    for block in order:
        deadline.check()
        after: dict[tuple[tuple[int, int], ...], int] = {}
        sources: list[list[Source]] = []
        for state, number in states.items():
            for is_in in (False, True) if blocks.on_accelerator[block] else (False,):
                here, marks, cut = inside if is_in else out, dict(state), []
                for net in nets_of[block]:
                    mark = marks.pop(net, here)
                    if mark not in (here, both):
                        mark = both
                        cut.append(net)
                    if left[net] > 1:
                        marks[net] = mark
                at = after.setdefault(tuple(sorted(marks.items())), len(after))
                if at == len(sources):
                    sources.append([])
                sources[at].append(Source(number, is_in, tuple(cut)))
        for net in nets_of[block]:
            left[net] -= 1
        count += len(after)
        if len(after) > _MOST_STATES or count * _FEWEST_STEPS > _MOST_CHOICES:
            return None
        table.append(tuple(map(tuple, sources)))
        states = after
    return States(tuple(order), tuple(table))
