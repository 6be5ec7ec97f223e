"""The exact search where pairs of types have links of their own.

Segments that know the types of their neighbours (``linked_chain.py``) tell what stages cost where values go to the next
block alone. Of longer chains, those segments are listed that the search with the cheapest links leaves; where values
skip stages, a tree over types of layers closes in on them::

    all types allowed          bound below the best: the plan that seems cheapest pays less than it would
      layer 7 on type 2        the value that it pays least for: its other end is put on the type it has there,
      layer 7 on any other     or on another one; either way the least link is dearer, or the plan is gone

A node is bounded by a search over times of a batch (``time_search.py``).

Not covered: the values of plans (``evaluate``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from heterps_compile.cost.problem import Bools, Ints, Placement, Problem
from heterps_compile.cost.segments import crossing_bytes
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.geometry import Chain, Segments
from heterps_compile.passes.placement.incumbent import Incumbent

from .best_first import best_first
from .effort import Effort
from .linked_chain import LinkedChain, has_near_readers, linked_segment_count
from .time_search import TimeSearch, search_type
from .trivial_bounds import GAP


@dataclass(frozen=True, slots=True)
class _Node:
    """Plans with layers on some types, of which the one that seems cheapest is ``loose``."""

    bound: float
    allowed: Bools
    loose: Placement | None
    width: float


class LinkedSearch:
    """The search.

    Attributes:
        bound: A proven lower bound on the value of every placement.
        evaluations: Placements evaluated.
    """

    def __init__(
        self, chain: Chain, deadline: Deadline, starts: Sequence[Placement], effort: Effort, incumbent: Incumbent
    ) -> None:
        """Begin with some placements."""
        self._chain, self.problem, self.deadline, self._starts = chain, chain.problem, deadline, starts
        self._effort, self._incumbent = effort, incumbent
        # a single time of a batch gets no narrower
        self._widths = effort.links.widths if self.problem.objective == "cost" else (0.0,)
        self.bound, self.evaluations, self._listed = 0.0, 0, 0

    def run(self) -> None:
        """Search to the proof, to the deadline, or until the tree is too large."""
        effort, work = self._effort.links, linked_segment_count(self._chain)
        if work > effort.most_segments:
            bound = self._bound_long()
        else:
            bound = best_first(
                self._node(self.problem, -np.inf, self._widths[0], self._starts),
                self._branch,
                self._ceiling,
                is_over=lambda: self.deadline.left_s() <= 0 or self._listed + 2 * work > effort.most_work,
            )
        self.bound = bound if bound < self._ceiling() else self._incumbent.value

    def _ceiling(self) -> float:
        return self._incumbent.value * (1 - GAP)

    def _bound_long(self) -> float:
        """Bound plans of a chain with too many segments: with the cheapest links, then over what that leaves."""
        chain, count, effort = self._chain, self._chain.length, self._effort.links
        while linked_segment_count(thin := Chain(self.problem, _thinned(chain, count))) > effort.most_segments // 4:
            count = max(1, count * 3 // 4)
        self._search(LinkedChain(thin), self._starts, effort.coarse_gap)
        search = self._search(chain, self._starts)
        lists = [node.segments for node in search.left if node.segments is not None]
        is_listed = 0 < len(lists) == len(search.left)
        if self.deadline.left_s() <= 0 or not has_near_readers(chain) or not is_listed:
            return search.bound
        left = _union(lists, chain)
        if len(left) * self.problem.type_count**2 > 4 * effort.most_segments:
            return search.bound
        return max(search.bound, self._search(LinkedChain(chain, left), self._starts).bound)

    def _branch(self, node: _Node) -> list[_Node] | None:
        """Bound a node's parts: a layer on one type, and on any other; or the node again, in narrower ranges."""
        layer, type_ = _loosest(self.problem, node)
        if layer < 0:
            narrower = [width for width in self._widths if width < node.width]
            problem = replace(self.problem, allowed=node.allowed)
            return [self._node(problem, node.bound, narrower[0])] if narrower else None
        parts = []
        for is_there in (True, False):
            allowed = node.allowed.copy()
            allowed[layer] &= (np.arange(self.problem.type_count) == type_) == is_there
            parts.append(self._node(replace(self.problem, allowed=allowed), node.bound, node.width))
        return parts

    def _node(self, problem: Problem, bound: float, width: float, starts: Sequence[Placement] = ()) -> _Node:
        chain = LinkedChain(Chain(problem))
        self._listed += linked_segment_count(self._chain)
        search = self._search(chain, starts, width=width)
        loose = search.left[0].loose if search.left else None
        return _Node(max(bound, search.bound), problem.allowed, loose, width)

    def _search(
        self, chain: Chain | LinkedChain, starts: Sequence[Placement], gap: float = GAP, width: float | None = None
    ) -> TimeSearch:
        """Search times of a batch; with a width only for a bound, in ranges no narrower."""
        search = search_type(self.problem)(
            chain,
            self.deadline,
            starts,
            gap,
            self._effort,
            incumbent=self._incumbent,
            width=width,
            is_hasty=width is not None,
        )
        search.run()
        self.evaluations += search.evaluations
        return search


def _thinned(chain: Chain, count: int) -> Ints:
    """Return about ``count`` positions at even distances of work, each the one nearby that the fewest bytes cross."""
    problem = chain.problem
    crossing = crossing_bytes(problem)[chain.borders]
    work = chain.cheapest_work(problem.price_per_hour)
    bucket = np.minimum((work / max(work[-1], 1e-300) * count).astype(np.int64), count - 1)
    order = np.lexsort((crossing, bucket))
    first = np.append(True, np.diff(bucket[order]) > 0)
    return np.union1d(chain.borders[order[first]], [0, problem.layer_count])


def _union(lists: Sequence[Segments], chain: Chain) -> Segments:
    """Return the segments that are in any list, sorted."""
    joined = Segments.join(lists)
    key = (joined.first * (chain.length + 1) + joined.end) * chain.problem.type_count + joined.type
    return joined.keep(np.unique(key, return_index=True)[1])


def _loosest(problem: Problem, node: _Node) -> tuple[int, int]:
    """Return a layer whose type decides what the loose plan pays, and its type there; -1 where there is none."""
    per_byte, latency_s = problem.link_seconds_per_byte, problem.link_latency_s
    if node.loose is None or per_byte is None or latency_s is None:
        return -1, 0
    types, starts = np.array(node.loose.types), np.array(node.loose.starts())
    stage = np.searchsorted(starts, np.arange(len(types)), side="right")
    best, found = 0.0, (-1, 0)
    for value, producer in enumerate(problem.edge_producer.tolist()):
        readers = problem.edge_readers[problem.edge_starts[value] : problem.edge_starts[value + 1]]
        for reader in readers[stage[readers] != stage[producer]].tolist():
            for near, far in ((producer, reader), (reader, producer)):
                others = node.allowed[far]
                if np.count_nonzero(others) > 1 and problem.edge_bytes[value] > 0:
                    pair = types[near], types[far]
                    saved = problem.edge_bytes[value] * (per_byte[pair] - per_byte[types[near], others].min())
                    saved += latency_s[pair] - latency_s[types[near], others].min()
                    if saved > best:
                        best, found = saved, (far, int(types[far]))
    return found
