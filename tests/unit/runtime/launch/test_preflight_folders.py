"""Folders that all ranks share, and such that only have the same name."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

from heterps_compile.errors import RunError
from heterps_compile.runtime.launch.preflight import ranks_without, refuse_own_folders


def of_all(call, folders, *words):
    """Have every rank call it for its folder; give what each gets."""
    store = HashStore()
    with ThreadPoolExecutor() as pool:
        ranks = [pool.submit(call, store, rank, len(folders), folder, *words) for rank, folder in enumerate(folders)]
        return [rank.exception(timeout=30) or rank.result() for rank in ranks]


def test_a_shared_folder_is_seen_by_all_and_left_as_it_was(tmp_path):
    assert of_all(ranks_without, [tmp_path / "new"] * 3, "x") == [[], [], []]
    assert list((tmp_path / "new").iterdir()) == []


def test_disks_of_their_own_are_told_from_it(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    folders = [tmp_path / name for name in ("here", "there", "here", "nowhere")]
    assert of_all(ranks_without, folders, "x") == [[1, 3]] * 4


def test_checkpoints_on_disks_of_their_own_are_refused_alike(tmp_path):
    said = of_all(refuse_own_folders, [tmp_path / "here", tmp_path / "there"])
    assert all(isinstance(error, RunError) for error in said)
    for folder, error in zip(("here", "there"), said, strict=True):
        assert f"{folder}' is not the same for rank 0 and rank 1; name one that all machines share" in str(error)


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"file/ck'.*Not a directory"):
        ranks_without(HashStore(), 0, 1, tmp_path / "file" / "ck", "x")
