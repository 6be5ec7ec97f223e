"""A crash is injected before and after every call that changes the disk; the target must be old or new, never half."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from heterps_compile.plan import swap
from heterps_compile.plan.swap import recover, replacing

STEPS = ("mkdir", "rename", "fsync", "exchange")


class CrashError(BaseException):
    """Like Ctrl-C: no Exception."""


def content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()} if folder.exists() else {}


def fill(folder: Path, word: str) -> None:
    folder.mkdir(exist_ok=True)
    for name in ("a", "b"):
        (folder / name).write_text(word)


OLD = {"a": "old", "b": "old"}
NEW = {"a": "new", "b": "new"}


def write(target: Path) -> None:
    with replacing(target) as folder:
        fill(folder, "new")


def no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swap, "_exchange", lambda _first, _second: False)


@pytest.fixture(params=["exchange", "two renames"])
def way(request, monkeypatch):
    if request.param == "two renames":
        no_exchange(monkeypatch)
    return request.param


def test_this_system_exchanges_in_one_step(tmp_path):
    fill(tmp_path / "one", "old")
    fill(tmp_path / "two", "new")
    assert swap._exchange(tmp_path / "one", tmp_path / "two")
    assert (content(tmp_path / "one"), content(tmp_path / "two")) == (NEW, OLD)


def test_an_exchange_that_fails_for_good_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        swap._exchange(tmp_path / "one", tmp_path / "two")


def test_the_new_folder_has_ordinary_permissions(tmp_path):
    previous = os.umask(0o022)
    try:
        write(tmp_path / "out")
    finally:
        os.umask(previous)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o755


def test_the_longest_name_there_is_works(tmp_path, way):
    target = tmp_path / ("n" * 255)
    fill(target, "old")
    write(target)
    assert content(target) == NEW


def test_parents_that_were_made_go_again_when_writing_fails(tmp_path, monkeypatch):
    def fail(_folder):
        raise CrashError

    monkeypatch.setattr(swap, "_flush", fail)
    with pytest.raises(CrashError):
        write(tmp_path / "x" / "y" / "out")
    assert os.listdir(tmp_path) == []


def count_steps(
    monkeypatch: pytest.MonkeyPatch, crash_at: int, *, after: bool, error: type[BaseException]
) -> list[str]:
    """Have the n-th call that changes the disk fail, before or after it did its work; log all such calls."""
    log: list[str] = []

    def wrap(name, function):
        def call(*args, **kwargs):
            log.append(name)
            fails = len(log) == crash_at
            if fails and not after:
                raise error
            result = function(*args, **kwargs)
            if fails:
                raise error
            return result

        return call

    for name in ("mkdir", "rename", "fsync"):
        monkeypatch.setattr(os, name, wrap(name, getattr(os, name)))
    monkeypatch.setattr(swap, "_exchange", wrap("exchange", swap._exchange))
    return log


@pytest.mark.parametrize("error", [CrashError, OSError])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("had_old", [False, True])
def test_a_failure_at_any_step_leaves_old_or_new(tmp_path, way, had_old, after, error):
    failed = 0
    for step in range(1, 40):
        target = tmp_path / str(step) / "out"
        target.parent.mkdir()
        if had_old:
            fill(target, "old")
        with pytest.MonkeyPatch.context() as patch:
            log = count_steps(patch, step, after=after, error=error)
            try:
                write(target)
            except error:
                failed += 1
        assert content(target) in ([OLD, NEW] if had_old else [{}, NEW]), log
        write(target)  # the next run tidies up
        assert content(target) == NEW
        assert os.listdir(target.parent) == ["out"], log
        if len(log) < step:
            break
    assert len(log) < step, "every step was tried"
    assert failed >= 3


def test_a_process_that_is_killed_between_two_renames_loses_nothing(tmp_path):
    fill(tmp_path / "out", "old")
    script = """
        import os, signal, sys
        from pathlib import Path
        from heterps_compile.plan import swap
        swap._exchange = lambda first, second: False
        rename = os.rename
        def rename_once(first, second):
            rename(first, second)
            os.kill(os.getpid(), signal.SIGKILL)
        os.rename = rename_once
        with swap.replacing(Path(sys.argv[1])) as folder:
            (folder / "a").write_text("new")
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "out")], check=False)
    assert run.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    recover(tmp_path / "out")
    assert content(tmp_path / "out") == OLD
    write(tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"]


def test_a_run_that_is_still_going_on_is_left_alone(tmp_path):
    with replacing(tmp_path / "out") as first:
        fill(first, "new")
        with replacing(tmp_path / "out") as second:
            fill(second, "old")
        assert first.exists()
    assert content(tmp_path / "out") == NEW
    assert os.listdir(tmp_path) == ["out"]


def test_the_folder_of_another_target_is_left_alone(tmp_path):
    stale = tmp_path / (swap._new_prefix(tmp_path / "other") + "0")
    stale.mkdir()
    write(tmp_path / "out")
    assert stale.exists()


def test_a_new_folder_that_was_tidied_away_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    make = os.mkdir
    made = []

    def make_and_lose(path, mode=0o777):
        make(path, mode)
        made.append(path)
        if len(made) == 1:
            os.rmdir(path)

    monkeypatch.setattr(os, "mkdir", make_and_lose)
    write(tmp_path / "out")
    assert content(tmp_path / "out") == NEW
    assert len(made) == 2


def test_a_file_system_without_locks_still_works(tmp_path, way, monkeypatch):
    def no_locks(_descriptor, _operation):
        raise OSError(errno.ENOLCK, "No locks available")

    fill(tmp_path / "out", "old")
    stale = tmp_path / (swap._new_prefix(tmp_path / "out") + "0")
    stale.mkdir()
    monkeypatch.setattr(fcntl, "flock", no_locks)
    write(tmp_path / "out")
    assert content(tmp_path / "out") == NEW
    assert stale.exists(), "without locks nobody knows that it is stale"


def test_a_target_that_appears_meanwhile_is_not_lost(tmp_path):
    with replacing(tmp_path / "out") as folder:
        fill(folder, "new")
        fill(tmp_path / "out", "old")
    assert content(tmp_path / "out") == NEW
