"""Interleaved 1F1B over any widths and any number of micro-batches."""

from itertools import product

import pytest
from simulated import simulate

from heterps_compile.schedule.interleaved import interleaved
from heterps_compile.schedule.names import orders


def finishes(replicas: tuple[int, ...], micro_batches: int) -> bool:
    order = orders("interleaved-1f1b", replicas, micro_batches, training=True)
    times_s = [float(count) for count in replicas]
    timeline = simulate(order, times_s, [2 * time_s for time_s in times_s], replicas=replicas)
    return len(timeline.spans) == 4 * micro_batches * len(replicas)


@pytest.mark.parametrize(
    ("replicas", "micro_batches"),
    [((1, 6, 1), 11), ((1, 3, 2, 1), 10), ((5, 6, 5, 1), 20), ((1, 1, 1, 6, 1), 16), ((1, 1, 1, 1, 1, 1), 7)],
)
def test_rounds_that_the_workers_do_not_divide_finish(replicas, micro_batches):
    # the first worker waited for the end of a small last round, which waited for its backwards
    assert finishes(replicas, micro_batches)


@pytest.mark.parametrize("replicas", list(product((1, 2, 5), repeat=3)))
def test_every_width_finishes_with_any_number_of_micro_batches(replicas):
    assert all(finishes(replicas, count) for count in range(1, 25))


def test_micro_batches_go_in_rounds_of_like_size():
    first = [str(action) for action in interleaved(0, (1, 1), 5, training=False)]
    assert first == ["F0", "F1", "F2", "f0", "f1", "f2", "F3", "F4", "f3", "f4"]
