"""The exact search where pairs of types have links of their own.

Segments that know the types of their neighbours (``linked_chain.py``) tell what stages cost where values go to the next
block alone. Of longer chains, those segments are listed that the search with the cheapest links leaves; where values
skip stages, a tree over types of layers closes in on them::

    all types allowed          bound below the best: the plan that seems cheapest pays less than it would
      layer 7 on type 2        the value that it pays least for: its other end is put on the type it has there,
      layer 7 on any other     or on another one; either way the least link is dearer, or the plan is gone

What bounds a node is a search over times of a batch for ``cost`` (``range_search.py``), and one at the floor's time for
objectives that are sums there (``fixed_time.py``).

Left out: what plans cost (``evaluate``).
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Bools, Placement, Problem
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.geometry import Chain, Segments
from heterps_compile.passes.placement.incumbent import Incumbent

from .coarse_to_fine import thinned
from .effort import EFFORT, Effort
from .fixed_time import FixedTimeSearch
from .linked_chain import LinkedChain, has_near_readers, linked_segment_count
from .range_search import RangeSearch
from .trivial_bounds import GAP


@dataclass(frozen=True, slots=True, order=True)
class _Node:
    bound: float
    allowed: Bools = field(compare=False)
    loose: Placement | None = field(compare=False)
    width: float = field(compare=False)


class LinkedSearch:
    """The search, with what it found so far.

    Attributes:
        best, placement, bound, evaluations: As the search has them that bounds a node.
    """

    def __init__(
        self,
        problem: Problem,
        deadline: Deadline,
        starts: Sequence[Placement] = (),
        effort: Effort = EFFORT,
        *,
        incumbent: Incumbent | None = None,
    ) -> None:
        """Begin with some placements."""
        self._incumbent = Incumbent(problem) if incumbent is None else incumbent
        self.problem, self.deadline, self._starts, self._effort = problem, deadline, starts, effort
        self.best, self.bound, self.evaluations = np.inf, 0.0, 0
        at_floor = OBJECTIVES[problem.objective].sums_at_floor
        self._widths = (0.0,) if at_floor else effort.links.widths  # a single time of a batch gets no narrower
        self.placement: Placement | None = None

    def run(self) -> None:
        """Search to the proof, to the deadline, or until the tree is too large."""
        chain, widest = Chain(self.problem), self._widths[0]
        if linked_segment_count(chain) > self._effort.links.most_segments:
            self._search_long(chain, self._starts)
        else:
            search = self._run(LinkedChain(chain), self._starts, width=widest)
            self.bound = search.bound
            if search.bound < self.best * (1 - GAP) and self.deadline.left_s() > 0:
                root = _Node(search.bound, self.problem.allowed, search.loose, widest)
                self._branch(root, linked_segment_count(chain))
        if self.bound >= self.best * (1 - GAP):
            self.bound = max(self.bound, self.best)

    def _search_long(self, chain: Chain, starts: Sequence[Placement]) -> None:
        count, effort = chain.length, self._effort.links
        while linked_segment_count(thin := Chain(self.problem, thinned(chain, count))) > effort.most_segments // 4:
            count = max(1, count * 3 // 4)
        self._run(LinkedChain(thin), starts, effort.coarse_gap)
        search = self._run(chain, starts)
        self.bound = search.bound
        lists = [segments for segments in search.left if segments is not None]
        is_listed = 0 < len(lists) == len(search.left)
        if self.deadline.left_s() <= 0 or not has_near_readers(chain) or not is_listed:
            return
        left = _union(lists, chain)
        if len(left) * self.problem.type_count**2 <= 4 * effort.most_segments:
            self.bound = max(self.bound, self._run(LinkedChain(chain, left), starts).bound)

    def _branch(self, root: _Node, work: int) -> None:
        open_, done = [root], 0
        while open_ and open_[0].bound < self.best * (1 - GAP) and done + 2 * work <= self._effort.links.most_work:
            node = open_[0]
            if self.deadline.left_s() <= 0:
                break
            parts = self._parts(node)
            if not parts:
                break
            heapq.heapreplace(open_, parts[0])
            for part in parts[1:]:
                heapq.heappush(open_, part)
            done += len(parts) * work
        self.bound = min([self.best, *(node.bound for node in open_)])

    def _parts(self, node: _Node) -> list[_Node]:
        """Bound a node's parts: a layer on one type, and on any other; or the node again, in narrower ranges."""
        layer, type_ = _loosest(self.problem, node)
        if layer < 0:
            narrower = [width for width in self._widths if width < node.width]
            return [self._bounded(node, node.allowed, narrower[0])] if narrower else []
        parts = []
        for is_there in (True, False):
            allowed = node.allowed.copy()
            allowed[layer] &= (np.arange(self.problem.type_count) == type_) == is_there
            parts.append(self._bounded(node, allowed, node.width))
        return parts

    def _bounded(self, node: _Node, allowed: Bools, width: float) -> _Node:
        search = self._run(LinkedChain(Chain(replace(self.problem, allowed=allowed))), (), width=width)
        return _Node(max(node.bound, search.bound), allowed, search.loose, width)

    def _run(
        self,
        chain: Chain | LinkedChain,
        starts: Sequence[Placement],
        gap: float = GAP,
        width: float | None = None,
    ) -> RangeSearch | FixedTimeSearch:
        """Search; with a width only for a bound, in ranges no narrower."""
        search: RangeSearch | FixedTimeSearch
        if OBJECTIVES[self.problem.objective].sums_at_floor:
            search = FixedTimeSearch(chain, self.deadline, starts, self._effort, incumbent=self._incumbent)
        else:
            search = RangeSearch(chain, self.deadline, starts, gap, self._effort, incumbent=self._incumbent)
            if width is not None:
                search.width, search.is_hasty = width, True
        if self.best < search.best:
            search.best, search.placement = self.best, self.placement
        search.run()
        self.evaluations += search.evaluations
        if search.best < self.best:
            self.best, self.placement = search.best, search.placement
        return search


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
