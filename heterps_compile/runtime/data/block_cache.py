"""Blocks of remote files on a disk of this machine, which its ranks share.

Shi et al., MLSys 2021, arXiv 2010.10458 (the multi-level data cache)::

    decoded   256 MiB of groups of rows in memory                  parquet.py
    disk      FOLDER/<file and version>/<number>, all ever read    of the folder that HETERPS_DATA_CACHE names
    remote    a request for every run of blocks that are missing

Each machine names a folder of its own, so it is a variable of the environment and no option of the run. A block is of
one version of a file. It is written after its SHA-256 under a temporary name and renamed, so ranks may share a folder,
and a damaged block is fetched again.

fsspec's ``blockcache`` does not give these: after a request that failed, in a file that two processes begin, and for a
damaged block it returns other bytes without an error (fsspec 2026.9).

Not covered: removal of blocks (delete the folder); a limit, except that nothing is written when less than 1 GiB of the
disk is free, which is reported once; files without a version, which are refused.
"""

import hashlib
import os
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from heterps_compile.errors import InputError
from heterps_compile.escape import printable

from .remote_file import RemoteFile

VARIABLE = "HETERPS_DATA_CACHE"
BLOCK_BYTES = 2**20
LEAST_FREE_BYTES = 2**30

DISK, REMOTE = "disk", "remote"
"""Where bytes came from."""

_HASH_BYTES = 32


class BlockCache:
    """Blocks of files on a disk.

    Attributes:
        counts: Requested bytes by where they came from.
    """

    def __init__(
        self, folder: Path, *, block_bytes: int = BLOCK_BYTES, least_free_bytes: int = LEAST_FREE_BYTES
    ) -> None:
        """Make the folder, or continue with its blocks.

        Args:
            folder: Of blocks; made for this user alone.
            block_bytes: Of a block.
            least_free_bytes: Of the disk, below which nothing more is written.

        Raises:
            InputError: where the folder cannot be made or written.
        """
        self.counts: Counter[str] = Counter()
        self._folder, self._block_bytes, self._least_free_bytes = folder, block_bytes, least_free_bytes
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
            HeterpsError: where missing blocks cannot be fetched.
        """
        if begin >= end:
            return b""
        size, folder = self._block_bytes, self._folder / _key(file)
        with self._one_at_a_time:
            wanted = range(begin // size, (end - 1) // size + 1)
            blocks = {n: self._kept(folder, n, min(size, file.size_bytes - n * size)) for n in wanted}
            missing = [number for number, block in blocks.items() if block is None]
            for run in _runs(missing):
                fetched = RemoteFile.read(file, run.start * size, min(run.stop * size, file.size_bytes))
                for number in run:
                    at = (number - run.start) * size
                    blocks[number] = fetched[at : at + size]
                    self._write(folder, number, fetched[at : at + size])
            for number in wanted:
                requested = min(end, (number + 1) * size) - max(begin, number * size)
                self.counts[REMOTE if number in missing else DISK] += requested
        first = wanted.start * size
        return b"".join(block for block in blocks.values() if block is not None)[begin - first : end - first]

    def _kept(self, folder: Path, number: int, size_bytes: int) -> bytes | None:
        """Return a block from the disk; None where it is missing, damaged or of another size."""
        try:
            written = (folder / str(number)).read_bytes()
        except OSError:
            return None
        block = written[_HASH_BYTES:]
        is_intact = len(block) == size_bytes and hashlib.sha256(block).digest() == written[:_HASH_BYTES]
        return block if is_intact else None

    def _write(self, folder: Path, number: int, block: bytes) -> None:
        """Write a block if there is room; without room it is fetched again."""
        if self._is_full:
            return
        written = folder / f"{number}.{os.getpid()}.{threading.get_ident()}"
        try:
            if shutil.disk_usage(self._folder).free < self._least_free_bytes + len(block):
                raise OSError(0, f"less than {self._least_free_bytes:,} bytes of its disk are free")
            folder.mkdir(mode=0o700, exist_ok=True)
            written.write_bytes(hashlib.sha256(block).digest() + block)
            written.replace(folder / str(number))
        except OSError as error:
            self._is_full = True
            written.unlink(missing_ok=True)
            shown = printable(str(self._folder))
            print(f"note: {shown!r} keeps no more blocks of files far away: {error.strerror}", file=sys.stderr)


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedFile(RemoteFile):
    """A file far away whose blocks are kept.

    Attributes:
        cache: Of its blocks.
    """

    cache: BlockCache

    def read(self, begin: int, end: int) -> bytes:
        """Return a range of bytes."""
        return self.cache.read(self, begin, end)


def with_blocks_kept(file: RemoteFile) -> RemoteFile:
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
    return CachedFile(file.url, file.size_bytes, file.version, file.waits_s, cache=_cache_at(folder))


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


_measured: dict[str, int] = {}


def measure_read() -> dict[str, dict[str, int]]:
    """Measure the bytes read since the last call, by where they came from."""
    read, before = bytes_by_level(), dict(_measured)
    _measured.update(read)
    new = {level: size - before.get(level, 0) for level, size in read.items()}
    return {"data_bytes": {level: size for level, size in new.items() if size}}


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
