from collections import Counter
from itertools import product

import numpy as np
import pytest

from heterps_compile.runtime.pipeline.layout import deal_micro_batches


@pytest.mark.parametrize(
    ("count", "speeds", "dealt"),
    [
        (7, (1, 1), "0 1 0 1 0 1 0"),
        (7, (2, 1), "0 0 1 0 0 1 0"),
        (7, (3, 2, 2), "0 1 2 0 0 1 2"),
        (7, (1, 3), "1 1 0 1 1 1 0"),
        (4, (5,), "0 0 0 0"),
        (6, (10, 10, 1), "0 1 0 1 0 2"),
    ],
)
def test_the_drawing(count, speeds, dealt):
    assert " ".join(map(str, deal_micro_batches(count, speeds))) == dealt


def test_the_slowest_replica_is_done_as_early_as_it_can_be():
    rng = np.random.default_rng(0)
    for _ in range(60):
        width = int(rng.integers(2, 4))
        count, speeds = int(rng.integers(width, 8)), rng.choice([1, 2, 3, 5, 10], width).tolist()
        dealt = Counter(deal_micro_batches(count, speeds))
        every = [each for each in product(range(1, count + 1), repeat=width) if sum(each) == count]
        least_s = min(max(n / speed for n, speed in zip(each, speeds, strict=True)) for each in every)
        assert set(dealt) == set(range(width))  # every replica has something to learn from
        assert max(dealt[i] / speed for i, speed in enumerate(speeds)) == pytest.approx(least_s)
