"""The private folder of a run: options, telemetry, what ranks left behind; gone when the run is over.

A launcher that is killed cannot delete its folder. So whoever has one holds a lock on it, which ends with the process,
and the next run deletes what nobody holds. Left out: folders that the user names (``--telemetry``), which stay.
"""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from heterps_compile.errors import RunError
from heterps_compile.plan.swap import locked

PREFIX = "heterps-run-"
"""How the names of these folders begin."""

_PRIVATE = 0o600
_YOUNG_S = 600.0  # between making a folder and locking it lies a moment


@contextmanager
def run_folder() -> Iterator[Path]:
    """Make the folder of a run, hold it while a block runs, and delete it.

    Raises:
        RunError: where it cannot be made.
    """
    with writing_temporary_files():
        _tidy()
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


@contextmanager
def writing_temporary_files() -> Iterator[None]:
    """Tell what temporary files lack.

    Raises:
        RunError: where they cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write temporary files: {error.strerror or error}; make room for them, or set TMPDIR to a folder "
            f"that has some"
        ) from error


def is_held(folder: Path) -> bool:
    """Tell whether the process that made a folder still lives.

    Raises:
        OSError: where there is no such folder.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: others may look at the same time
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def _tidy() -> None:
    """Delete this user's folders that no process holds."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            status = folder.lstat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < _YOUNG_S:
                continue
            with locked(folder):
                shutil.rmtree(folder)


def write_private(path: Path, text: str) -> None:
    """Write a new file that its owner alone may read.

    Raises:
        OSError: where it exists or cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
