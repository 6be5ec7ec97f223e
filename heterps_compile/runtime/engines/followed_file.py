"""A log that the ranks of other machines write to, passed on line by line as it grows.

Left out: where it comes from (``slurm.py``).
"""

from contextlib import suppress
from pathlib import Path
from typing import TextIO

from heterps_compile.escape import printable

from .told_once import ToldOnce


class FollowedFile:
    """A file that is read as it grows; it need not be there yet."""

    def __init__(self, path: Path, to: TextIO) -> None:
        self._path, self._to = path, to
        self._at, self._rest = 0, b""
        self._told = ToldOnce()

    def poll(self, *, last: bool = False) -> None:
        """Pass on the lines that are whole; the last one too, where nothing more will come."""
        with suppress(OSError), self._path.open("rb") as file:
            file.seek(self._at)
            got = file.read()
            self._at += len(got)
            self._rest += got
        *lines, self._rest = self._rest.split(b"\n")
        if last and self._rest:
            lines.append(self._rest)
        for line in lines:
            text = printable(line.decode("utf-8", "replace").rstrip())
            if self._told.is_new(text):
                with suppress(OSError, ValueError):  # who read it has left: the run goes on
                    self._to.write(f"{text}\n")
                    self._to.flush()
