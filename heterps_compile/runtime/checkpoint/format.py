"""Checkpoints by parameter name: a run resumes from one in other stages than it was written in.

::

    DIR/
      step-000120/
        state.json               step, samples, batch, seed, model, data, ties, metrics; SHA-256 of all files, its own
        weights-0.safetensors    weights and buffers of stage 0
        optimizer-0.safetensors  tensors of its optimiser
        optimizer-0.json         numbers and options of its optimiser, state of the learning-rate schedule
        ema-0.safetensors        average of its weights, if one is kept
        block-1-0.safetensors    its part of the predictor of the first block of the data, if these are kept
        own-0.safetensors        state that rank 0 alone has, if the rule of its replicas has such a state
        chains-0.safetensors     of rank 0, the weights and the optimiser of chains that see one block each
        optimizer-servers.json   the same of tables on parameter servers, whose tensors are in servers/
        weights-1.safetensors    ...
      step-000130/

The folder of a step is built under another name and appears in one rename, so that a crash leaves all of it or none.
Who writes a file hashes it; ``state.json`` has the hashes of all files, and in its last line its own. Who starts a run
checks every file once, several concurrently; a rank checks again those that it reads. Hashing takes about half a second
for a gigabyte and core. Who can write a file can write its hash, and so put other numbers there, but no more: names
never lead out of the folder, and no content is executed.

Why not ``torch.distributed.checkpoint``: its metadata is a pickle, and its safetensors storage, which has none, still
agrees on a plan among ranks with ``gather_object``, which unpickles what peers send.

Left out: how ranks write one together (``collective.py``), the rows of parameter servers (``servers/``).
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from heterps_compile.errors import InputError, RunError
from heterps_compile.escape import printable
from heterps_compile.plain_file import open_plain, refuse_special
from heterps_compile.runtime.launch.block_notes import refuse_unknown_block
from heterps_compile.runtime.launch.stage_files import tensors_in
from heterps_compile.strict_json import MOST_BYTES, adapter_of, checked
from heterps_compile.units import format_bytes

from .folder import STATE_NAME, is_state_dict, way_out
from .state import RunState

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 2
_WITHOUT_HASHES = 1  # an earlier format
SERVERS_NAME = "servers"
WEIGHTS, AVERAGE = "weights", "ema"

_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_CONCURRENT_FILES = 4  # hashing releases Python's lock
_DIGITS_SHOWN = 12  # of a hash
_OWN = b',\n  "sha256": "'
_OWN_END = b'"\n}\n'

Described = tuple[str, tuple[int, ...]]
"""Dtype and shape of a tensor."""
T = TypeVar("T")


@dataclass(frozen=True)
class Checkpoint:
    """A finished checkpoint, or a state dict in one ``.safetensors`` file to begin with.

    Attributes:
        path: Its folder, or the file.
        state: The run when it was written.
    """

    path: Path
    state: RunState

    @property
    def name(self) -> str:
        """Return its name, for messages."""
        return printable(self.path.name)

    def check(self, names: Iterable[str] | None = None) -> None:
        """Check that files are those that were written; without hashes, of an earlier version, any are.

        Args:
            names: The files; None for all.

        Raises:
            RunError: naming the first file that is missing or changed, with the beginnings of both hashes.
        """
        if self.state.files is not None:
            with ThreadPoolExecutor(_CONCURRENT_FILES) as pool:
                for _ in pool.map(self._check_file, self.state.files if names is None else names):
                    pass

    def _check_file(self, name: str) -> None:
        path, expected = self.path / name, (self.state.files or {}).get(name)
        try:
            found = path.stat()
            refuse_special(path, found.st_mode)
            actual = _hash_of(path, found.st_size, found.st_mtime_ns, found.st_ino)
        except OSError as error:
            raise _damaged(self.path, name, error) from error
        if actual != expected:
            raise _changed(self.path, name, actual, expected or "none")

    def files_of(self, kind: str) -> list[str]:
        """Return the names of the files of all stages of a kind; ``""``, of a state dict, is the path itself."""
        if is_state_dict(self.path):
            return [""]
        return [f"{kind}-{stage}.safetensors" for stage in self.state.stages]

    def kind(self, *, averaged: bool = False, block: int | None = None) -> str:
        """Return the kind of the files that have the requested weights.

        Args:
            averaged: The average of the weights is requested.
            block: Or the predictor of this block, from 0.

        Raises:
            RunError: if the checkpoint has no average, or no such predictor.
        """
        if block is not None:
            refuse_unknown_block(self.path, self.state, block)
            return block_kind(block)
        if averaged and self.state.averaged is None:
            raise RunError(f"{self.name} has no average of its weights (--ema); leave --averaged out")
        return AVERAGE if averaged else WEIGHTS

    def describe(self) -> dict[str, Described]:
        """Read dtype and shape of all weights and buffers by name, of tables on servers too; of files the headers.

        Raises:
            RunError: if a file is damaged or missing.
        """
        found: dict[str, Described] = {}
        for file in self.files_of(WEIGHTS):
            found |= self._headers(file)
        if self.state.servers:
            from heterps_compile.runtime.servers.saved_tables import (  # noqa: PLC0415 - only for such checkpoints
                read_saved,
            )

            tables = read_saved(self.path / SERVERS_NAME).tables
            found |= {table.name: ("F32", (table.rows, table.width)) for table in tables}
        return found

    def find_tensor(self, kind: str, name: str) -> Path | None:
        """Return the file of a stage that has a tensor, checked; None if none has.

        Raises:
            RunError: if a file is damaged.
        """
        for file in self.files_of(kind):
            if (self.path / file).is_file() and name in self._headers(file):
                self.check([file])
                return self.path / file
        return None

    def _headers(self, file: str) -> dict[str, Described]:
        with _telling_damage(self.path, file):
            return tensors_in(self.path / file)

    def tensors(self, files: Iterable[str], is_wanted: Callable[[str], bool] = lambda _: True) -> "dict[str, Tensor]":
        """Read the wanted tensors of files by name; a file is checked if it has any, or cannot be opened.

        Raises:
            RunError: if a file is damaged or missing.
        """
        from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - only where a run resumes

        found: dict[str, Tensor] = {}
        for file in files:
            try:
                with safe_open(self.path / file, framework="pt") as opened:
                    names = filter(is_wanted, opened.keys())
                    mine = {name: opened.get_tensor(name) for name in names}
            except (OSError, SafetensorError) as error:
                self.check([file])
                raise _damaged(self.path, file, error) from error
            if mine:
                self.check([file])
            found = mine | found
        return found

    def weights(
        self, names: Iterable[str], kind: str = WEIGHTS, *, optional: Collection[str] = ()
    ) -> "dict[str, Tensor]":
        """Read weights and buffers by name, whichever stages and servers had them.

        Args:
            names: Of the tensors.
            kind: As :meth:`kind` returns it.
            optional: Those that may be missing: stages of another backend have an unchanged buffer as a constant.

        Raises:
            RunError: if one is missing or a file is damaged.
        """
        wanted = dict.fromkeys(names)
        found = self.tensors(self.files_of(kind), wanted.__contains__)
        if self.state.servers and len(found) < len(wanted):
            found |= self._tables(wanted)
        missing = [name for name in wanted if name not in found and name not in optional]
        if missing:
            raise RunError(f"{str(self.path)!r} has no {missing[0]!r}; it is of another model than the plan's")
        return found

    def _tables(self, wanted: Collection[str]) -> "dict[str, Tensor]":
        """Read tables that parameter servers have saved, for a run that has them in its stages."""
        from heterps_compile.runtime.servers.saved_tables import (  # noqa: PLC0415 - only for such checkpoints
            export_tables,
            read_saved,
            refuse_grown,
        )

        self.check(name for name in self.state.files or () if name.startswith(f"{SERVERS_NAME}/"))
        for table in read_saved(self.path / SERVERS_NAME).tables:
            if table.name in wanted:
                refuse_grown(table, self.path)
        with tempfile.TemporaryDirectory(prefix="heterps-tables-") as name:
            export_tables(self.path / SERVERS_NAME, Path(name) / "tables.safetensors")
            exported = open_checkpoint(Path(name) / "tables.safetensors")  # a state dict
            return exported.tensors([""], wanted.__contains__)

    def value(self, name: str, schema: type[T]) -> T | None:
        """Read a JSON file, checked, as a value of a schema; None if there is no such file.

        Raises:
            RunError: if it is damaged.
        """
        if not (self.path / name).is_file():
            return None
        self.check([name])
        with _telling_damage(self.path, name):
            found: T = adapter_of(schema).validate_python(_object(_read(self.path / name)))
        return found


def open_checkpoint(path: Path) -> Checkpoint:
    """Read and check the state of a checkpoint; a state dict has none.

    Raises:
        RunError: if it is damaged, or of a later version.
    """
    if is_state_dict(path):
        return Checkpoint(path, RunState(0, 0, 0, 0, model="", plan="", stages=(0,)))
    with _telling_damage(path, STATE_NAME):
        written = _read(path / STATE_NAME)
        is_sealed = _check_seal(path, written)
        content = _object(written)
        if content["format"] not in (FORMAT, _WITHOUT_HASHES):
            raise RunError(f"{str(path)!r} has format {content['format']!r}; this version reads {FORMAT}")
        if not is_sealed == (content["format"] == FORMAT) == ("files" in content):
            raise ValueError("the hash of itself is missing")
        return Checkpoint(path, checked(RunState, content, STATE_NAME))


def write_files(folder: Path, files: "Mapping[str, Mapping[str, Any]]") -> dict[str, str]:
    """Write files into a step's folder that is being built; return the SHA-256 of each by name.

    Args:
        folder: The folder.
        files: Content by name: of ``.json`` an object, else tensors by name.

    Raises:
        RunError: if the disk is full or the folder cannot be written.
    """
    from safetensors.torch import save_file  # noqa: PLC0415 - only where checkpoints are written

    with telling_unwritable(folder.parent):
        for name, content in files.items():
            if name.endswith(".json"):
                (folder / name).write_text(json.dumps(content), "utf-8")
            else:
                save_file(_with_own_bytes(content), folder / name)
        return {name: _sha256(folder / name) for name in files}


def write_state(folder: Path, state: RunState) -> None:
    """Write ``state.json``, the last file of a checkpoint, with the hashes of all others.

    Args:
        folder: Of the others.
        state: With the hashes that are known already; files that it does not name are hashed here.

    Raises:
        RunError: if the disk is full or the folder cannot be written, or a file is missing.
    """
    known = dict(state.files or {})
    with telling_unwritable(folder.parent):
        found = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        missing = sorted(known.keys() - {*found})
        if missing:
            raise RunError(
                f"{missing[0]!r} was written and is not in {printable(str(folder))!r}; is the folder shared?"
            )
        files = known | {name: _sha256(folder / name) for name in found if name not in {STATE_NAME, *known}}
        content = {"format": FORMAT, **asdict(replace(state, files=files))}
        (folder / STATE_NAME).write_bytes(sealed(json.dumps(content, indent=2)))


def block_kind(block: int) -> str:
    """Return the kind of files of a block's predictor; files count blocks from 1."""
    return f"block-{block + 1}"


