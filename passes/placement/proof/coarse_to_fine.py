"""The exact search from coarse to fine: on a long chain a good plan first, so that the proof has little left to do.

::

    all positions   |||||||||||||||||||||||||||||||||||||||||||||||   10,001
    coarse          |     |     |     |     |     |     |     |        about 150, where little crosses
    best coarse     |           |           |                 |
    fine            |     |  ||||||||  ||||||||     |  ||||||||        the same, and all near the cuts of the best
    best fine       |            |         |              |            value for the search over all positions to beat

Left out: the search (``time_search.py``).
"""

from collections.abc import Sequence

import numpy as np

from heterps_compile.cost.problem import Ints, Placement, Problem
from heterps_compile.cost.segments import crossing_bytes
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.geometry import Chain
from heterps_compile.passes.placement.incumbent import Incumbent

from .effort import EFFORT, Effort
from .interval_bound import is_tight
from .time_search import TimeSearch, search_type


def search_all(
    problem: Problem,
    deadline: Deadline,
    starts: Sequence[Placement] = (),
    effort: Effort = EFFORT,
    *,
    tells: bool = False,
    incumbent: Incumbent | None = None,
) -> TimeSearch:
    """Run the search over all positions, to its end or to the deadline."""
    incumbent = Incumbent(problem) if incumbent is None else incumbent
    chain, spent, coarse, search_of = Chain(problem), 0, effort.coarse, search_type(problem)
    is_long = chain.length > coarse.above and problem.min_stages < coarse.coarse
    if is_long and problem.objective == "cost" and not is_tight(chain, effort.interval):
        thin = Chain(problem, thinned(chain, coarse.coarse))
        search = search_of(thin, deadline, starts, coarse.coarse_gap, effort, incumbent=incumbent)
        search.run()
        for _ in range(coarse.rounds):
            if search.placement is None:
                break
            starts, before, spent = [search.placement], search.best, spent + search.evaluations
            fine = Chain(problem, near(chain, search.placement, coarse.fine))
            gap = coarse.fine_gap / chain.length
            search = search_of(fine, deadline, starts, gap, effort, incumbent=incumbent)
            search.run()
            if search.best > before * (1 - coarse.least_gain / chain.length):
                break
    search = search_of(chain, deadline, starts, effort=effort, incumbent=incumbent, tells=tells)
    search.run()
    search.evaluations += spent
    return search


def thinned(chain: Chain, count: int) -> Ints:
    """Return about ``count`` positions at even distances of work, each the one nearby that the fewest bytes cross."""
    problem = chain.problem
    crossing = crossing_bytes(problem)[chain.borders]
    work = chain.cheapest_work(problem.price_per_hour)
    bucket = np.minimum((work / max(work[-1], 1e-300) * count).astype(np.int64), count - 1)
    order = np.lexsort((crossing, bucket))
    first = np.append(True, np.diff(bucket[order]) > 0)
    return np.union1d(chain.borders[order[first]], [0, problem.layer_count])


def near(chain: Chain, placement: Placement, count: int) -> Ints:
    """Return about ``count`` positions: around each stage's start, the closer the denser; and some everywhere."""
    starts = np.searchsorted(chain.borders, placement.starts())
    if len(starts) > count // 2:  # the plan of every layer on its cheapest type, which says little about cuts
        return thinned(chain, count)
    each = max(1, (count - count // 4) // len(starts) // 2)
    furthest = chain.length / len(starts) / 2
    steps = np.unique(np.round(np.geomspace(1, max(furthest, 2), each)).astype(np.int64))
    around = np.concatenate([starts, *(starts[:, None] + sign * steps for sign in (-1, 1))], axis=None)
    around = around[(around >= 0) & (around <= chain.length)]
    return np.union1d(chain.borders[around], thinned(chain, count // 4))
