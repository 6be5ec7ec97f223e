"""What tells data from other data, so that a run that goes on reads on in the same ones.

Samples are counted, so other data would be read on in the middle. A file is known by its size and by its first and last
64 KiB: Parquet keeps its statistics at the end, and other text mostly differs in its first lines. Names of files do not
count, they may move; nor do files that come after those that were there, until the data are gone through again::

    then   day_0  day_1            now   day_0  day_1  day_2       reads on
                                         day_1  day_2              other data

That is quick, and what ranks compare. Where a run writes checkpoints, its first rank takes the contents of the files
too (``data_file.py``), four at a time: a file that was changed in the middle is no longer the same.

An iterable is known by its first item: a shuffle without a seed gives every rank another one.

Left out: what an iterable gives later; of objects of your own only columns and
length are known.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable
from urllib.parse import quote

from heterps_compile.escape import printable

from .data_file import DataFile
from .sample_source import Source

_DIGITS = 16  # of a digest; it tells data apart, and protects nothing
_COLUMNS_SHOWN = 8
_AT_ONCE = 4  # files that are read through; hashing leaves Python's lock alone


@dataclass(frozen=True, slots=True)
class Part:
    """A row of samples, such as a file.

    Attributes:
        samples: In it; None where nobody knows.
        digest: Of what it holds and how it is read; "" where nobody knows.
    """

    samples: int | None
    digest: str = ""


@runtime_checkable
class Known(Protocol):
    """A source that can tell its samples from others."""

    def parts(self) -> tuple[Part, ...]:
        """Return what the samples lie in, in their order."""
        ...


@dataclass(frozen=True, slots=True)
class FileContent:
    """A data file: its name, which does not count, and its fingerprint.

    A fingerprint is of a kind: the SHA-256 of a file on disk, the ETag of one far away. Where a file moved from the one
    to the other, its size and its ends tell.
    """

    name: str
    fingerprint: str

    @property
    def kind(self) -> str:
        """Return the kind of the fingerprint."""
        kind, mark, _ = self.fingerprint.partition(":")
        return kind if mark else "SHA-256"


@runtime_checkable
class FromFiles(Protocol):
    """A source that reads files."""

    @property
    def files(self) -> Sequence[DataFile]:
        """Return them, in the order of their samples."""
        ...


@dataclass(frozen=True, slots=True)
class Identity:
    """What a run reads.

    Attributes:
        name: For people; it does not count.
        columns: That there are, by name.
        parts: That the samples lie in, in their order.
        files: Contents of the files it is read from; empty where there are none, or they were not looked at.
    """

    name: str
    columns: tuple[str, ...]
    parts: tuple[Part, ...]
    files: tuple[FileContent, ...] = ()

    @property
    def samples(self) -> int | None:
        """Return how many samples there are; None where nobody knows."""
        counts = [part.samples for part in self.parts if part.samples is not None]
        return sum(counts) if len(counts) == len(self.parts) else None


def identity_of(source: Source, name: str) -> Identity:
    """Return what is known of a source."""
    return Identity(name, tuple(sorted(source.columns)), parts_of(source))


def name_with_rows(source: Source, name: str) -> str:
    """Return the name of an opened source, with the rows of the model's tables that its text is hashed into."""
    rows: Mapping[str, int] = getattr(source, "of_model", {})
    said = ",".join(f"{quote(column, safe='')}:{number}" for column, number in sorted(rows.items()))
    return f"{name}{'&' if '?' in name else '?'}rows={said}" if rows else name


def with_contents(identity: Identity, source: Source) -> Identity:
    """Take the contents of the files of a source too.

    Raises:
        InputError: where one cannot be read.
    """
    files = source.files if isinstance(source, FromFiles) else ()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = list(pool.map(lambda file: file.fingerprint(), files))
    contents = (FileContent(file.name, one) for file, one in zip(files, found, strict=True))
    return replace(identity, files=tuple(contents))


def parts_of(source: Source) -> tuple[Part, ...]:
    """Return what the samples of a source lie in; of one that cannot tell, all as one."""
    return source.parts() if isinstance(source, Known) else (Part(source.samples),)


def difference(then: Identity, now: Identity, samples_read: int | None = None) -> tuple[str, str] | None:
    """Tell in words how data differ from those that were read; None where samples go on where they were.

    Args:
        then: The data that were read.
        now: Those that are to be read.
        samples_read: Of the first; None where what comes after them counts as well.

    Returns:
        What is said of the first, and of the second.
    """
    if then.columns != now.columns:
        return _told(then, f"columns {_listed(then.columns)}"), _told(now, f"columns {_listed(now.columns)}")
    for old, new in zip(then.files, now.files, strict=False):
        if old.kind == new.kind and old.fingerprint != new.fingerprint:
            return _told(then, _content(old)), _told(now, _content(new))
    has_grown = now.parts[: len(then.parts)] == then.parts
    if then.parts == now.parts or (has_grown and samples_read is not None and samples_read <= (then.samples or 0)):
        return None
    if then.samples != now.samples:
        return _told(then, _counted(then.samples)), _told(now, _counted(now.samples))
    return _told(then, f"content {digest_of(then.parts)}"), _told(now, f"content {digest_of(now.parts)}")


def digest_of(*words: object, content: Iterable[bytes] = ()) -> str:
    """Return a digest of what is read and how."""
    made = hashlib.sha256(repr(words).encode())
    for piece in content:
        made.update(piece)
    return made.hexdigest()[:_DIGITS]


def _told(identity: Identity, what: str) -> str:
    return f"{identity.name!r} with {what}"


def _content(file: FileContent) -> str:
    said = file.fingerprint.removeprefix(f"{file.kind}:")[:_DIGITS]
    return f"{file.kind} {printable(said)}… of {printable(file.name)!r}"


def _counted(samples: int | None) -> str:
    return "no known end" if samples is None else f"{samples:,} samples"


def _listed(columns: tuple[str, ...]) -> str:
    more = f" and {len(columns) - _COLUMNS_SHOWN} more" if len(columns) > _COLUMNS_SHOWN else ""
    return ", ".join(map(printable, columns[:_COLUMNS_SHOWN])) + more
