"""Data files that stay as they were: each is remembered as it was opened, and looked at again before it is read.

What tells a file on disk from another one is its SHA-256, up to :data:`WHOLE_BYTES`; of a larger one its size and
:data:`SAMPLES` pieces from begin to end, 64 MiB in all.

Left out: changes of a larger file that lie between its samples; locking: a file that is written while it is read is
refused, not waited for; files far away (``remote_file.py``).
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
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

    ``shown`` is where it lies, for messages, in quotation marks; ``name`` the last part of that; ``changed_ns`` a
    number that is another one when the file is.
    """

    @property
    def shown(self) -> str: ...  # noqa: D102 - above

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def size_bytes(self) -> int: ...  # noqa: D102

    @property
    def changed_ns(self) -> int: ...  # noqa: D102

    def check(self) -> None:
        """Check that it is still the same.

        Raises:
            RunError: where it was changed or removed since it was opened.
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
    """A file on a disk of this machine."""

    path: Path
    size_bytes: int
    changed_ns: int

    @property
    def shown(self) -> str:
        """Return its path for messages."""
        return repr(printable(os.fspath(self.path)))

    @property
    def name(self) -> str:
        """Return its name."""
        return self.path.name

    def check(self) -> None:
        """Check that it is still the same."""
        try:
            found = self.path.stat()
        except OSError as error:
            raise RunError(
                f"{self.shown} was there when the run began and cannot be read now: {error.strerror}"
            ) from error
        if (found.st_size, found.st_mtime_ns) != (self.size_bytes, self.changed_ns):
            raise RunError(
                f"{self.shown} was changed during the run: it had {self.size_bytes:,} bytes when it was opened and has "
                f"{found.st_size:,} now, written anew; start again on a file that nobody writes to"
            )

    def read(self, begin: int, end: int) -> bytes:
        """Return a range of bytes."""
        try:
            with self.path.open("rb") as file:
                file.seek(begin)
                return file.read(end - begin)
        except OSError as error:
            raise InputError(f"cannot read {self.shown}: {error.strerror}") from error

    def for_arrow(self) -> Path:
        """Return the path."""
        return self.path

    def fingerprint(self, whole_bytes: int = WHOLE_BYTES) -> str:
        """Return the SHA-256 of the file, or of samples of one larger than ``whole_bytes``."""
        try:
            with self.path.open("rb") as file:
                if self.size_bytes <= whole_bytes:
                    return hashlib.file_digest(file, "sha256").hexdigest()
                made = hashlib.sha256(b"%d" % self.size_bytes)
                for index in range(SAMPLES):
                    file.seek((self.size_bytes - _SAMPLE_BYTES) * index // (SAMPLES - 1))
                    made.update(file.read(_SAMPLE_BYTES))
                return made.hexdigest()
        except OSError as error:
            raise InputError(f"cannot read {self.shown}: {error.strerror}") from error


def local_file(path: Path) -> LocalFile:
    """Remember a file as it is.

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
    return LocalFile(path, found.st_size, found.st_mtime_ns)
