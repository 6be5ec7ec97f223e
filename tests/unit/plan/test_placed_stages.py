"""A placement as stages, and back: ``a`` and ``b`` on a core, ``c`` to ``e`` on a GPU, cut once more before ``e``."""

from dataclasses import replace

from small_problems import plain_problem

from heterps_compile.cost.problem import Placement
from heterps_compile.plan.placed_stages import placement_of, stages_of

PROBLEM = replace(
    plain_problem([[1.0, 1.0]] * 5, [1.0, 1.0]), layer_names=tuple("abcde"), type_names=("core", "v100"),
    type_kinds=("cpu", "gpu"),
)  # fmt: skip
PLACED = Placement((0, 0, 1, 1, 1), (4,))


def test_a_stage_is_a_run_of_one_type_divided_where_a_cut_is_asked_for() -> None:
    assert [(s.index, s.device, s.kind, "".join(s.layers)) for s in stages_of(PROBLEM, PLACED)] == [
        (0, "core", "cpu", "ab"), (1, "v100", "gpu", "cd"), (2, "v100", "gpu", "e"),
    ]  # fmt: skip


def test_stages_are_the_placement_again() -> None:
    home = {name: stage for stage in stages_of(PROBLEM, PLACED) for name in stage.layers}
    assert placement_of(PROBLEM, home) == PLACED
