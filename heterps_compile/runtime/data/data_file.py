"""Data files that must not change while a run reads them.

A local file is recorded as inode, size and time of change when it is opened. These are compared whenever samples of it
are read, so a file that is overwritten, replaced or removed ends the run::

    overwritten in place        size or time of change differs
    replaced, as by ``cp -p``   inode differs, even where size and time do not
    changed during a read       compared again after the read

A checkpoint records the SHA-256 of a file up to :data:`WHOLE_BYTES`; of a larger one its size and :data:`SAMPLES`
pieces from begin to end, 64 MiB in all.

Not covered: a write in place that keeps the size and resets the time of change; changes of a larger file between its
pieces, on resume; locking.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, Protocol

from heterps_compile.errors import InputError, RunError
from heterps_compile.escape import printable
from heterps_compile.plain_file import open_plain

WHOLE_BYTES = 256 * 2**20
"""Up to this size all of a file counts."""

SAMPLES = 256
"""Pieces of a larger file that count, its begin and its end among them."""

_SAMPLE_BYTES = 256 * 2**10
_END_BYTES = 64 * 2**10


class DataFile(Protocol):
    """A file as it was when it was opened.

    ``shown`` is its place for messages, in quotation marks; ``name`` the last part of that; ``version`` differs when
    the file does, and is "" if a server reports nothing that changes with the file.
    """

    @property
    def shown(self) -> str: ...  # noqa: D102 - above

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def size_bytes(self) -> int: ...  # noqa: D102

    @property
    def version(self) -> str: ...  # noqa: D102

    def check(self) -> None:
        """Compare the file with its record; a remote server is asked.

        Raises:
            RunError: where it was changed or removed since it was opened.
        """

    def check_decoded(self) -> None:
        """Compare before rows decoded earlier are returned; a remote server is not asked.

        Raises:
            RunError: as :meth:`check`.
        """

    def read(self, begin: int, end: int) -> bytes:
        """Return bytes ``begin`` to ``end - 1``; both lie inside the file.

        Raises:
            InputError: where they cannot be read.
        """
        ...

    def for_arrow(self) -> Any:
        """Return what pyarrow reads it from: a path, or a file object."""

    def fingerprint(self) -> str:
        """Return what tells its content from another.

        Raises:
            InputError: where it cannot be read.
        """
        ...


def ends(file: DataFile) -> Iterator[bytes]:
    """Yield the first and the last 64 KiB of a file.

    Raises:
        InputError: where it cannot be read.
    """
    yield file.read(0, min(_END_BYTES, file.size_bytes))
    yield file.read(max(0, file.size_bytes - _END_BYTES), file.size_bytes)


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file on a disk of this machine.

    Attributes:
        path: Its path.
        size_bytes: Its size when it was opened.
        changed_ns: Its time of change then.
        inode: Its inode then.
    """

    path: Path
    size_bytes: int
    changed_ns: int
    inode: int

    @property
    def shown(self) -> str:
        """Return its path for messages."""
        return repr(printable(os.fspath(self.path)))

    @property
    def name(self) -> str:
        """Return its name."""
        return self.path.name

    @property
    def version(self) -> str:
        """Return its inode and time of change."""
        return f"{self.inode} {self.changed_ns}"

    def check(self) -> None:
        """Compare inode, size and time of change with the record."""
        try:
            found = self.path.stat()
        except OSError as error:
            raise self._gone(error) from error
        self._compare(found)

    def check_decoded(self) -> None:
        """Compare inode, size and time of change with the record."""
        self.check()

    def read(self, begin: int, end: int) -> bytes:
        """Read a range of bytes."""
        with self._opened() as file:
            file.seek(begin)
            return file.read(end - begin)

    def for_arrow(self) -> Path:
        """Return the path."""
        return self.path

    def fingerprint(self, whole_bytes: int = WHOLE_BYTES) -> str:
        """Hash the file, or samples of one larger than ``whole_bytes``, with SHA-256."""
        with self._opened() as file:
            if self.size_bytes <= whole_bytes:
                return hashlib.file_digest(file, "sha256").hexdigest()
            made = hashlib.sha256(b"%d" % self.size_bytes)
            for index in range(SAMPLES):
                file.seek((self.size_bytes - _SAMPLE_BYTES) * index // (SAMPLES - 1))
                made.update(file.read(_SAMPLE_BYTES))
            return made.hexdigest()

    @contextmanager
    def _opened(self) -> Iterator[BufferedReader]:
        """Open the file; compare it with the record before and after it is read."""
        try:
            with open_plain(self.path) as file:
                self._compare(os.fstat(file.fileno()))
                yield file
                self._compare(os.fstat(file.fileno()))
        except FileNotFoundError as error:
            raise self._gone(error) from error
        except OSError as error:
            raise InputError(f"cannot read {self.shown}: {error.strerror}") from error

    def _compare(self, found: os.stat_result) -> None:
        if (found.st_ino, found.st_size, found.st_mtime_ns) != (self.inode, self.size_bytes, self.changed_ns):
            raise RunError(
                f"{self.shown} was changed during the run: it had {self.size_bytes:,} bytes when it was opened and has "
                f"{found.st_size:,} now, written anew; start again on a file that nobody writes to"
            )

    def _gone(self, error: OSError) -> RunError:
        return RunError(f"{self.shown} was there when the run began and cannot be read now: {error.strerror}")


def local_file(path: Path) -> LocalFile:
    """Record a file's inode, size and time of change.

    Raises:
        InputError: where it cannot be read, is no file, or is empty.
    """
    shown = repr(printable(os.fspath(path)))
    try:
        with open_plain(path) as file:
            found = os.fstat(file.fileno())
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {shown}: {getattr(error, 'strerror', None) or error}") from error
    if found.st_size == 0:
        raise InputError(f"{shown} is empty; expected a file with samples")
    return LocalFile(path, found.st_size, found.st_mtime_ns, found.st_ino)
