"""Epochs follow one another, in order or shuffled in blocks, the same for every reader."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_compile.errors import InputError
from heterps_compile.runtime.data.epochs import Epochs
from heterps_compile.runtime.data.random_source import RandomColumn, RandomSource
from heterps_compile.runtime.data.sample_source import TensorSource

EIGHT = TensorSource({"id": torch.arange(8)})
ORDER = [0, 2, 1, 7, 6, 5, 4, 3, 4, 5, 3, 1, 2, 0, 6, 7]


def ids(source: Epochs, first: int, count: int) -> list[int]:
    return source.read(first, count, ["id"])["id"].tolist()


def test_samples_come_again_after_the_last():
    assert ids(Epochs(EIGHT), 6, 12) == [6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1]


class Counting(TensorSource):
    reads = 0

    def read(self, first, count, columns):
        self.reads += 1
        return super().read(first, count, columns)


def test_a_window_is_read_once_for_many_small_ranges():
    source = Counting({"id": torch.arange(8)})
    epochs = Epochs(source, seed=0, window_samples=4)
    assert len({ids(epochs, n, 1)[0] for n in range(8)}) == 8
    assert source.reads == 2


def test_a_window_of_all_samples_is_read_once_for_all_epochs():
    source = Counting({"id": torch.arange(8)})
    epochs = Epochs(source, window_samples=8)
    assert [sorted(ids(epochs, 8 * n, 8)) for n in range(3)] == [list(range(8))] * 3
    assert source.reads == 1


@settings(max_examples=60, deadline=None)
@given(
    samples=st.integers(1, 60),
    window=st.integers(1, 70),
    seed=st.integers(0, 2**63 - 1),
    cuts=st.lists(st.integers(1, 17), min_size=1, max_size=12),
    resumed=st.integers(0, 120),
)
def test_every_epoch_has_every_sample_once_in_one_order_however_it_is_read(samples, window, seed, cuts, resumed):
    """Cuts are batches and micro-batches of other widths; a fresh reader begins where a run went on."""
    source = TensorSource({"id": torch.arange(samples)})
    whole = ids(Epochs(source, seed=seed, window_samples=window), 0, 3 * samples)
    epochs = [whole[n * samples : (n + 1) * samples] for n in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(samples))] * 3
    numbers = [sample // window for sample in epochs[0]]
    assert sum(a != b for a, b in pairwise(numbers)) == len(set(numbers)) - 1  # a window lies together
    first = resumed % (2 * samples)
    fresh = Epochs(source, seed=seed, window_samples=window)
    for cut in cuts:
        if count := min(cut, 3 * samples - first):
            assert ids(fresh, first, count) == whole[first : first + count]
        first += count


def test_the_order_of_a_seed_stays_what_it_was():
    assert ids(Epochs(EIGHT, seed=1, window_samples=3), 0, 16) == ORDER


def test_what_never_ends_has_no_epochs():
    with pytest.raises(InputError):
        Epochs(RandomSource([RandomColumn("x", "float32")]))


def test_an_empty_window_is_refused():
    with pytest.raises(InputError, match=r"\b0\b"):
        Epochs(EIGHT, window_samples=0)
