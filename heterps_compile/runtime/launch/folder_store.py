"""A key-value store in a folder of one machine: a file for every key, written whole.

A value is written aside and renamed, or linked where the key must be new. So a process that is killed or stopped at any
moment, and a full disk, leave no part of a value behind and hold up no other process. ``torch.distributed.FileStore``
appends to one file under a lock: half a record, or a process that is stopped with the lock, blocks all others for ever
(PyTorch 2.13).

Not covered: what is in the store (``watch.py``, ``preflight.py``); what changes several times a second (``beats.py``).
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from secrets import token_hex

from torch.distributed import DistStoreError

from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.runtime.c10d import Store

_POLL_S = 0.01
_kept: list["FolderStore"] = []  # torch holds the C++ part of a store alone, whose calls need the Python part


class FolderDeletedError(RunError, DistStoreError):
    """The folder of a run was deleted while it ran."""


class FolderStore(Store):
    """The store in a folder, as ``torch.distributed`` takes stores; processes and threads may share one folder."""

    def __init__(self, folder: Path, patience: timedelta) -> None:
        """Open the store, which is there with the first value.

        Args:
            folder: Of this store alone, in a folder of this user.
            patience: For values.

        Raises:
            FolderDeletedError: if the folder that it is in was deleted.
            RunError: if it cannot be written.
        """
        super().__init__()
        self._folder, self._patience = folder, patience
        with self._writing():
            folder.mkdir(mode=0o700, exist_ok=True)
        _kept.append(self)

    @property
    def timeout(self) -> timedelta:
        """Return the patience for values."""
        return self._patience

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the patience for values."""
        self._patience = timeout

    def set(self, key: str, value: str | bytes) -> None:
        """Set a value."""
        self._write(value, lambda aside: aside.replace(self._file(key)))

    def get(self, key: str) -> bytes:
        """Wait for a value and return it."""
        self.wait([key], self._patience)
        return self._file(key).read_bytes()

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until keys are there.

        Raises:
            DistStoreError: if they are not in time.
        """
        patience_s = (self._patience if timeout is None else timeout).total_seconds()
        deadline_s = time.monotonic() + patience_s
        while not self.check(keys):
            if time.monotonic() > deadline_s:
                raise DistStoreError("wait timeout: not all keys came in time")
            time.sleep(_POLL_S)

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all of some keys are there.

        Raises:
            FolderDeletedError: if the folder was deleted.
        """
        found = all(self._file(key).exists() for key in keys)
        if not found and not self._folder.is_dir():
            raise self._deleted()
        return found

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        """Set a value unless the key is there; return the value.

        Raises:
            ValueError: if another value than none is expected.
        """
        if expected_value:
            raise ValueError("a store in a folder sets new keys alone")

        def link(aside: Path) -> None:
            with suppress(FileExistsError):
                os.link(aside, self._file(key))
            aside.unlink()

        self._write(desired_value, link)
        return self.get(key)

    def add(self, key: str, value: int) -> int:
        """Add to a number and return it."""
        with self._writing(), (self._folder / "lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            number = value + (int(self.get(key)) if self.check([key]) else 0)
            self.set(key, str(number))
        return number

    def delete_key(self, key: str) -> bool:
        """Delete a value; return whether there was one."""
        try:
            self._file(key).unlink()
        except FileNotFoundError:
            return False
        return True

    def has_extended_api(self) -> bool:
        """Return that values are got one by one."""
        return False

    def _file(self, key: str) -> Path:
        return self._folder / f"key-{sha256(key.encode()).hexdigest()}"

    def _write(self, value: str | bytes, place: Callable[[Path], object]) -> None:
        """Write a value aside and put it in its place."""
        aside = self._folder / f"new-{token_hex(8)}"
        with self._writing():
            try:
                aside.write_bytes(value.encode() if isinstance(value, str) else bytes(value))
                place(aside)
            except OSError:
                with suppress(OSError):
                    aside.unlink(missing_ok=True)
                raise

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Report what cannot be written.

        Raises:
            FolderDeletedError: if the folder was deleted.
            RunError: if it cannot be written for another reason.
        """
        try:
            yield
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not self._folder.is_dir():
                raise self._deleted() from error
            where = printable(repr(str(self._folder.parent)))
            raise RunError(
                f"the folder of the run {where} cannot be written: {error.strerror or error}. Fix: free space there, "
                f"or set TMPDIR to another folder"
            ) from error

    def _deleted(self) -> "FolderDeletedError":
        run = self._folder.parent
        return FolderDeletedError(
            f"the folder of the run {printable(str(run))!r} was deleted. Fix: start the run again, and keep what "
            f"begins with {printable(run.name[:12])} in the folder of temporary files"
        )
