"""Files far away in blocks that are kept: in this process's memory, and on a disk of this machine for all of its ranks.

Shi et al., MLSys 2021, arXiv 2010.10458 (the multi-level data cache)::

    memory    64 MiB of blocks, those used last                    above it: decoded groups of rows (row_groups.py)
    disk      FOLDER/<file and version>/<number>, all ever read    of the folder that HETERPS_DATA_CACHE names
    remote    a request for every run of blocks that are in neither

Each machine names a folder of its own, so it is a variable of the environment and no option of the run. What is kept is
of one version of a file, as the server tells it; a block has its SHA-256 before it, and one that is damaged is fetched
again. A block is written under another name first, so that ranks may share a folder.

Left out: taking away what was kept (delete the folder); a folder's limit, but that it stops growing where less than
1 GiB of its disk is free, which is told once; files without a version, which are refused.
"""

import hashlib
import io
import os
import shutil
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from heterps_compile.errors import InputError
from heterps_compile.escape import printable

from .data_file import DataFile
from .remote_file import RemoteFile, file_over

VARIABLE = "HETERPS_DATA_CACHE"
BLOCK_BYTES = 2**20
MEMORY_BYTES = 64 * 2**20
LEAST_FREE_BYTES = 2**30

MEMORY, DISK, REMOTE = "memory", "disk", "remote"
"""Where bytes came from."""

_HASH_BYTES = 32


