"""Data files that stay as they were: each is remembered as it was opened, and looked at again before it is read.

What tells a file from another one is its SHA-256, up to :data:`WHOLE_BYTES`; of a larger one its size and
:data:`SAMPLES` pieces from begin to end, 64 MiB in all.

Left out: changes of a larger file that lie between its samples; locking: a file that is written while it is read is
refused, not waited for.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from heterps_compile.errors import InputError, RunError
from heterps_compile.escape import printable

WHOLE_BYTES = 256 * 2**20
"""Up to this size all of a file counts."""

SAMPLES = 256
"""Pieces of a larger file that count, its begin and its end among them."""

_SAMPLE_BYTES = 256 * 2**10
_END_BYTES = 64 * 2**10


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file as it was when it was opened."""

    path: Path
    size_bytes: int
    changed_ns: int

    @property
    def shown(self) -> str:
        """Return its path for messages."""
        return repr(printable(os.fspath(self.path)))

    def check(self) -> None:
        """Check that it is still the same.

        Raises:
            RunError: where it was changed or removed since it was opened.
        """
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

    def ends(self) -> Iterator[bytes]:
        """Yield its first and its last 64 KiB.

        Raises:
            InputError: where it cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                yield file.read(_END_BYTES)
                file.seek(max(0, self.size_bytes - _END_BYTES))
                yield file.read(_END_BYTES)
        except OSError as error:
            raise InputError(f"cannot read {self.shown}: {error.strerror}") from error

    def fingerprint(self, whole_bytes: int = WHOLE_BYTES) -> str:
        """Return the SHA-256 of the file, or of samples of one larger than ``whole_bytes``.

        Raises:
            InputError: where it cannot be read.
        """
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


def data_file(path: Path) -> DataFile:
    """Remember a file as it is.

    Raises:
        InputError: where it cannot be read, is no file, or is empty.
    """
    shown = repr(printable(os.fspath(path)))
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"{shown} is no file; expected one with samples")
        with path.open("rb"):
            pass
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {shown}: {getattr(error, 'strerror', None) or error}") from error
    if found.st_size == 0:
        raise InputError(f"{shown} is empty; expected a file with samples")
    return DataFile(path, found.st_size, found.st_mtime_ns)
