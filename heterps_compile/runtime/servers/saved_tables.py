"""Tables on disk: what servers write for a checkpoint, and how other servers, or anybody, read it.

Every server writes one ``.npy`` per table: its shard, a record (weights, then optimiser state) per row. One worker
then writes ``servers.json``, which names them all with their SHA-256, in one rename; files that an earlier
``servers.json`` named are deleted after that. So the folder always holds one whole checkpoint, old or new. Files are
named by numbers: the names of tables stand in the JSON alone.

Any number of servers can read what another number wrote. :func:`export_tables` writes the weights alone into one
safetensors file under the names they have in the model, without ever holding a table.

Left out: when to save (``client.py``).
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Annotated, Any, ClassVar, Final, Literal, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ConfigDict, Field
from safetensors import SafetensorError, safe_open
from torch import Tensor

from heterps_compile.errors import InputError, RunError
from heterps_compile.escape import printable
from heterps_compile.strict_json import STRICT, checked, parsed, read_utf8

from .growing_shard import COUNTERS, GrowingShard
from .optimizers import SparseOptimizer
from .saved_counts import SavedCounts, SavedShard, add_counts
from .shard import CHUNK_ROWS, Shard
from .spec import FLOAT_BYTES, ServerSpec, TableSpec, shard_rows
from .tiered_cache import Floats, Ints

MANIFEST = "servers.json"
_FORMAT: Final = 2
_GROWING: Final = 3  # where a table grows
_WITHOUT_HASHES = 1  # an earlier format

_OF_FILE = STRICT | ConfigDict(extra="ignore")
_Count = Annotated[int, Field(ge=0)]
_FileName = Annotated[str, Field(pattern=r"^[^/\\\x00]+\.npy$")]


@dataclass(frozen=True, slots=True)
class GrownRows:
    """Numbers of rows of a table that grows.

    Attributes:
        rows: That there are.
        new, evicted: Rows that were made and evicted since the run began.
        waiting: Rows that wait to be admitted.
    """

    rows: _Count
    new: _Count = 0
    evicted: _Count = 0
    waiting: _Count = 0

    __pydantic_config__: ClassVar[ConfigDict] = _OF_FILE


@dataclass(frozen=True, slots=True)
class SavedTable:
    """A table of a checkpoint.

    Attributes:
        name: The parameter's name in the model.
        rows, width: Its shape.
        updates: How many updates it had had.
        files: Its shards, in order.
        sha256: Of each of them; empty where an earlier version wrote it.
        grown: Its rows, where it grows and they have ids; None where it does not.
    """

    name: str
    rows: _Count
    width: _Count
    updates: _Count
    files: tuple[_FileName, ...]
    sha256: tuple[str, ...] = ()
    grown: GrownRows | None = None

    __pydantic_config__: ClassVar[ConfigDict] = _OF_FILE


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint of tables, as its :data:`MANIFEST` has it.

    Attributes:
        format: Of the file.
        step: How many steps of the run it holds.
        optimizer: Name of the optimiser whose state lies beside the weights.
        states: How many numbers of it there are for every weight.
        tables: What was saved.
        folder: Where it lies; not in the file.
    """

    format: Literal[1, 2, 3]
    step: _Count
    optimizer: str
    states: _Count
    tables: tuple[SavedTable, ...]
    folder: Path = Path()

    __pydantic_config__: ClassVar[ConfigDict] = _OF_FILE


@dataclass(frozen=True, slots=True)
class ShardName:
    """Names of the files of one shard.

    Attributes:
        index, count: Of the shard, and how many there are.
        step: Steps of the run that it holds.
    """

    index: int
    count: int
    step: int

    def of_table(self, number: int) -> str:
        """Return the name of a table's file."""
        return f"table-{number}.step-{self.step}.shard-{self.index}-of-{self.count}.npy"


def write_shard(path: Path, shard: Shard | GrowingShard) -> bytes:
    """Write one shard; give the SHA-256 of its file.

    Raises:
        RunError: where it cannot be written.
    """
    header = {"descr": "<f4", "fortran_order": False, "shape": (shard.rows, shard.record_width)}
    with _written_whole(path, f"table {shard.table.shown} cannot be saved") as file:
        hashed = _Hashing(file)
        np.lib.format.write_array_header_1_0(hashed, header)
        for _, records in shard.records():
            hashed.write(np.ascontiguousarray(records, "<f4").data)
    return hashed.digest()