class BlockCache:
    """Blocks of files, those of a process in memory and those of a machine on its disk.

    Attributes:
        counts: Bytes that were asked for, by where they came from.
    """

    def __init__(
        self,
        folder: Path,
        *,
        block_bytes: int = BLOCK_BYTES,
        memory_bytes: int = MEMORY_BYTES,
        least_free_bytes: int = LEAST_FREE_BYTES,
    ) -> None:
        """Begin with what is in a folder.

        Args:
            folder: Of blocks; made where there is none, for this user alone.
            block_bytes: Of a block.
            memory_bytes: Of those in memory.
            least_free_bytes: Of the disk, below which nothing more is written.

        Raises:
            InputError: where the folder cannot be made or written.
        """
        self.counts: Counter[str] = Counter()
        self._folder, self._block_bytes = folder, block_bytes
        self._memory_bytes, self._least_free_bytes = memory_bytes, least_free_bytes
        self._blocks: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._held_bytes = 0
        self._is_full = False
        self._one_at_a_time = threading.RLock()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            usable = os.access(folder, os.W_OK | os.X_OK)
        except OSError as error:
            raise InputError(
                f"the folder {printable(str(folder))!r} for blocks of files far away ({VARIABLE}) cannot be made: "
                f"{error.strerror}; name another"
            ) from error
        if not usable:
            raise InputError(
                f"the folder {printable(str(folder))!r} for blocks of files far away ({VARIABLE}) cannot be written; "
                f"name another"
            )

    def read(self, file: RemoteFile, begin: int, end: int) -> bytes:
        """Return bytes ``begin`` to ``end - 1`` of a file.

        Raises:
            HeterpsError: where what is not kept cannot be fetched.
        """
        if begin >= end:
            return b""
        key = _key(file)
        with self._one_at_a_time:
            wanted = range(begin // self._block_bytes, (end - 1) // self._block_bytes + 1)
            found = {number: block for number in wanted if (block := self._kept(file, key, number)) is not None}
            levels = {number: level for number, (level, _) in found.items()}
            blocks = {number: block for number, (_, block) in found.items()}
            for run in _runs([number for number in wanted if number not in blocks]):
                fetched = file.read(run.start * self._block_bytes, min(run.stop * self._block_bytes, file.size_bytes))
                for number in run:
                    at = (number - run.start) * self._block_bytes
                    blocks[number] = fetched[at : at + self._block_bytes]
                    self._write(key, number, blocks[number])
            for number in wanted:
                self._remember(key, number, blocks[number])
                first = number * self._block_bytes
                asked = min(end, first + self._block_bytes) - max(begin, first)
                self.counts[levels.get(number, REMOTE)] += asked
        whole = b"".join(blocks[number] for number in wanted)
        first = wanted.start * self._block_bytes
        return whole[begin - first : end - first]

    def _kept(self, file: RemoteFile, key: str, number: int) -> tuple[str, bytes] | None:
        """Return a block and where it is kept."""
        block = self._blocks.get((key, number))
        if block is not None:
            return MEMORY, block
        try:
            written = self._path(key, number).read_bytes()
        except OSError:
            return None
        block = written[_HASH_BYTES:]
        size = min(self._block_bytes, file.size_bytes - number * self._block_bytes)
        is_whole = len(block) == size and hashlib.sha256(block).digest() == written[:_HASH_BYTES]
        return (DISK, block) if is_whole else None

    def _remember(self, key: str, number: int, block: bytes) -> None:
        if (key, number) not in self._blocks:
            self._held_bytes += len(block)
        self._blocks[key, number] = block
        self._blocks.move_to_end((key, number))
        while self._held_bytes > self._memory_bytes and len(self._blocks) > 1:
            self._held_bytes -= len(self._blocks.popitem(last=False)[1])

    def _write(self, key: str, number: int, block: bytes) -> None:
        """Keep a block on the disk, where there is room; what cannot be kept is fetched again."""
        if self._is_full:
            return
        path = self._path(key, number)
        written = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            if shutil.disk_usage(self._folder).free < self._least_free_bytes + len(block):
                raise OSError(0, f"less than {self._least_free_bytes:,} bytes of its disk are free")
            path.parent.mkdir(mode=0o700, exist_ok=True)
            written.write_bytes(hashlib.sha256(block).digest() + block)
            written.replace(path)
        except OSError as error:
            self._is_full = True
            written.unlink(missing_ok=True)
            shown = printable(str(self._folder))
            print(f"note: {shown!r} keeps no more blocks of files far away: {error.strerror}", file=sys.stderr)

    def _path(self, key: str, number: int) -> Path:
        return self._folder / key / str(number)


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A file far away whose blocks are kept.

    Attributes:
        remote: The file.
        cache: Of its blocks.
    """

    remote: RemoteFile
    cache: BlockCache

    @property
    def shown(self) -> str:
        """Return its address for messages."""
        return self.remote.shown

    @property
    def name(self) -> str:
        """Return the last part of its address."""
        return self.remote.name

    @property
    def size_bytes(self) -> int:
        """Return its bytes."""
        return self.remote.size_bytes

    @property
    def version_number(self) -> int:
        """Return 56 bits that differ when the file does."""
        return self.remote.version_number

    def check_decoded(self) -> None:
        """Check nothing, as for the remote file."""

    def check(self) -> None:
        """Compare size and version with the server's."""
        self.remote.check()

    def read(self, begin: int, end: int) -> bytes:
        """Return a range of bytes."""
        return self.cache.read(self.remote, begin, end)

    def for_arrow(self) -> io.RawIOBase:
        """Return a file object that reads what is kept, and fetches what is not."""
        return file_over(self)

    def fingerprint(self) -> str:
        """Return its ETag and size; where there is none a hash of its size and ends."""
        return self.remote.fingerprint()


def with_blocks_kept(file: RemoteFile) -> DataFile:
    """Return a file whose blocks are kept where this machine's environment names a folder for them, else itself.

    Raises:
        InputError: where the server tells no version of it, or the folder cannot be written.
    """
    folder = os.environ.get(VARIABLE)
    if not folder:
        return file
    if not file.version:
        raise InputError(
            f"the server tells neither an ETag nor a time of {file.shown}, so that blocks which are kept could be of "
            f"another file of that name; read it without {VARIABLE}"
        )
    return CachedFile(file, _cache_at(folder))


@lru_cache(maxsize=8)
def _cache_at(folder: str) -> BlockCache:
    cache = BlockCache(Path(folder))
    _of_process.append(cache)
    return cache


_of_process: list[BlockCache] = []


def bytes_by_level() -> Mapping[str, int]:
    """Return the bytes of files far away that this process has asked for, by where they came from."""
    total: Counter[str] = Counter()
    for cache in _of_process:
        total += cache.counts
    return dict(total)


def _key(file: RemoteFile) -> str:
    """Return a name for one version of a file."""
    said = f"{file.url}\0{file.size_bytes}\0{file.version}"
    return hashlib.sha256(said.encode()).hexdigest()[:40]


def _runs(numbers: list[int]) -> list[range]:
    """Return ascending numbers as ranges of neighbours."""
    found: list[range] = []
    for number in numbers:
        if found and found[-1].stop == number:
            found[-1] = range(found[-1].start, number + 1)
        else:
            found.append(range(number, number + 1))
    return found
