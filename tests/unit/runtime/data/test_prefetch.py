"""Reading ahead gives what was announced, holds no more than its depth, and passes errors on."""

import threading
from contextlib import closing

import pytest
import torch

from heterps_compile.errors import InputError, RunError
from heterps_compile.runtime.data.prefetch import Prefetcher, Request
from heterps_compile.runtime.data.sample_source import TensorSource

HUNDRED = TensorSource({"id": torch.arange(100)})
TENS = [Request(n, 10, ("id",)) for n in range(0, 100, 10)]


class Gated(TensorSource):
    """Says what it read, and reads the samples from 50 on only once it is let."""

    def __init__(self) -> None:
        super().__init__({"id": torch.arange(100)})
        self.firsts: list[int] = []
        self.third = threading.Event()
        self.gate = threading.Event()

    def read(self, first, count, columns):
        self.firsts.append(first)
        if len(self.firsts) == 3:
            self.third.set()
        if first >= 50 and not self.gate.wait(60):
            raise AssertionError("nobody opened the gate")
        return super().read(first, count, columns)


def test_announced_ranges_come_in_any_near_order():
    with closing(Prefetcher(HUNDRED, TENS, depth=2)) as ahead:
        firsts = [0, 20, 10, 30, 40, 60, 50, 70, 80, 90]
        assert [int(ahead.read(first, 10, ["id"])["id"][0]) for first in firsts] == firsts
    assert ahead.columns == ("id",)
    assert ahead.samples == 100


def test_no_more_than_the_depth_is_read_ahead():
    source = Gated()
    source.gate.set()
    with closing(Prefetcher(source, TENS, depth=2)) as ahead:
        ahead.read(0, 10, ["id"])
        assert source.third.wait(60)
        assert source.firsts == [0, 10, 20]


def test_reading_goes_on_while_the_reader_computes():
    source = Gated()
    with closing(Prefetcher(source, TENS, depth=5)) as ahead:
        for first in range(0, 50, 10):
            ahead.read(first, 10, ["id"])
        source.gate.set()
        assert ahead.read(50, 10, ["id"])["id"][0] == 50


def test_an_error_is_raised_where_the_range_is_asked_for():
    class Broken(TensorSource):
        def read(self, first, count, columns):
            if first == 20:
                raise InputError("line 21 is torn")
            return super().read(first, count, columns)

    with closing(Prefetcher(Broken({"id": torch.arange(100)}), TENS, depth=2)) as ahead:
        assert ahead.read(0, 10, ["id"])["id"][0] == 0
        assert ahead.read(10, 10, ["id"])["id"][0] == 10
        for _ in range(2):
            with pytest.raises(InputError, match=r"line 21\b.*torn"):
                ahead.read(20, 10, ["id"])


def test_what_was_not_announced_is_refused_instead_of_waited_for():
    with (
        closing(Prefetcher(HUNDRED, TENS, depth=2)) as ahead,
        pytest.raises(RunError, match=r"samples 5\b.*\b14\b.*0\+10.*10\+10.*\b2\b"),
    ):
        ahead.read(5, 10, ["id"])


def test_a_range_is_given_as_often_as_it_was_announced():
    with closing(Prefetcher(HUNDRED, [TENS[0], TENS[1], TENS[0]], depth=3)) as ahead:
        ahead.read(0, 10, ["id"])
        ahead.read(0, 10, ["id"])
        ahead.read(10, 10, ["id"])
        with pytest.raises(RunError, match=r"announced.*holds"):
            ahead.read(0, 10, ["id"])


def test_closing_ends_the_thread_and_what_waits_for_it():
    ahead = Prefetcher(HUNDRED, (Request(0, 10, ("id",)) for _ in iter(int, 1)), depth=2)
    ahead.close()
    assert not any(thread.name == "prefetch" and thread is ahead._thread for thread in threading.enumerate())
    with pytest.raises(RunError):
        ahead.read(0, 10, ["id"])
