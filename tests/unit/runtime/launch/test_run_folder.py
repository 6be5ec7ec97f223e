"""The folder of a run: private, and never left for good."""

import os
import stat
import tempfile
from functools import partial
from pathlib import Path

import pytest
from another_user import CAN_BE_ANOTHER, WHY_NOT, AnotherUser, look_everywhere

from heterps_compile.errors import RunError
from heterps_compile.runtime.launch.beats import BeatPage
from heterps_compile.runtime.launch.run_folder import run_folder, write_private
from heterps_compile.runtime.launch.run_store import folder_store
from heterps_compile.runtime.launch.worker import CONFIG_NAME, PAGE_NAME

LONG_AGO = (1.0, 1.0)


@pytest.fixture(autouse=True)
def apart(tmp_path, monkeypatch):
    """Have temporary files made where no other run's are."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_folder_is_its_owners_alone_and_goes_with_the_run(tmp_path):
    with run_folder() as folder:
        (folder / "run.json").write_text("{}")
        assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IRWXU
    assert list(tmp_path.iterdir()) == []


def test_where_there_is_no_room_for_temporary_files_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    said = "No such file or directory.*TMPDIR"
    with pytest.raises(RunError, match=said), run_folder():
        pass


def test_what_a_killed_run_left_is_deleted_by_the_next_one(tmp_path):
    left = tmp_path / "heterps-run-killed"
    left.mkdir()
    (left / "run.json").write_text("{}")
    os.utime(left, LONG_AGO)
    with run_folder() as folder:
        assert list(tmp_path.iterdir()) == [folder]


def test_what_lives_what_is_young_and_what_only_bears_the_name_stays(tmp_path):
    with run_folder() as living:
        os.utime(living, LONG_AGO)
        (tmp_path / "heterps-run-young").mkdir()
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "heterps-run-link").symlink_to(tmp_path / "elsewhere")
        os.utime(tmp_path / "heterps-run-link", LONG_AGO, follow_symlinks=False)
        before = set(tmp_path.iterdir())
        with run_folder() as folder:
            assert set(tmp_path.iterdir()) == {*before, folder}


@pytest.mark.skipif(not CAN_BE_ANOTHER, reason=WHY_NOT)
def test_another_user_sees_that_a_run_goes_on_and_reads_and_writes_nothing():
    with run_folder() as folder:
        write_private(folder / CONFIG_NAME, "{}")
        BeatPage(folder / PAGE_NAME, 1)
        folder_store(folder).set("key", "value")
        found = AnotherUser(
            partial(look_everywhere, str(folder), os.getpid(), (CONFIG_NAME, PAGE_NAME, "store"))
        ).found()
        assert folder_store(folder).get("key") == b"value"
    assert found["done"] == [], found
    assert found["words"].startswith(Path("/proc/self/cmdline").read_text()[:10])