def sealed(text: str) -> bytes:
    """Return a JSON object, printed with an indent of two, with the hash of itself as its last entry."""
    content = text.encode("ascii").removesuffix(b"\n}")
    return content + _OWN + hashlib.sha256(content).hexdigest().encode() + _OWN_END


def _check_seal(checkpoint: Path, content: bytes) -> bool:
    """Check the hash that :func:`sealed` added; False if there is none, as in files of earlier versions."""
    body, mark, seal = content.rpartition(_OWN)
    if not mark:
        return False
    expected = seal.removesuffix(_OWN_END).decode("ascii", "backslashreplace")
    actual = hashlib.sha256(body).hexdigest()
    if actual != expected or not seal.endswith(_OWN_END):
        raise _changed(checkpoint, STATE_NAME, actual, printable(expected))
    return True


def _read(path: Path) -> bytes:
    with open_plain(path) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it is larger than {format_bytes(MOST_BYTES)}")
    return content


def _object(written: bytes) -> dict[str, Any]:
    """Parse a JSON object, whose numbers may be infinite: the best loss of a schedule is at first."""
    content = json.loads(written)
    if not isinstance(content, dict):
        raise TypeError("it holds no object")
    return content


@contextmanager
def _telling_damage(checkpoint: Path, name: str) -> Iterator[None]:
    """Raise what reading a file raises as one error, with the way out."""
    try:
        yield
    except KeyError as error:
        raise _damaged(checkpoint, name, f"{error} is missing") from error
    except (InputError, OSError, ValueError, TypeError, RecursionError) as error:
        raise _damaged(checkpoint, name, error) from error


