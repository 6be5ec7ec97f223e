"""Where the lines of a large text file begin, so that a range of them is one read.

The file is gone through once, a few MiB at a time, and every ``LINES_A_STEP``-th line start is kept: 1.4 MB for 45
million lines. The index can be kept in a file beside; it is made anew when the data file is another one.

Left out: quoted fields with line ends in them, compressed files.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heterps_compile.errors import InputError

from .data_file import DataFile

LINES_A_STEP = 256
"""Between two line starts that are kept."""

CHUNK_BYTES = 4 * 2**20
"""Read at a time where the index is made, unless told otherwise."""

_HEAD = 5  # numbers before the offsets in an index file: version, lines a step, lines, size, time of change
_VERSION = 1
_NEWLINE = 10


@dataclass(frozen=True, slots=True)
class LineIndex:
    """Where lines 0, ``LINES_A_STEP``, 2 * ``LINES_A_STEP`` and so on of a file begin.

    Attributes:
        file: The file.
        lines: How many it has; a last one without a line end counts.
        offsets: [steps + 1] in bytes, the end of the file last.
    """

    file: DataFile
    lines: int
    offsets: NDArray[np.int64]

    def read(self, first: int, count: int) -> bytes:
        """Return whole lines, those ``first`` on among them: from the kept start at or before line ``first``.

        Raises:
            RunError: where the file was changed since the index was made.
        """
        low, high = first // LINES_A_STEP, -(-(first + count) // LINES_A_STEP)
        begin, end = int(self.offsets[low]), int(self.offsets[min(high, len(self.offsets) - 1)])
        self.file.check()
        with self.file.path.open("rb") as file:
            file.seek(begin)
            return file.read(end - begin)


def line_index(file: DataFile, kept: Path | None = None, *, chunk_bytes: int = CHUNK_BYTES) -> LineIndex:
    """Make the index of a file, or take the one that was kept.

    Args:
        file: The file.
        kept: Where an index is read from, and written to where there is none that fits; None keeps none.
        chunk_bytes: Read at a time.

    Raises:
        InputError: where the file cannot be read.
    """
    found = None if kept is None else _kept_index(file, kept)
    if found is not None:
        return found
    index = _make_index(file, chunk_bytes)
    if kept is not None:
        _keep(index, kept)
    return index


def _make_index(file: DataFile, chunk_bytes: int) -> LineIndex:
    starts: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
    lines = position = 0
    last = b""
    try:
        with file.path.open("rb") as opened:
            while chunk := opened.read(chunk_bytes):
                ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == _NEWLINE)
                # the line after the n-th line end is line n
                first = -(lines + 1) % LINES_A_STEP
                starts.append((ends[first::LINES_A_STEP] + position + 1).astype(np.int64))
                lines, position, last = lines + len(ends), position + len(chunk), chunk[-1:]
    except OSError as error:
        raise InputError(f"cannot read {file.shown}: {error.strerror}") from error
    offsets = np.concatenate(starts)
    lines += last != b"\n"
    if offsets[-1] != position:  # else a line would begin where the file ends
        offsets = np.append(offsets, position)
    return LineIndex(file, int(lines), offsets)


def _kept_index(file: DataFile, kept: Path) -> LineIndex | None:
    """Return the index in a file, or None where there is none or it is of another data file."""
    try:
        numbers = np.load(kept, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    if numbers.dtype != np.int64 or numbers.ndim != 1 or len(numbers) < _HEAD + 2:
        return None
    if tuple(numbers[[0, 1, 3, 4]]) != (_VERSION, LINES_A_STEP, file.size_bytes, file.changed_ns):
        return None
    return LineIndex(file, int(numbers[2]), numbers[_HEAD:])


def _keep(index: LineIndex, kept: Path) -> None:
    """Write the index; where that cannot be, the next run makes it again, which costs time and nothing else."""
    head = (_VERSION, LINES_A_STEP, index.lines, index.file.size_bytes, index.file.changed_ns)
    own = kept.with_name(f"{kept.name}.{os.getpid()}.npy")  # several ranks may write it at once
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.save(own, np.concatenate([np.array(head, np.int64), index.offsets]), allow_pickle=False)
        own.replace(kept)
