"""Rows that are stored in groups, each decoded as a whole: a range of samples is a few groups and nothing else is read.

Decoded columns are kept while there is room, since a micro-batch is mostly smaller than a group::

    file 0   | group 0: rows 0-99 | group 1: rows 100-199 |
    file 1   | group 0: rows 200-249 |
    samples 150 to 219        group 1 of file 0 from row 50, group 0 of file 1 to row 20

Left out: how a group is decoded (``parquet.py``).
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from .data_file import DataFile
from .sample_source import join

CACHE_BYTES = 256 * 2**20
"""Of decoded groups, unless told otherwise; the group read last is kept in any case."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A group: its file, its number there, its first row there, its first sample, how many rows it has."""

    file: int
    index: int
    first_row: int
    first: int
    rows: int


class RowGroups:
    """The groups of some files, in order."""

    def __init__(
        self,
        groups: Sequence[RowGroup],
        files: Sequence[DataFile],
        decode: Callable[[RowGroup, Sequence[str]], Mapping[str, Tensor]],
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        """Take groups, their files, and the function that decodes columns of a group."""
        self._groups = groups
        self._files = files
        self._decode = decode
        self._cache_bytes = cache_bytes
        self._starts = [group.first for group in groups]
        self._cached: OrderedDict[tuple[int, str], Tensor] = OrderedDict()

    @property
    def samples(self) -> int:
        """Return the number of rows of all groups."""
        return sum(group.rows for group in self._groups)

    def read(self, first: int, count: int, columns: Sequence[str]) -> dict[str, Tensor]:
        """Return a range of rows, which must be inside.

        Raises:
            RunError: where a file of the range was changed, even where its rows were decoded before.
        """
        parts = []
        place = bisect_right(self._starts, first) - 1
        while count > 0:
            group = self._groups[place]
            low = first - group.first
            here = min(count, group.rows - low)
            if here > 0:
                self._files[group.file].check_decoded()
                decoded = self._decoded(place, columns)
                parts.append({name: decoded[name][low : low + here] for name in columns})
            place, first, count = place + 1, first + here, count - here
        return join(parts)

    def _decoded(self, place: int, columns: Sequence[str]) -> Mapping[str, Tensor]:
        """Return the columns of a group as tensors, from the cache or the file."""
        missing = [name for name in dict.fromkeys(columns) if (place, name) not in self._cached]
        fresh = self._decode(self._groups[place], missing) if missing else {}
        self._cached |= {(place, name): tensor for name, tensor in fresh.items()}
        found = {name: self._cached[place, name] for name in columns}
        for name in columns:
            self._cached.move_to_end((place, name))
        held_bytes = sum(tensor.nbytes for tensor in self._cached.values())
        while held_bytes > self._cache_bytes and len(self._cached) > len(found):
            held_bytes -= self._cached.popitem(last=False)[1].nbytes
        return found
