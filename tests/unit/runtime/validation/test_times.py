"""After which steps a run validates."""

import pytest

from heterps_compile.runtime.validation.validator import ValidationTimes


def due(last: int, every: int | None, batch: int, samples: int | None) -> list[int]:
    times = ValidationTimes(last, every, batch, samples)
    return [step for step in range(1, last + 1) if times.are_due(step)]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ((10, 4, 2, 5), [4, 8, 10]),
        ((10, None, 2, 5), [3, 5, 8, 10]),
        ((6, None, 5, 10), [2, 4, 6]),
        ((3, None, 8, 3), [1, 2, 3]),
        ((7, None, 2, None), [7]),
        ((5, 9, 2, 4), [5]),
    ],
)
def test_every_so_many_steps_or_where_an_epoch_ends_and_at_the_end(times, expected):
    assert due(*times) == expected
