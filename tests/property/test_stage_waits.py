"""The fewest units of a pipeline against all its paths and numbers of replicas, one by one."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_compile.machines.stage_waits import StageWaits


def drawn_waits(seed, length, classes):
    draw = np.random.default_rng(seed)
    first, end = np.triu_indices(length)
    shape = (len(first), classes)
    units = np.sort(draw.choice(np.arange(1, 2 * classes + 1), classes, replace=False)).astype(float)
    busy_s = np.sort(draw.uniform(0.2, 2.0, shape), axis=1)[:, ::-1]
    return StageWaits(
        length, first, end + 1, units, (busy_s + draw.uniform(0, 1, shape)).astype(np.float32),
        busy_s.astype(np.float32), draw.uniform(0.0, 1.5, shape).astype(np.float32), draw.uniform(0.05, 0.5, shape[0]),
    )  # fmt: skip


def fewest_of_all(waits, time_s, one_has):
    """Return the fewest units of all plans, each stage's X one after another."""
    index = {ends: run for run, ends in enumerate(zip(waits.first.tolist(), waits.end.tolist(), strict=True))}
    fewest, places = float("inf"), range(len(waits.units))
    for cuts in (each for count in range(waits.length) for each in combinations(range(1, waits.length), count)):
        runs = [index[ends] for ends in zip((0, *cuts), (*cuts, waits.length), strict=True)]
        for chosen in product(places, repeat=len(runs)):
            waited_s, keeps = 0.0, max(waits.units[place] for place in chosen) >= one_has
            for stage, cell in enumerate(zip(runs, chosen, strict=True)):
                keeps &= bool(waits.least_s[cell] <= np.float32(time_s))
                keeps &= stage == 0 or waited_s + float(waits.rest_s[cell]) <= time_s
                waited_s = waits.adds_s[cell[0]] + max(waited_s, float(waits.sync_s[cell]))
            if keeps:
                fewest = min(fewest, sum(waits.units[place] for place in chosen))
    return fewest


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 3), st.floats(0.3, 4.0), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_the_fewest_units_are_those_of_the_best_of_all_plans(seed, length, classes, time_s, one_has):
    waits = drawn_waits(seed, length, classes)
    expected = fewest_of_all(waits, time_s, one_has)
    assert waits.fewest_units(time_s, 40, one_has) == expected
    if np.isfinite(expected):
        assert waits.fewest_units(time_s, int(expected), one_has) == expected
        assert waits.fewest_units(time_s, int(expected) - 1, one_has) == float("inf")


def test_a_stage_waits_for_the_sum_of_gradients_of_the_stage_before_it():
    waits = drawn_waits(0, 2, 1)
    one = np.ones_like(waits.least_s)
    waits = StageWaits(2, waits.first, waits.end, np.array([1.0]), one, one, 0 * one, np.zeros(3))
    assert waits.fewest_units(1.0, 4) == 1  # all on one unit
    no_whole = np.where((waits.first == 0) & (waits.end == 2), np.inf, 1.0)[:, None].astype(np.float32)
    waits = StageWaits(2, waits.first, waits.end, np.array([1.0]), no_whole, one, 0 * one, np.zeros(3))
    assert waits.fewest_units(1.0, 4) == 2
    late = StageWaits(2, waits.first, waits.end, np.array([1.0]), no_whole, one, 0.5 * one, np.zeros(3))
    assert late.fewest_units(1.4, 4) == float("inf")
    assert late.fewest_units(1.5, 4) == pytest.approx(2)
