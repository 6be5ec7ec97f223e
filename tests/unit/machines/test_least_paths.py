"""The least of all ways to cut blocks into runs, against every way there is; and work that two types share."""

from itertools import combinations, pairwise

import numpy as np
import pytest

from heterps_compile.machines.step_bounds import grid_above, grid_s, least_paths
from heterps_compile.machines.step_times import least_shared_s


def runs_of(length: int) -> list[tuple[int, int]]:
    return [(first, end) for first in range(length) for end in range(first + 1, length + 1)]


def paths_of(length: int) -> list[list[int]]:
    """Return every path from the first block to the end, as the places of its runs."""
    place = {run: number for number, run in enumerate(runs_of(length))}
    cuts = [inner for count in range(length) for inner in combinations(range(1, length), count)]
    return [[place[run] for run in pairwise((0, *inner, length))] for inner in cuts]


@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_the_least_path_is_the_least_of_all(length: int) -> None:
    draw = np.random.default_rng(length)
    each = draw.uniform(1.0, 9.0, (20, len(runs_of(length)))).astype(np.float32)
    each[draw.random(each.shape) < 0.2] = np.inf
    one_of = (each * draw.uniform(0.5, 3.0, each.shape)).astype(np.float32)
    sums = [[row[path].sum() for path in paths_of(length)] for row in each]
    assert least_paths(length, each) == pytest.approx([min(row) for row in sums], rel=1e-5)
    with_one = [
        min(sum(row[run] for run in path if run != dear) + ones[dear] for path in paths_of(length) for dear in path)
        for row, ones in zip(each, one_of, strict=True)
    ]
    assert least_paths(length, each, one_of) == pytest.approx(with_one, rel=1e-5)


def test_layers_that_one_type_alone_may_run_are_its_own() -> None:
    """3 and 2 s on two units of the first type, 4 s on four of the second: 2.5 s and 1 s."""
    work_s, other_s = np.array([3.0, np.inf, 2.0]), np.array([np.inf, 4.0, np.inf])
    assert least_shared_s(work_s, other_s, np.array([2.0, 1.0, 9.0]), np.array([4.0, 8.0, 1.0])) == pytest.approx(
        [2.5, 5.0, 4.0]
    )
    nowhere = least_shared_s(np.array([1.0, np.inf]), np.array([2.0, np.inf]), np.ones(2), np.ones(2))
    assert nowhere.tolist() == [np.inf, np.inf]


def test_a_time_of_the_grid_is_the_first_that_is_no_shorter() -> None:
    for time_s in (1e-6, 0.003, 1.0, 77.7, 1e5):
        number = grid_above(time_s)
        before_s, found_s = grid_s(np.array([number - 1, number]))
        assert before_s < time_s <= found_s
