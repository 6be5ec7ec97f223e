"""Bytes into and out of the segments of a chain of four blocks."""

import numpy as np
import pytest

from heterps_compile.passes.placement.traffic import Crossings, Values

# block 0 sends 8 bytes that blocks 1 and 3 read; block 1 sends 2 to block 2
ENTER = Values(np.array([0, 1, 1]), np.array([1, 3, 2]), np.array([8.0, 8.0, 2.0]))
LEAVE = Values(np.array([0, 1]), np.array([3, 2]), np.array([8.0, 2.0]))
CROSSINGS = Crossings(ENTER, LEAVE)


def test_a_value_enters_once_however_many_readers_are_inside() -> None:
    traffic = CROSSINGS.traffic(1, 2, 4)  # segments that begin at block 1 and end after block 1, 2, 3
    assert traffic.received_bytes.tolist() == [[8, 8, 8]]
    assert traffic.sent_bytes.tolist() == [[2, 0, 0]]
    assert traffic.receives.tolist() == [[True, True, True]]
    assert traffic.sends.tolist() == [[True, False, False]]


def test_a_value_leaves_once_for_all_readers_outside() -> None:
    assert CROSSINGS.traffic(0, 1, 4).sent_bytes.tolist() == [[8, 10, 8, 0]]


def test_the_longest_way_of_a_value_is_counted_in_blocks() -> None:
    assert CROSSINGS.longest_span == 3


@pytest.mark.parametrize(
    ("span", "into", "out_of"),
    [
        (1, [0, 8, 2, 0, 0], [0, 0, 2, 0, 0]),
        (2, [0, 8, 10, 8, 0], [0, 0, 2, 0, 0]),
        (3, [0, 8, 10, 8, 0], [0, 8, 10, 8, 0]),
    ],
)
def test_what_passes_a_position_bounds_segments_that_are_long_enough(
    span: int, into: list[float], out_of: list[float]
) -> None:
    received, sent = CROSSINGS.passing_bytes(span, 4)
    assert received.tolist() == into
    assert sent.tolist() == out_of
    for first in range(4):
        traffic = CROSSINGS.traffic(first, first + 1, 4)
        for end in range(first + span, 5):
            assert into[first] <= traffic.received_bytes[0, end - first - 1]
            assert out_of[end] <= traffic.sent_bytes[0, end - first - 1]
