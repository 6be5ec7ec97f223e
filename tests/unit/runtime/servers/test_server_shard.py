"""A shard is the same whatever part of it fits into memory."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_compile.errors import RunError
from heterps_compile.runtime.servers.optimizers import Adagrad, Sgd
from heterps_compile.runtime.servers.shard import Shard, sum_rows
from heterps_compile.runtime.servers.spec import TableSpec, allot_memory, record_bytes, shard_rows
from heterps_compile.runtime.servers.tiered_cache import TieredCache, hot_rows

WIDTH = 3
BYTES_OF_A_SLOT = WIDTH * 2 * 4 + 7


def make_shard(rows: int, memory_bytes: int | None, folder: Path) -> Shard:
    table = TableSpec("emb", rows, WIDTH, Path("none"))
    shard = Shard(table, rows, Adagrad(0.5), memory_bytes=memory_bytes, directory=folder)
    shard.fill_weights(0, np.random.default_rng(0).standard_normal((rows, WIDTH), np.float32))
    return shard


def memory_for(rows: int, hot: int) -> int:
    return rows * 4 + hot * BYTES_OF_A_SLOT


@settings(max_examples=60)
@given(st.data())
def test_every_tier_size_gives_what_memory_gives(data: st.DataObject):
    rows = data.draw(st.integers(4, 40), "rows")
    hot = data.draw(st.integers(1, max(1, rows // 2)), "hot")
    plain = make_shard(rows, None, Path(os.sep))
    tiered = make_shard(rows, memory_for(rows, hot), Path("/tmp"))  # noqa: S108 - a file without a name
    assert isinstance(tiered.tier, TieredCache)
    assert tiered.tier.limit == hot
    some_rows = st.lists(st.integers(0, rows - 1), min_size=1, unique=True)
    for _ in range(data.draw(st.integers(1, 8), "steps")):
        pulled = np.array(sorted(data.draw(some_rows.filter(lambda r: len(r) <= hot) if hot < rows else some_rows)))
        ours, theirs = np.empty((len(pulled), WIDTH), np.float32), np.empty((len(pulled), WIDTH), np.float32)
        plain.pull(pulled, theirs)
        tiered.pull(pulled, ours)
        np.testing.assert_array_equal(ours, theirs)
        pushed = np.array(sorted(data.draw(some_rows)))  # also more than are hot
        gradients = np.random.default_rng(len(pushed)).standard_normal((len(pushed), WIDTH), np.float32)
        plain.push(pushed, gradients)
        tiered.push(pushed, gradients)
    for (_, ours), (_, theirs) in zip(tiered.records(), plain.records(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_slow_disk_is_asked_for_all_pages_at_once_and_gives_the_same(tmp_path):
    slow, plain = make_shard(9_000, memory_for(9_000, 100), tmp_path), make_shard(9_000, None, tmp_path)
    assert isinstance(slow.tier, TieredCache)
    slow.tier._cold._slow_row_s = 0.0
    for step in range(4):
        rows = np.arange(step, 9_000, 91)
        gradients = np.full((len(rows), WIDTH), step + 1, np.float32)
        for shard in (slow, plain):
            shard.push(rows, gradients)
    assert slow.tier._cold._is_on_disk
    for (_, ours), (_, theirs) in zip(slow.records(), plain.records(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_frequent_rows_stay_hot(tmp_path):
    shard = make_shard(20_000, memory_for(20_000, 4_000), tmp_path)
    tier = shard.tier
    assert isinstance(tier, TieredCache)
    frequent = np.arange(1_500)
    rare = np.arange(1_500, 20_000)
    rng = np.random.default_rng(0)
    out = np.empty((3_000, WIDTH), np.float32)
    for _ in range(30):
        shard.pull(np.sort(np.concatenate((frequent, rng.choice(rare, 1_500, replace=False)))), out)
    before = tier.reads
    shard.pull(frequent, out[:1_500])
    assert tier.reads == before


def test_only_changed_rows_are_written_back(tmp_path):
    shard = make_shard(6, memory_for(6, 2), tmp_path)
    tier = shard.tier
    assert isinstance(tier, TieredCache)
    out = np.empty((2, WIDTH), np.float32)
    for pair in ([0, 1], [2, 3], [4, 5], [0, 1]):
        shard.pull(np.array(pair), out)
    assert (tier.reads, tier.writes) == (8, 0)
    shard.push(np.array([0]), np.ones((1, WIDTH), np.float32))
    shard.pull(np.array([2, 3]), out)
    assert (tier.reads, tier.writes) == (10, 1)


def test_memory_counts_the_index_and_keeps_to_what_is_allowed(tmp_path):
    allowed = 100_000
    shard = make_shard(10_000, allowed, tmp_path)
    assert allowed - BYTES_OF_A_SLOT < shard.tier.memory_bytes <= allowed
    tier = shard.tier
    arrays = [value for value in vars(tier).values() if isinstance(value, np.ndarray)]
    assert sum(array.nbytes for array in arrays) == tier.memory_bytes


def test_a_pull_of_more_rows_than_are_hot_is_refused_with_numbers(tmp_path):
    shard = make_shard(100, memory_for(100, 7), tmp_path)
    with pytest.raises(RunError, match=r"\b8\b.*'emb'.*\b7\b"):
        shard.pull(np.arange(8), np.empty((8, WIDTH), np.float32))


def test_memory_below_the_index_is_refused():
    with pytest.raises(RunError, match=r"1,000.*3.91 KiB.*1.95 KiB"):
        hot_rows(1_000, 4, 0, 2_000, "'emb'")


def test_a_shard_has_less_than_two_billion_cold_rows():
    with pytest.raises(RunError, match=r"3,000,000,000.*2\^31"):
        hot_rows(3_000_000_000, 4, 0, 1 << 40, "'emb'")


def test_a_table_that_does_not_fit_needs_a_folder():
    with pytest.raises(RunError, match=r"\b1\b KiB"):
        Shard(TableSpec("emb", 1_000, 4, Path("none")), 1_000, Sgd(0.1), memory_bytes=1024)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(RunError, match=r"'emb'.*23.4 KiB.*'.*nowhere'.*No such file"):
        make_shard(1_000, 10_000, tmp_path / "nowhere")


def test_a_full_folder_is_named_before_anything_is_written(tmp_path, monkeypatch):
    def full(_file: int, _first: int, _size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RunError, match="No space left on device"):
        make_shard(1_000, 10_000, tmp_path)


def test_a_cold_file_leaves_nothing_behind(tmp_path):
    shard = make_shard(1_000, 10_000, tmp_path)
    assert isinstance(shard.tier, TieredCache)
    assert list(tmp_path.iterdir()) == []


def test_a_shard_without_rows_takes_an_empty_push(tmp_path):
    shard = make_shard(0, None, tmp_path)
    shard.push(np.empty(0, np.int64), np.empty((0, WIDTH), np.float32))
    assert (shard.updates, list(shard.records())) == (1, [])


def test_sums_of_repeated_rows():
    rows, sums = sum_rows(np.array([4, 2, 4, 9]), np.array([[1.0], [2], [30], [4]], np.float32))
    assert (rows.tolist(), sums.tolist()) == ([2, 4, 9], [[2], [31], [4]])


def test_rows_are_dealt_like_cards():
    assert [shard_rows(8, 3, index) for index in range(3)] == [3, 3, 2]
    assert [shard_rows(1, 3, index) for index in range(3)] == [1, 0, 0]


def test_small_tables_lie_in_memory_whole():
    assert allot_memory((1, 20, 2, 90), 13) == (1, 5, 2, 5)
    assert allot_memory((1, 2), 3) == allot_memory((1, 2), None) == (1, 2)


def test_a_record_is_weights_and_state():
    assert record_bytes(TableSpec("emb", 1, 16, Path("none")), 2) == 16 * 3 * 4
