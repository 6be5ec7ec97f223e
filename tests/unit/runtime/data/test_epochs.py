"""Epochs follow one another, in order or shuffled in blocks, the same for every reader."""

from itertools import pairwise

import pytest
import torch

from heterps_compile.errors import InputError
from heterps_compile.runtime.data.epochs import Epochs
from heterps_compile.runtime.data.random_source import RandomColumn, RandomSource
from heterps_compile.runtime.data.sample_source import TensorSource

EIGHT = TensorSource({"id": torch.arange(8)})


def ids(source: Epochs, first: int, count: int) -> list[int]:
    return source.read(first, count, ["id"])["id"].tolist()


def test_samples_come_again_after_the_last():
    assert ids(Epochs(EIGHT), 6, 12) == [6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1]


def test_a_shuffled_epoch_has_every_sample_once_with_blocks_together():
    first = ids(Epochs(EIGHT, shuffle_seed=1, block_samples=3), 0, 8)
    assert sorted(first) == list(range(8))
    assert first != list(range(8))
    blocks = [sample // 3 for sample in first]
    assert sum(a != b for a, b in pairwise(blocks)) == 2  # 0 1 2, 3 4 5 and 6 7 lie together


def test_every_epoch_has_an_order_of_its_own_and_every_seed_too():
    epochs = Epochs(EIGHT, shuffle_seed=1, block_samples=3)
    other = Epochs(EIGHT, shuffle_seed=2, block_samples=3)
    assert ids(epochs, 0, 8) != ids(epochs, 8, 8)
    assert sorted(ids(epochs, 8, 8)) == list(range(8))
    assert ids(epochs, 0, 8) != ids(other, 0, 8)


def test_ranges_cut_anywhere_are_those_of_one_reader():
    whole = ids(Epochs(EIGHT, shuffle_seed=5, block_samples=3), 0, 24)
    pieces = Epochs(EIGHT, shuffle_seed=5, block_samples=3)
    assert [ids(pieces, n, 1)[0] for n in reversed(range(24))] == whole[::-1]


def test_a_block_is_read_once_for_many_small_ranges():
    class Counting(TensorSource):
        reads = 0

        def read(self, first, count, columns):
            self.reads += 1
            return super().read(first, count, columns)

    source = Counting({"id": torch.arange(8)})
    epochs = Epochs(source, shuffle_seed=0, block_samples=4)
    assert len({ids(epochs, n, 1)[0] for n in range(8)}) == 8
    assert source.reads == 2


def test_what_never_ends_has_no_epochs():
    with pytest.raises(InputError, match="cannot be shuffled or repeated"):
        Epochs(RandomSource([RandomColumn("x", "float32")]))


def test_an_empty_block_is_refused():
    with pytest.raises(InputError, match="a block of 0 samples"):
        Epochs(EIGHT, block_samples=0)