class _Hashing:
    """A file that is only written to, and hashed on the way."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._hash = file, hashlib.sha256()

    def write(self, content: Any) -> int:
        self._hash.update(content)
        return self._file.write(content)

    def digest(self) -> bytes:
        return self._hash.digest()


def write_manifest(folder: Path, spec: ServerSpec, step: int, said: Sequence[SavedShard]) -> dict[str, str]:
    """Make the shards that the servers have written the folder's checkpoint.

    Args:
        folder: Where they lie.
        spec: Of the servers.
        step: How many steps of the run they hold.
        said: Answers of the servers, in order.

    Returns:
        SHA-256 of every file of the folder, by name.

    Raises:
        RunError: where it cannot be written.
    """
    names = [ShardName(index, spec.count, step) for index in range(len(said))]
    counts = [add_counts(of_shards) for of_shards in zip(*(shard.counts for shard in said), strict=True)]
    tables = tuple(
        SavedTable(
            table.name,
            table.rows,
            table.width,
            count.updates,
            tuple(name.of_table(number) for name in names),
            tuple(shard.hashes[number] for shard in said),
            None if table.growth is None else grown_rows(count),
        )
        for number, (table, count) in enumerate(zip(spec.tables, counts, strict=True))
    )
    saved = Saved(_format_of(tables), step, spec.optimizer.name, spec.optimizer.states, tables)
    content = asdict(saved, dict_factory=lambda pairs: {k: v for k, v in pairs if v is not None and k != "folder"})
    with _written_whole(folder / MANIFEST, "the list of tables cannot be saved") as file:
        hashed = _Hashing(file)
        hashed.write(json.dumps(content, indent=1).encode("ascii"))
    found: dict[str, str] = {MANIFEST: hashed.digest().hex()}
    for table in tables:
        found |= dict(zip(table.files, table.sha256, strict=True))
    kept = found.keys()
    for old in folder.glob("table-*.npy"):
        if old.name not in kept:
            with suppress(OSError):  # a file too many does no harm
                old.unlink()
    return found


def read_saved(folder: Path) -> Saved:
    """Read what a checkpoint holds, not the rows themselves.

    Raises:
        InputError: where it is none, or a part of it is missing.
    """
    where = f"the list of saved tables {printable(os.fspath(folder / MANIFEST))!r}"
    saved = replace(checked(Saved, parsed(read_utf8(folder / MANIFEST, where), where), where), folder=folder)
    if saved.format not in (expected := _format_of(saved.tables), _WITHOUT_HASHES):
        raise InputError(f"{where} has format {saved.format}; expected {expected}. Fix: save the run again")
    for table in saved.tables:
        if len(table.sha256) != len(table.files) and (table.sha256 or saved.format != _WITHOUT_HASHES):
            raise InputError(f"{where} has a shard without a hash; expected one of each. Fix: save the run again")
        for index in range(len(table.files)):
            open_shard(saved, table, index)
    return saved


def _format_of(tables: Sequence[SavedTable]) -> Literal[2, 3]:
    return _FORMAT if all(table.grown is None for table in tables) else _GROWING


def fill_shard(shard: Shard, index: int, spec: ServerSpec, saved: Saved | None) -> None:
    """Put the first rows into a shard: those of a checkpoint, else those of a stage.

    Args:
        shard: Of one table, still empty.
        index: Of its server.
        spec: Of all of them.
        saved: The checkpoint; None for none.

    Raises:
        RunError: where they do not fit, or have another optimiser's state, which is to be taken over.
    """
    count = spec.count
    if saved is None:
        table = shard.table
        shard.updates = table.updates
        sources = ((table.weights, table.name), *table.states)
        for chunks in zip(*(stage_rows(table, path, name) for path, name in sources), strict=True):
            first: int = chunks[0][0]
            of_shard = [rows[(index - first) % count :: count] for _, rows in chunks]
            begin = (first + (index - first) % count) // count
            if table.states:
                shard.tier.fill(begin, np.concatenate(of_shard, axis=1))
            else:
                shard.fill_weights(begin, of_shard[0])
        return
    if not spec.weights_only:
        refuse_other_optimizer(saved, spec.optimizer)
    table = shard.table
    old = next((entry for entry in saved.tables if entry.name == table.name), None)
    if old is None or (old.rows, old.width) != (table.rows, table.width):
        found = "is not in it" if old is None else f"has {old.rows:,} x {old.width} numbers there"
        raise RunError(
            f"table {table.shown} of {table.rows:,} x {table.width} numbers cannot be read from "
            f"{os.fspath(saved.folder)!r}: it {found}"
        )
    refuse_grown(old, saved.folder)
    shard.updates = 0 if spec.weights_only else old.updates
    for number in {(index + count * row) % len(old.files) for row in range(len(old.files))}:
        check_shard(saved, old, number)
    parts = [open_shard(saved, old, number) for number in range(len(old.files))]
    for first in range(0, shard.rows, CHUNK_ROWS):
        wanted = index + count * np.arange(first, min(first + CHUNK_ROWS, shard.rows))
        records = np.empty((len(wanted), table.width * (1 + saved.states)), np.float32)
        for number, part in enumerate(parts):
            is_there = wanted % len(parts) == number
            records[is_there] = part[wanted[is_there] // len(parts)]
        if spec.weights_only:
            shard.fill_weights(first, records[:, : table.width])
        else:
            shard.tier.fill(first, records)


def refuse_grown(table: SavedTable, folder: Path) -> None:
    """Refuse a table that has grown where rows are wanted by their numbers.

    Raises:
        RunError: where it has.
    """
    if table.grown is not None:
        raise RunError(
            f"table {table.name!r} in {os.fspath(folder)!r} has grown: its {table.grown.rows:,} rows have ids, and a "
            f"table that does not grow has none; go on with --grow-tables, or export its rows with their ids "
            f"(export_tables)"
        )


def refuse_not_grown(name: str) -> NoReturn:
    """Refuse a table that is to grow where a checkpoint has no ids of its rows.

    Raises:
        RunError: always.
    """
    raise RunError(
        f"table {name!r} grows, and the checkpoint has no ids of its rows, or they are not taken with weights alone; "
        f"begin anew in another folder (--checkpoint DIR), or leave out --grow-tables"
    )


def refuse_other_optimizer(saved: Saved, optimizer: SparseOptimizer) -> None:
    """Refuse the state of another optimiser.

    Raises:
        RunError: where it is one's.
    """
    if (saved.optimizer, saved.states) != (optimizer.name, optimizer.states):
        raise RunError(
            f"the tables in {os.fspath(saved.folder)!r} were trained by {printable(saved.optimizer)!r} with "
            f"{saved.states} numbers of state a weight, this run uses {optimizer.name!r} with {optimizer.states}; "
            f"resume with the same optimiser"
        )


def read_table_state(saved: Saved, table: SavedTable) -> list[Tensor]:
    """Return the state of a table's optimiser, a tensor [rows, width] for each of its numbers a weight."""
    found = torch.empty(saved.states, table.rows, table.width)
    for index in range(len(table.files)):
        check_shard(saved, table, index)
        part = open_shard(saved, table, index)
        for number in range(saved.states):
            columns = slice(table.width * (1 + number), table.width * (2 + number))
            found[number, index :: len(table.files)] = torch.from_numpy(np.ascontiguousarray(part[:, columns]))
    return list(found)