def _damaged(checkpoint: Path, name: str, reason: Exception | str) -> RunError:
    shown = printable(str(checkpoint / name))
    return RunError(
        f"{shown!r} is damaged or missing ({getattr(reason, 'strerror', None) or reason}); {way_out(checkpoint)}"
    )


def _changed(checkpoint: Path, name: str, found: str, expected: str) -> RunError:
    return RunError(
        f"{printable(str(checkpoint / name))!r} is not the file that the checkpoint was written with (SHA-256 "
        f"{found[:_DIGITS_SHOWN]}…, expected {expected[:_DIGITS_SHOWN]}…); {way_out(checkpoint)}"
    )


@contextmanager
def telling_unwritable(directory: Path) -> Iterator[None]:
    """Raise what writing a checkpoint into a folder of checkpoints raises as one error."""
    from safetensors import SafetensorError  # noqa: PLC0415 - only where checkpoints are written

    try:
        yield
    except (OSError, SafetensorError) as error:
        number = _OS_ERROR.search(str(error))  # safetensors has it in its words alone
        reason = os.strerror(int(number[1])) if number else getattr(error, "strerror", None) or error
        raise RunError(f"cannot write a checkpoint in {str(directory)!r}: {reason}") from error


def _with_own_bytes(tensors: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """Return tensors of which no two share a storage: a tied weight has two names, and safetensors refuses that."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        storage = own.untyped_storage().data_ptr()
        found[name] = own.clone() if storage in seen else own
        seen.add(storage)
    return found


@lru_cache(maxsize=4096)
def _hash_of(path: Path, size_bytes: int, changed_ns: int, inode: int) -> str:
    """Hash a file once, as long as it stays the same."""
    del size_bytes, changed_ns, inode
    return _sha256(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
