import pytest

from heterps_compile.runtime.pipeline.layout import deal_micro_batches, largest_remainder


@pytest.mark.parametrize(
    ("count", "speeds", "dealt"),
    [
        (7, (1, 1), "0 1 0 1 0 1 0"),
        (7, (2, 1), "0 1 0 0 0 1 0"),
        (7, (3, 2, 2), "0 1 2 0 1 2 0"),
        (7, (1, 3), "1 0 1 1 1 0 1"),
        (4, (5,), "0 0 0 0"),
    ],
)
def test_the_drawing(count, speeds, dealt):
    assert " ".join(map(str, deal_micro_batches(count, speeds))) == dealt


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [1, 4, 5, 7, 12])
def test_equal_speeds_take_turns(count, width):
    assert deal_micro_batches(count, [0.3] * width) == tuple(i % width for i in range(count))


def test_counts_are_within_one_of_the_shares_and_none_is_lost():
    counts = largest_remainder(10, [1, 1, 1, 4.5])
    assert counts == (2, 1, 1, 6)
    assert sum(counts) == 10
