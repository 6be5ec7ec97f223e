"""The exact search from coarse to fine: on a long chain a good plan first, so that the proof has little left to do.

::

    all positions   |||||||||||||||||||||||||||||||||||||||||||||||   10,001
    coarse          |     |     |     |     |     |     |     |        about 150, where little crosses
    best coarse     |           |           |                 |
    fine            |     |  ||||||||  ||||||||     |  ||||||||        the same, and all near the cuts of the best
    best fine       |            |         |              |            value for the search over all positions to beat

Left out: the search (``interval_search.py``).
"""

from collections.abc import Sequence

import numpy as np

from heterps_compile.cost.problem import Ints, Placement, Problem
from heterps_compile.cost.segments import problem_tables

from .chain import Chain
from .interval_search import IntervalSearch
from .paths import Deadline

_SHORT = 300  # positions that need no coarse start
_COARSE = 150
_GAPS = (5e-3, 1e-3)  # relative; how far from their own optimum the coarse and the fine search may stop


def search_all(problem: Problem, deadline: Deadline, starts: Sequence[Placement] = ()) -> IntervalSearch:
    """Run the search over all positions, to its end or to the deadline."""
    chain = Chain(problem)
    if chain.length > _SHORT and problem.min_stages < _COARSE:
        borders = _thinned(chain, _COARSE)
        for gap in _GAPS:
            search = IntervalSearch(Chain(problem, borders), deadline, starts, gap)
            search.run()
            if search.placement is None:
                break
            starts = [search.placement]
            borders = np.union1d(borders, _near(chain, search.placement, 2 * _COARSE))
    search = IntervalSearch(chain, deadline, starts)
    search.run()
    return search


def _thinned(chain: Chain, count: int) -> Ints:
    """Give about ``count`` positions at even distances of work, each the one nearby that the fewest bytes cross."""
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


def _near(chain: Chain, placement: Placement, count: int) -> Ints:
    """Give about ``count`` positions: those next to where the placement's stages begin."""
    starts = np.searchsorted(chain.borders, placement.starts())
    each = max(2, count // len(starts) // 2)
    near = (starts[:, None] + np.arange(-each, each + 1)).ravel()
    return np.asarray(chain.borders[np.unique(np.clip(near, 0, chain.length))])
