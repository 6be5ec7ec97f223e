"""What stages take of a step, with times that can be added up by hand."""

import numpy as np
import pytest

from heterps_compile.machines.stage_times import LayerParts, StageTimes


def two_blocks(*, is_back):
    """Return the stages of two blocks of 1 s forward and 2 s backward, in 4 micro-batches on one unit or on two.

    Values take 0.75 s to the other block, of which a stage moves 0.5 s itself, and 3 s pass until gradients are summed.
    """
    works, inner, outer = np.array([[1.0], [2.0], [1.0]]), np.array([[0.25], [0.0], [0.0]]), np.array([0.75, 0.0, 0.0])
    turns, every = np.array([4.0, 2.0]), np.ones((3, 2), np.float32)
    return StageTimes(
        count=4, length=2, first=np.array([0, 0, 1]), end=np.array([1, 2, 2]),
        parts=LayerParts(np.array([1.0, 1.0]), np.array([2.0, 2.0])), units=np.array([1.0, 2.0]),
        most=np.array([1.0, 3.0]), turns=turns, pull_s=0.5 * every, busy_s=(turns * 3 * works).astype(np.float32),
        forward_s=works * every, backward_s=2 * works * every, sync_s=3 * every,
        from_s=inner[::-1] * every, to_s=inner * every, way_from_s=outer[::-1], way_to_s=outer, is_back=is_back,
        gradients_s=np.zeros(3), own_s=np.zeros(3), latency_s=0.0,
    )  # fmt: skip


def test_a_stage_lasts_as_long_as_its_own_times_and_its_ways():
    for is_back in (False, True):
        stages, ways = two_blocks(is_back=is_back), 1 + is_back
        # the first block: a forward, 4 or 2 backwards, the other block for one of them, there and back
        busy_s = [[1 + 8 + 3 + ways * 0.25, 1 + 4 + 3 + ways * 0.25], [24, 12], [12, 6]]
        behind_s = 2 + 0.25 * is_back  # of the gradients to the first block, which is waited for less than the sum
        begun_s = np.array([[0.5], [0.5], [1.25]])  # rows that are pulled, or the first block and its way
        least_s = stages.least_s(stages.parts.around())
        assert least_s == pytest.approx(np.array(busy_s) + begun_s + max(3, behind_s), rel=1e-5)


def test_a_stage_with_others_behind_it_waits_as_the_better_of_the_schedules_has_it():
    stages = two_blocks(is_back=True)
    around = stages.parts.around()
    round_s = 3 + 2 * 0.25
    for total, one_s in (
        # GPipe: 4 - others forwards and one more; 1F1B: as many trips as 4 micro-batches by the units from here on
        (2, min(4 + round_s + 8, 2 * (1 + round_s + 2) + 2)),
        (3, min(3 + round_s + 8, 2 * (1 + round_s + 2))),
        (4, min(2 + round_s + 8, 1 * (1 + round_s + 2) + 3 * 2)),
        (9, min(1 + round_s + 8, 1 * (1 + round_s + 2) + 3 * 2)),
    ):
        plain_s = max(1 + 8 + round_s, 12)
        assert stages.between_s(around, total)[0, 0] == pytest.approx(max(one_s, plain_s), rel=1e-5), total
        assert stages.between_s(around, total)[2, 0] == pytest.approx(12)
    assert np.isinf(stages.between_s(around, 2)[0, 1])  # two units here leave none for the other block
    assert np.isfinite(stages.between_s(around, 2)[1:]).all()
