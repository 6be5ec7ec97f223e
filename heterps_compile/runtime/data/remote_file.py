"""Data files far away, through fsspec: ``s3://bucket/x.parquet``, ``https://host/x.csv``, ``gs://`` and so on.

A range of samples is a range of bytes, and nothing else is fetched. A file is known by its size and by what the server
says of its version (an ETag, else a time of change); both are looked at again before each group of samples.

A request that fails is tried again after 0.5, 1 and 2 seconds, beside what the protocol's package tries by itself.
What cannot become better (no such file, access denied) is told at once. Credentials come from where that package looks
for them, the environment above all, and never from the address.

Left out: several requests at a time; copies on this machine's disk (``block_cache.py``).
"""

import hashlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from heterps_compile.errors import HeterpsError, InputError, RunError
from heterps_compile.escape import one_line, printable
from heterps_compile.packages import need

from .data_file import ends

T = TypeVar("T")

WAITS_S = (0.5, 1.0, 2.0)
"""Before a request that failed is tried again, unless told otherwise."""

ETAG = "ETag"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]*://")
_ETAGS = ("ETag", "etag", "e_tag")
_TIMES = ("LastModified", "last_modified", "Last-Modified", "mtime", "modified", "updated", "created")
_SIZES = ("size", "Size", "ContentLength")
_HOPELESS = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, ImportError, ValueError)


def is_remote(where: str) -> bool:
    """Tell whether a place is an address, such as ``s3://bucket/x.parquet``, and no path."""
    return _URL.match(where) is not None


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file as its server told of it when it was opened.

    Attributes:
        url: Its address.
        size_bytes: Of it.
        version: The server's word for this version, such as ``ETag "5d41"``; "" where it has none.
        waits_s: Before a request that failed is tried again.
    """

    url: str
    size_bytes: int
    version: str
    waits_s: tuple[float, ...] = WAITS_S

    @property
    def shown(self) -> str:
        """Return its address for messages."""
        return repr(printable(self.url))

    @property
    def name(self) -> str:
        """Return the last part of its address."""
        return self.url.rsplit("/", 1)[-1]

    def check_decoded(self) -> None:
        """Check nothing: a request for every micro-batch costs more than it finds."""

    def check(self) -> None:
        """Compare size and version with the server's."""
        now = remote_file(self.url, self.waits_s)
        if (now.size_bytes, now.version) != (self.size_bytes, self.version):
            raise RunError(
                f"{self.shown} was changed during the run: it had {self.size_bytes:,} bytes and "
                f"{printable(self.version) or 'no version'} when it was opened, and has {now.size_bytes:,} and "
                f"{printable(now.version) or 'none'} now; start again on a file that nobody writes to"
            )

    def read(self, begin: int, end: int) -> bytes:
        """Return a range of bytes."""
        if begin >= end:
            return b""
        system, path = _system(self.url)
        found = _ask(self.url, lambda: system.cat_file(path, start=begin, end=end), self.waits_s)
        if len(found) != end - begin:
            raise InputError(
                f"the server gave {len(found):,} bytes of {self.shown} where {end - begin:,} were asked for; it must "
                f"serve ranges of bytes, and the file must stay as it is"
            )
        return bytes(found)

    def for_arrow(self) -> Any:
        """Return fsspec's file object over its ranges."""
        from fsspec.spec import AbstractBufferedFile  # noqa: PLC0415 - an extra

        read = self.read

        class Ranges(AbstractBufferedFile):
            def _fetch_range(self, start: int, end: int) -> bytes:
                return read(start, end)

        make: Any = Ranges  # fsspec has no types
        return make(None, self.name, "rb", cache_type="none", size=self.size_bytes)

    def fingerprint(self) -> str:
        """Return its ETag and size; where there is none a hash of its size and ends."""
        kind, _, said = self.version.partition(" ")
        if kind == ETAG:
            return f"{ETAG}:{said}:{self.size_bytes}"
        made = hashlib.sha256(b"%d" % self.size_bytes)
        for piece in ends(self):
            made.update(piece)
        return f"ends:{made.hexdigest()}"


def remote_file(url: str, waits_s: tuple[float, ...] = WAITS_S) -> RemoteFile:
    """Ask the server for a file's size and version.

    Raises:
        InputError: where there is no such file, it is empty, access is denied, or the protocol is unknown.
        RunError: where the server cannot be reached.
        MissingPackageError: where fsspec is not installed.
    """
    system, path = _system(url)

    def ask() -> Mapping[str, Any]:
        system.invalidate_cache()
        found: Mapping[str, Any] = system.info(path)
        return found

    found = _ask(url, ask, waits_s)
    size = next((found[name] for name in _SIZES if found.get(name) is not None), None)
    shown = repr(printable(url))
    if found.get("type") == "directory":
        raise InputError(f"{shown} is no file; expected one with samples")
    if not isinstance(size, int):
        raise InputError(f"the server does not tell the size of {shown}; copy the file to a place that does")
    if size == 0:
        raise InputError(f"{shown} is empty; expected a file with samples")
    etag = next((str(found[name]) for name in _ETAGS if found.get(name)), None)
    changed = next((f"{name} {found[name]}" for name in _TIMES if found.get(name)), "")
    return RemoteFile(url, size, changed if etag is None else f"{ETAG} {etag}", waits_s)


def remote_names(url: str) -> list[str]:
    """Return the addresses in a folder far away, or those that a pattern with ``*`` fits, in their order.

    Raises:
        HeterpsError: as :func:`remote_file`.
    """
    system, path = _system(url)
    found = _ask(url, lambda: system.glob(path) if "*" in path else system.ls(path, detail=False))
    return sorted(str(system.unstrip_protocol(name)).rstrip("/") for name in found)


def _system(url: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path there."""
    need("reading files far away", "remote")
    import fsspec.core  # noqa: PLC0415 - an extra

    parts = urlsplit(url)
    if "::" in url or parts.scheme in ("file", "local"):
        raise InputError(f"{printable(url)!r} is no address of a file far away; write s3://bucket/x.parquet, or a path")
    if parts.username or parts.password:
        raise InputError(
            f"the address of a file at {printable(str(parts.hostname))!r} has credentials in it, which a checkpoint "
            f"and messages would show; leave them out and set them in the environment"
        )
    found: tuple[Any, str] = _ask(url, lambda: fsspec.core.url_to_fs(url))  # type: ignore[no-untyped-call]
    return found


def _ask(url: str, request: Callable[[], T], waits_s: tuple[float, ...] = WAITS_S) -> T:
    """Return what a request gives, tried again where that may help."""
    shown = repr(printable(url))
    for wait_s in (*waits_s, None):
        try:
            return request()
        except HeterpsError:
            raise
        except _HOPELESS as error:
            raise InputError(f"cannot read {shown}: {_reason(error)}") from error
        except Exception as error:  # a protocol's package may raise any
            if wait_s is None:
                raise RunError(
                    f"cannot read {shown} in {len(waits_s) + 1} attempts: {_reason(error)}; is the network there, and "
                    f"are the credentials in the environment?"
                ) from error
            time.sleep(wait_s)
    raise AssertionError  # the last attempt returns or raises


def _reason(error: Exception) -> str:
    said = one_line(str(error)).strip()[:200]
    if isinstance(error, FileNotFoundError):
        return "there is no such file or bucket"
    if isinstance(error, PermissionError):
        return f"access is denied ({said or 'no reason given'}); set credentials that may read it in the environment"
    if isinstance(error, ImportError):
        return f"its protocol needs another package ({said})"
    return said or type(error).__name__