def export_tables(folder: Path, target: Path) -> None:
    """Write the weights of all saved tables as one safetensors file, under their names in the model.

    A table that has grown has its rows in the order of their ids, which lie beside it as ``NAME.ids`` (int64).

    Raises:
        InputError: where the folder holds no checkpoint of tables.
        RunError: where the file cannot be written.
    """
    saved = read_saved(folder)
    header, at = {}, 0
    grown = {table.name: _read_grown(saved, table) for table in saved.tables if table.grown is not None}
    for table in saved.tables:
        rows = len(grown[table.name][0]) if table.name in grown else table.rows
        size_bytes = rows * table.width * FLOAT_BYTES
        header[table.name] = {"dtype": "F32", "shape": [rows, table.width], "data_offsets": [at, at + size_bytes]}
        at += size_bytes
    for name, (ids, _) in grown.items():
        header[f"{name}.ids"] = {"dtype": "I64", "shape": [len(ids)], "data_offsets": [at, at + ids.nbytes]}
        at += ids.nbytes
    text = json.dumps(header).encode("ascii")
    text += b" " * (-len(text) % 8)
    with _written_whole(target, "the tables cannot be exported") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for table in saved.tables:
            parts = [grown[table.name][1]] if table.name in grown else _weights(saved, table)
            for part in parts:
                file.write(part.data)
        for ids, _ in grown.values():
            file.write(ids.data)


