"""From what a person writes after ``--data`` to a source.

::

    clicks.parquet                       a Parquet file
    clicks.csv                           CSV with a header
    clicks/, day_*.csv                   a folder of files of one of these kinds, or those that a pattern fits
    s3://bucket/clicks.parquet           any of these far away, through fsspec
    day_0.tsv?rows=1000000               Criteo's format, categories hashed into tables of so many rows
    clicks.parquet?rows=user:90000,ad:5000    text of two columns, hashed into tables of so many rows
    clicks.parquet?fill=0                missing values are 0
    random:ids<10000,label=float32<2     generated; what the plan knows of its inputs need not be said

Left out: iterables, which only Python can give (``iterable.py``).
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.escape import printable

from .arrow import Conversion
from .criteo import CATEGORIES_COLUMN, HASH_ROWS, CriteoSource
from .csv_file import CsvSource
from .find_files import find_files, suffix_at
from .hashed_ids import NO_TABLES, TableRows
from .model_inputs import InputSpec
from .parquet import ParquetSource
from .random_source import RandomColumn, RandomSource
from .sample_source import Source
from .to_parquet import KINDS

_RANDOM = "random"
_LONGEST = 12  # digits of rows
_PACKED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst", ".zip")
_COLUMN = re.compile(
    r"(?P<name>[^=<~,\[\]]+)(?:=(?P<dtype>\w+)(?:\[(?P<shape>(?:\d+(?:x\d+)*)?)\])?)?"
    r"(?:<(?P<limit>[\d_]+))?(?:~(?P<zipf>\d+(?:\.\d+)?))?"
)
_EXAMPLE = "random:ids=int64[26]<10000,dense=float32[13],label=float32<2"


@dataclass(frozen=True, slots=True)
class _Options:
    """What follows the ``?``: missing values, rows of hashed tables, how CSV is read."""

    fill: float | None = None
    rows: TableRows = NO_TABLES
    types: Mapping[str, str] = field(default_factory=dict)
    delimiter: str | None = None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InputError("expected a number") from error


def _table_rows(text: str) -> TableRows:
    """Read ``100000``, ``user:90000,ad:5000`` or both; a name may be percent-encoded."""
    found: dict[str, int] = {}
    for item in text.split(","):
        name, _, number = item.rpartition(":")
        if not (number.isascii() and number.isdigit() and len(number) < _LONGEST) or unquote(name) in found:
            raise InputError("expected rows of a table, or NAME:ROWS for each column, such as user:90000,ad:5000")
        found[unquote(name)] = int(number)
    return TableRows(found.pop("", None), found)


def _types(text: str) -> dict[str, str]:
    """Read ``price:float,item:text``; a name may be percent-encoded."""
    pairs = [item.rpartition(":") for item in text.split(",")]
    if not all(mark for _, mark, _ in pairs):
        raise InputError(f"expected NAME:TYPE for each column, such as price:float, with one of {', '.join(KINDS)}")
    return {unquote(name): kind for name, _, kind in pairs}


def _delimiter(text: str) -> str:
    found = "\t" if text == "tab" else unquote(text)
    if len(found) != 1 or not found.isascii() or found in '"\r\n':
        raise InputError("expected one letter of ASCII, such as ; or the word tab")
    return found


_READ: Mapping[str, Callable[[str], Any]] = MappingProxyType(
    {
        "fill": _number,
        "rows": _table_rows,
        "types": _types,
        "delimiter": _delimiter,
    }
)
_TAKES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        ".parquet": ("fill", "rows"),
        ".csv": ("fill", "rows", "types", "delimiter"),
        ".tsv": ("rows",),
        ".txt": ("rows",),
    }
)
"""The options of each kind of file, by how its name ends."""


def open_source(
    spec: str,
    *,
    wanted: Mapping[str, InputSpec] = MappingProxyType({}),
    seed: int = 0,
) -> Source:
    """Open a source of samples.

    Args:
        spec: What the person wrote; see the head of this module.
        wanted: What the model takes (:func:`inputs_of_plan`), for random data, CSV and text.
        seed: Of random data.

    Returns:
        A source that ends, or of random data one that does not.

    Raises:
        InputError: where there is no such file, it is not what it should be, or the spec cannot be read.
        UnknownNameError: where an option has a name that nobody knows.
    """
    if is_random(spec):
        return RandomSource(random_columns(spec.partition(":")[2], wanted), seed=seed)
    path, options = _split(spec)
    return _open_file(path, options, wanted)


def check_spec(spec: str, wanted: Callable[[], Mapping[str, InputSpec]]) -> None:
    """Check what can be told of a spec before anything is read: how it is written, and that there is such a file.

    Args:
        spec: What the person wrote.
        wanted: Gives what the model takes; called for random data alone, since it may read the model's files.

    Raises:
        InputError, UnknownNameError: as :func:`open_source`.
    """
    if is_random(spec):
        RandomSource(random_columns(spec.partition(":")[2], wanted()))
        return
    path = _split(spec)[0]
    find_files(path, _kind_at(path))


def is_random(spec: str) -> bool:
    """Tell whether a spec is of generated samples, not of a file."""
    return spec.partition(":")[0] == _RANDOM and not os.path.exists(spec)


def random_columns(text: str, wanted: Mapping[str, InputSpec]) -> list[RandomColumn]:
    """Return the columns of random data: those wanted, and what the text says of them or adds to them.

    Args:
        text: Columns with commas between: ``NAME[=DTYPE[SHAPE]][<LIMIT][~ZIPF]``.
        wanted: What the model takes.

    Raises:
        InputError: where the text cannot be read, or a column's dtype, shape or range is not known from either.
    """
    said = [_parsed(item) for item in text.split(",") if item.strip()]
    names = dict.fromkeys([*wanted, *(match["name"].strip() for match in said)])
    matches = {match["name"].strip(): match for match in said}
    return [_column(name, matches.get(name), wanted.get(name, InputSpec())) for name in names]


def _parsed(item: str) -> re.Match[str]:
    match = _COLUMN.fullmatch(item.strip())
    if match is None:
        raise InputError(f"{printable(item)!r} describes no column of random data; expected such as {_EXAMPLE!r}")
    return match


def _column(name: str, said: re.Match[str] | None, wanted: InputSpec) -> RandomColumn:
    dtype, shape = wanted.dtype, wanted.planned or wanted.shape
    limit, zipf = wanted.rows, 0.0
    if said is not None:
        if said["dtype"]:
            dtype, shape = said["dtype"], tuple(int(size) for size in (said["shape"] or "").split("x") if size)
        limit = int(said["limit"]) if said["limit"] else limit
        zipf = float(said["zipf"] or 0)
    if dtype is None or shape is None or None in shape:
        raise InputError(
            f"the plan says of input {printable(name)!r} only that it is {wanted}; say the rest of it, with the "
            f"range of whole numbers: --data {_EXAMPLE!r}"
        )
    return RandomColumn(name, dtype, tuple(size for size in shape if size is not None), limit, zipf)


def _split(spec: str) -> tuple[str, _Options]:
    """Return the path and the options; a file may have a name with a question mark in it."""
    path, mark, rest = spec.rpartition("?")
    if not mark or os.path.exists(spec):
        return spec, _Options()
    given: dict[str, Any] = {}
    for item in rest.split("&"):
        key, _, text = item.partition("=")
        if key in ("shuffle", "block"):
            raise InputError(f"{key!r} is no option of --data; shuffle with the run's --shuffle WINDOW and --seed N")
        if key not in _READ:
            raise UnknownNameError("option of --data", printable(key), _READ)
        try:
            given[key] = _READ[key](text)
        except InputError as error:
            raise InputError(f"the option {key!r} of --data is {printable(text)!r}; {error}") from error
    kind = _kind_at(path)
    idle = next((key for key in given if key not in _TAKES[kind]), None)
    if idle is not None:
        raise InputError(
            f"the option {idle!r} of --data means nothing for {printable(path)!r}; {kind} files take "
            f"{', '.join(_TAKES[kind])}"
        )
    return path, _Options(**given)


def _open_file(path: str, options: _Options, wanted: Mapping[str, InputSpec]) -> Source:
    kind, how = _kind_at(path), Conversion(options.fill, options.rows)
    tables = {name: spec.rows for name, spec in wanted.items() if spec.rows is not None}
    if kind == ".parquet":
        return ParquetSource(path, how=how, tables=tables)
    if kind == ".csv":
        return CsvSource(path, how=how, types=options.types, delimiter=options.delimiter, wanted=wanted)
    options.rows.check_columns(repr(printable(path)), [CATEGORIES_COLUMN])
    said = options.rows.with_tables(repr(printable(path)), [CATEGORIES_COLUMN], tables)
    rows = options.rows.of(CATEGORIES_COLUMN) or min(HASH_ROWS, said.of(CATEGORIES_COLUMN) or HASH_ROWS)
    return CriteoSource(path, rows=rows)


def _kind_at(path: str) -> str:
    """Return how the files at a path end, one of those that are known."""
    found = suffix_at(path)
    if found not in _TAKES:
        unpack = "; unpack it first: samples are read by their number" if found in _PACKED_SUFFIXES else ""
        raise InputError(
            f"{printable(path)!r} is no kind of data that is known: .parquet, .csv, a folder of such files, .tsv or "
            f".txt in Criteo's format, or {_EXAMPLE!r}{unpack}"
        )
    return found
