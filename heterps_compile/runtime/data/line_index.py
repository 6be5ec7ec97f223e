"""Where the lines of a large text file begin, so that a range of them is one read.

The file is gone through once, a few MiB at a time, and every ``LINES_A_STEP``-th line start is kept: 1.4 MB for 45
million lines. The index can be kept in a file beside; it is made anew when the data file is another one.

Left out: compressed files.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .data_file import DataFile

LINES_A_STEP = 256
"""Between two line starts that are kept."""

CHUNK_BYTES = 4 * 2**20
"""Read at a time where the index is made, unless told otherwise."""

_HEAD = 5  # numbers before the offsets in an index file: version, lines a step, lines, size, version of the file
_VERSION = 4
_NEWLINE = ord("\n")


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
        return self.file.read(begin, end)


def line_index(file: DataFile, kept: Path | None = None, *, chunk_bytes: int = CHUNK_BYTES) -> LineIndex:
    """Make the index of a file, or take the one that was kept.

    Args:
        file: The file.
        kept: Where an index is read from, and written to where there is none that fits; None keeps none.
        chunk_bytes: Read at a time.

    Raises:
        InputError: if the file cannot be read.
    """
    found = None if kept is None else _kept_index(file, kept)
    if found is not None:
        return found
    index = _make_index(file, chunk_bytes)
    if kept is not None:
        _keep(index, kept)
    return index


def kept_at(file: DataFile, folder: Path | None) -> Path | None:
    """Return where a folder keeps the index of a file; None without a folder."""
    return None if folder is None else folder / f"{file.name}.index.npy"


def _make_index(file: DataFile, chunk_bytes: int) -> LineIndex:
    starts: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
    lines = 0
    last = b""
    for position in range(0, file.size_bytes, chunk_bytes):
        chunk = file.read(position, min(position + chunk_bytes, file.size_bytes))
        ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == _NEWLINE)
        # the line after the n-th line end is line n
        first = -(lines + 1) % LINES_A_STEP
        starts.append((ends[first::LINES_A_STEP] + position + 1).astype(np.int64))
        lines, last = lines + len(ends), chunk[-1:]
    offsets = np.concatenate(starts)
    lines += last != b"\n"
    if offsets[-1] != file.size_bytes:  # else a line would begin where the file ends
        offsets = np.append(offsets, file.size_bytes)
    return LineIndex(file, int(lines), offsets)


def _kept_index(file: DataFile, kept: Path) -> LineIndex | None:
    """Return the index in a file, or None where there is none or it is of another data file."""
    try:
        numbers = np.load(kept, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    if numbers.dtype != np.int64 or numbers.ndim != 1 or len(numbers) < _HEAD + 2:
        return None
    if tuple(numbers[[0, 1, 3, 4]]) != _known_by(file):
        return None
    return LineIndex(file, int(numbers[2]), numbers[_HEAD:])


def _known_by(file: DataFile) -> tuple[int, ...]:
    return _VERSION, LINES_A_STEP, file.size_bytes, file.version_number


def _keep(index: LineIndex, kept: Path) -> None:
    """Write the index; where that cannot be, the next run makes it again, which costs time and nothing else."""
    version, step, *file = _known_by(index.file)
    head = (version, step, index.lines, *file)
    own = kept.with_name(f"{kept.name}.{os.getpid()}.npy")  # several ranks may write it at once
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.save(own, np.concatenate([np.array(head, np.int64), index.offsets]), allow_pickle=False)
        own.replace(kept)