def _read_grown(saved: Saved, table: SavedTable) -> tuple[Ints, Floats]:
    """Return the ids of a table that has grown, in order, and their weights."""
    ids: list[Ints] = []
    weights: list[Floats] = []
    for index in range(len(table.files)):
        check_shard(saved, table, index)
        part = open_shard(saved, table, index)
        ids.append(np.ascontiguousarray(part[:, -COUNTERS:]).view("<i8")[:, 0])
        weights.append(np.array(part[:, : table.width], "<f4"))
    all_ids = np.concatenate(ids)
    order = np.argsort(all_ids)
    return np.ascontiguousarray(all_ids[order]), np.concatenate(weights)[order]


def grown_rows(count: SavedCounts) -> GrownRows:
    """Return the numbers of rows of a table that grows."""
    return GrownRows(count.rows, count.new, count.evicted, count.waiting)


@contextmanager
def _written_whole(path: Path, fault: str) -> Iterator[IO[bytes]]:
    """Yield a file that takes its name, and its place on the disk, where the block ends well.

    Raises:
        RunError: of this fault, where it cannot be written.
    """
    aside = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        with suppress(OSError):
            aside.unlink()
        raise RunError(f"{fault} in {os.fspath(path.parent)!r}: {error.strerror or error}") from error


def _weights(saved: Saved, table: SavedTable) -> Iterator[Floats]:
    """Yield a table's weights in order, some rows at a time."""
    count = len(table.files)
    for index in range(count):
        check_shard(saved, table, index)
    parts = [open_shard(saved, table, index) for index in range(count)]
    for first in range(0, table.rows, CHUNK_ROWS):
        rows = np.arange(first, min(first + CHUNK_ROWS, table.rows))
        chunk = np.empty((len(rows), table.width), "<f4")
        for index, part in enumerate(parts):
            is_there = rows % count == index
            chunk[is_there] = part[rows[is_there] // count, : table.width]
        yield chunk


def open_shard(saved: Saved, table: SavedTable, index: int) -> NDArray[np.float32]:
    """Open the file of a shard, and check its shape.

    Raises:
        InputError: where it cannot be read, or is another's.
    """
    path = saved.folder / table.files[index]
    try:
        array: NDArray[np.float32] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"cannot read the saved table in {os.fspath(path)!r}: {printable(str(error))}") from error
    expected = (shard_rows(table.rows, len(table.files), index), table.width * (1 + saved.states))
    if table.grown is not None and array.ndim == 2:
        expected = (len(array), expected[1] + COUNTERS)
    if array.shape != expected or array.dtype != np.float32:
        raise InputError(
            f"{os.fspath(path)!r} holds {array.dtype}{list(array.shape)}; its {MANIFEST} says float32{list(expected)}"
        )
    return array


def check_shard(saved: Saved, table: SavedTable, index: int) -> None:
    """Check that a shard is the file that was written, where that is known.

    Raises:
        InputError: where it is another, or cannot be read.
    """
    if not table.sha256:
        return
    path = saved.folder / table.files[index]
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"cannot read the saved table in {os.fspath(path)!r}: {error.strerror or error}") from error
    if found != table.sha256[index]:
        raise InputError(
            f"{os.fspath(path)!r} is not the file that was saved (SHA-256 {found[:12]}…, expected "
            f"{table.sha256[index][:12]}…); go on from an earlier checkpoint"
        )


def stage_rows(table: TableSpec, path: Path, name: str) -> Iterator[tuple[int, Floats]]:
    """Yield the rows of a tensor of a table's shape, some at a time: (number of the first, rows)."""
    shown = os.fspath(path)
    try:
        with safe_open(shown, framework="np") as file:
            tensor = file.get_slice(name)
            shape, dtype = tuple(tensor.get_shape()), tensor.get_dtype()
            if shape != (table.rows, table.width) or dtype != "F32":
                raise RunError(
                    f"table {table.shown} is {dtype}{list(shape)} in {shown!r}; expected F32{[table.rows, table.width]}"
                )
            for first in range(0, table.rows, CHUNK_ROWS):
                yield first, tensor[first : min(first + CHUNK_ROWS, table.rows)]
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot read table {table.shown} from {shown!r}: {printable(str(error))}") from error
