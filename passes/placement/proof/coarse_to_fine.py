"""The exact search from coarse to fine: on a long chain a good plan first, so that the proof has little left to do.

::

    all positions   |||||||||||||||||||||||||||||||||||||||||||||||   10,001
    coarse          |     |     |     |     |     |     |     |        about 150, where little crosses
    best coarse     |           |           |                 |
    fine            |     |  ||||||||  ||||||||     |  ||||||||        the same, and all near the cuts of the best
    best fine       |            |         |              |            value for the search over all positions to beat

Left out: the search (``range_search.py``).
"""

from collections.abc import Sequence

import numpy as np

from heterps_compile.cost.problem import Ints, Placement, Problem
from heterps_compile.cost.segments import problem_tables
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.geometry import Chain

from .range_search import RangeSearch, marches_at_once

_SHORT = 300  # positions that need no coarse start
_COARSE = 150
_FINE = 300
_ROUNDS = 12
_COARSE_GAP = 1e-2  # relative; how far from its own optimum the coarse search may stop
_FINE_GAP = 1.0  # the same for the fine ones, over the number of positions: a position more or less is as much
_GAIN = 2.0  # likewise; a round that gains less is the last


def search_all(problem: Problem, deadline: Deadline, starts: Sequence[Placement] = ()) -> RangeSearch:
    """Run the search over all positions, to its end or to the deadline."""
    chain, spent = Chain(problem), 0
    if chain.length > _SHORT and problem.min_stages < _COARSE and not marches_at_once(chain):
        search = RangeSearch(Chain(problem, thinned(chain, _COARSE)), deadline, starts, _COARSE_GAP)
        search.run()
        for _ in range(_ROUNDS):
            if search.placement is None:
                break
            starts, before, spent = [search.placement], search.best, spent + search.evaluations
            search = RangeSearch(
                Chain(problem, _near(chain, search.placement)), deadline, starts, _FINE_GAP / chain.length
            )
            search.run()
            if search.best > before * (1 - _GAIN / chain.length):
                break
    search = RangeSearch(chain, deadline, starts)
    search.run()
    search.evaluations += spent
    return search


def thinned(chain: Chain, count: int) -> Ints:
    """Return about ``count`` positions at even distances of work, each the one nearby that the fewest bytes cross."""
    problem = chain.problem
    tables = problem_tables(problem)
    layers = problem.layer_count
    change = np.bincount(tables.sent_by + 1, tables.sent_bytes, layers + 2)
    change -= np.bincount(tables.sent_until + 1, tables.sent_bytes, layers + 2)
    crossing = np.cumsum(change)[chain.borders]
    work = chain.cheapest_work(problem.price_per_hour)
    bucket = np.minimum((work / max(work[-1], 1e-300) * count).astype(np.int64), count - 1)
    order = np.lexsort((crossing, bucket))
    first = np.append(True, np.diff(bucket[order]) > 0)
    return np.union1d(chain.borders[order[first]], [0, layers])


def _near(chain: Chain, placement: Placement) -> Ints:
    """Return about ``_FINE`` positions: around each stage's start, the closer the denser; and some everywhere."""
    starts = np.searchsorted(chain.borders, placement.starts())
    if len(starts) > _FINE // 2:  # the plan of every layer on its cheapest type, which says little about cuts
        return thinned(chain, _FINE)
    each = max(1, (_FINE - _FINE // 4) // len(starts) // 2)
    reach = chain.length / len(starts) / 2
    steps = np.unique(np.round(np.geomspace(1, max(reach, 2), each)).astype(np.int64))
    near = np.concatenate([starts, *(starts[:, None] + sign * steps for sign in (-1, 1))], axis=None)
    near = near[(near >= 0) & (near <= chain.length)]
    return np.union1d(chain.borders[near], thinned(chain, _FINE // 4))
