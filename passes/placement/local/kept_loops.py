"""The loops of walks and of priced paths are compiled by another process, the first time they are wanted on a machine.

Left out: how (``compiled_loops.py``), and the loops.
"""

from functools import cache

import numpy as np

from heterps_compile.cost.problem import Bools, Ints, tiny_problem
from heterps_compile.passes.deadline import NO_DEADLINE
from heterps_compile.passes.placement.compiled_loops import CompiledBeside
from heterps_compile.passes.placement.simple_plans import seed_placements

from .annealing import Anneal, Annealing
from .annealing_loops import anneal
from .archive import Archive
from .path_loops import cheapest_paths, segment_talk
from .priced_paths import PricedPaths
from .segment_table import segment_table


@cache
def compile_loop_beside() -> CompiledBeside:
    """Have another process compile the loops, where that is still to be done; there is one at most."""
    return CompiledBeside((anneal, segment_talk, cheapest_paths), __name__, compile_loop.__name__)


def compile_loop() -> None:
    """Compile the loops and keep their code: what the other process does."""
    problem = tiny_problem()
    archive, generator = Archive(problem), np.random.default_rng(0)
    archive.add_placements(seed_placements(problem, None))
    search = Anneal(
        segment_table(problem), archive, generator, NO_DEADLINE, Annealing(changes=1, fresh=0.0, patience=1)
    )
    for _ in search.steps(_no_draw):
        pass
    PricedPaths(search, archive, generator).draw()


def _no_draw() -> tuple[Ints, Bools]:
    raise AssertionError("no walk begins with a drawn plan")
