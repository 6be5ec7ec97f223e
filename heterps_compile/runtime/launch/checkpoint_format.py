"""Checkpoints by parameter name: what was trained in some stages can go on in others.

::

    DIR/
      step-000120/
        state.json               step, samples, batch, seed, model, data, ties, metrics; SHA-256 of all files, its own
        weights-0.safetensors    weights and buffers of stage 0
        optimizer-0.safetensors  its optimiser's tensors
        optimizer-0.json         its numbers and options, and the state of the learning-rate schedule
        ema-0.safetensors        the average of its weights, where one is kept
        block-1-0.safetensors    what the predictor of the first block of the data has of it, where these are kept
        own-0.safetensors        what rank 0 has of its own, where replicas agree by a rule that has them differ
        chains-0.safetensors     of rank 0, the weights and the optimiser of chains that see one block each
        optimizer-servers.json   the same of tables on parameter servers, whose tensors lie in servers/
        weights-1.safetensors    ...
      step-000130/

A step's folder is built aside and appears in one rename, so that a crash leaves it whole or not at all. Every stage's
first replica writes its own files; rank 0 adds ``state.json`` when all are there, flushes and renames.

Why not ``torch.distributed.checkpoint``: its metadata is a pickle, and its safetensors storage, which has none, still
agrees on a plan among ranks with ``gather_object``, which unpickles what peers send.

Left out: who calls this when (``loop.py``), how ranks do it together (``checkpoint_collective.py``),
the rows of parameter servers (``servers/``).
"""

import json
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from heterps_compile.errors import InputError, RunError
from heterps_compile.escape import printable
from heterps_compile.strict_json import adapter_of, fault_of

from .checkpoint_folder import STATE_NAME, is_state_dict, stage_file, way_out
from .checkpoint_hashes import (
    check_file,
    check_files,
    check_seal,
    files_in,
    hash_files,
    is_hash,
    is_name_inside,
    read_json,
    read_whole,
    sealed,
)
from .checkpoint_state import RunState
from .optimizer_state import OptimizerState, ScheduleState

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 2
_WITHOUT_HASHES = 1  # an earlier format
SERVERS_NAME = "servers"
_AVERAGE, _BLOCK = "ema", "block"

_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_LARGEST_STATE_BYTES = 256 * 2**20


def write_stage(
    folder: Path, stage: int, weights: "Mapping[str, Tensor]", optimizer: OptimizerState | None
) -> dict[str, str]:
    """Write one stage's tensors into a step's folder that is being built; give the SHA-256 of its files by name.

    Args:
        folder: The step's.
        stage: Its index.
        weights: Parameters and buffers by their names in the model.
        optimizer: State of the optimiser of these parameters; None where nothing is trained.

    Raises:
        RunError: where the disk is full or the folder cannot be written.
    """
    hashes = write_tensors(folder, f"weights-{stage}.safetensors", weights)
    if optimizer is not None:
        hashes |= write_tensors(folder, f"optimizer-{stage}.safetensors", optimizer.tensors)
        hashes |= write_optimizer(folder, stage, optimizer)
    return hashes


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


def write_tensors(folder: Path, name: str, tensors: "Mapping[str, Tensor]") -> dict[str, str]:
    """Write tensors into a file of a step's folder that is being built; return its SHA-256 by its name.

    Raises:
        RunError: where the disk is full or the folder cannot be written.
    """
    from safetensors.torch import save_file  # noqa: PLC0415 - only where checkpoints are written

    try:
        save_file(_with_own_bytes(tensors), folder / name)
        return hash_files(folder, [name])
    except Exception as error:
        raise _unwritable(folder, error) from error


def write_average(folder: Path, stage: int, tensors: "Mapping[str, Tensor]") -> dict[str, str]:
    """Write the average of one stage's weights as :func:`write_stage` writes these; return the same."""
    return write_tensors(folder, f"{_AVERAGE}-{stage}.safetensors", tensors)


def write_block(folder: Path, block: int, stage: int, tensors: "Mapping[str, Tensor]") -> dict[str, str]:
    """Write what the predictor of a block, from 0, has of one stage, likewise; files count blocks from 1."""
    return write_tensors(folder, f"{_BLOCK}-{block + 1}-{stage}.safetensors", tensors)


def make_servers_folder(folder: Path) -> None:
    """Make the folder of parameter servers in a step's folder that is being built.

    Raises:
        RunError: where it cannot be made.
    """
    try:
        (folder / SERVERS_NAME).mkdir()
    except OSError as error:
        raise _unwritable(folder, error) from error


def write_state(folder: Path, state: RunState) -> None:
    """Write ``state.json``, the last file of a checkpoint, with the hashes of all others.

    Args:
        folder: Where the others lie.
        state: With the hashes that are known already; files that it does not name are hashed here.

    Raises:
        RunError: where the disk is full or the folder cannot be written, or a file is missing.
    """
    known = dict(state.files or {})
    try:
        there = [name for name in files_in(folder) if name != STATE_NAME]
        missing = sorted(known.keys() - set(there))
        if missing:
            raise RunError(
                f"{missing[0]!r} was written and is not in {printable(str(folder))!r}; is the folder shared?"
            )
        files = known | hash_files(folder, [name for name in there if name not in known])
        content = {"format": FORMAT, **asdict(replace(state, files=files))}
        (folder / STATE_NAME).write_bytes(sealed(json.dumps(content, indent=2)))
    except OSError as error:
        raise _unwritable(folder, error) from error


def read_state(checkpoint: Path) -> RunState:
    """Read and check what a checkpoint knows beside tensors; a state dict knows nothing.

    Raises:
        RunError: where it is damaged, or of a later version.
    """
    if is_state_dict(checkpoint):
        return RunState(0, 0, 0, 0, model="", plan="", stages=(0,), tied=None)
    path, advice = checkpoint / STATE_NAME, way_out(checkpoint)
    written = _read_bytes(path)
    is_sealed = check_seal(path, written, advice)
    content = _parse_json(path, written)
    try:
        if content["format"] not in (FORMAT, _WITHOUT_HASHES):
            raise RunError(f"{str(checkpoint)!r} has format {content['format']!r}; this version reads {FORMAT}")
        if not is_sealed == (content["format"] == FORMAT) == ("files" in content):
            raise ValueError("the hash of itself is missing")
        files = content.get("files", {})
        if not all(map(is_hash, files.values())):
            raise ValueError("a hash is none")
        if not all(map(is_name_inside, files)):
            raise ValueError("a file lies outside its folder")
        state: RunState = adapter_of(RunState).validate_json(json.dumps({"tied": None, **content}))
        return state
    except ValidationError as error:
        raise RunError(f"{str(path)!r} is damaged ({fault_of(error)}); {advice}") from error
    except (KeyError, TypeError, ValueError, AttributeError, InputError) as error:
        raise RunError(f"{str(path)!r} is damaged ({error}); {advice}") from error


def check_written(checkpoint: Path, state: RunState) -> None:
    """Check that every file of a checkpoint is the one that was written; one of an earlier version has no hashes.

    Raises:
        RunError: naming the file that is missing or changed, with the beginnings of both hashes.
    """
    if state.files is not None:
        check_files(checkpoint, state.files, way_out(checkpoint))


def unchecked_note(checkpoint: Path, state: RunState) -> str | None:
    """Tell that the files of a checkpoint cannot be checked; None where they can."""
    if state.files is not None or is_state_dict(checkpoint):
        return None
    return (
        f"{printable(checkpoint.name)} was written by an earlier version, without hashes: damage in its files is not "
        f"noticed"
    )


def read_weights(
    checkpoint: Path,
    state: RunState,
    names: Iterable[str],
    *,
    optional: Collection[str] = (),
    averaged: bool = False,
    block: int | None = None,
) -> "dict[str, Tensor]":
    """Read weights and buffers by name, whichever stages held them.

    Args:
        checkpoint: The step's folder.
        state: Of it.
        names: To read.
        optional: Those that may be missing: a buffer that nothing changes is a constant in stages of another backend.
        averaged: Read the average of the weights in place of these.
        block: Read the predictor of this block, from 0, in place of the weights.

    Raises:
        RunError: where one is missing or a file is damaged.
    """
    kind = _AVERAGE if averaged else "weights" if block is None else f"{_BLOCK}-{block + 1}"
    files = [stage_file(checkpoint, kind, stage) for stage in state.stages]
    wanted = dict.fromkeys(names)
    found = _read_tensors(checkpoint, state, files, lambda key: key in wanted)
    if state.servers and len(found) < len(wanted):
        tables = [name for name in state.files or () if name.startswith(f"{SERVERS_NAME}/")]
        check_some(checkpoint, state, tables)
        found |= _read_tables(checkpoint, wanted)
    missing = [name for name in wanted if name not in found and name not in optional]
    if missing:
        raise RunError(f"{str(checkpoint)!r} has no {missing[0]!r}; it is of another model than the plan's")
    return found


def _read_tables(checkpoint: Path, wanted: Collection[str]) -> "dict[str, Tensor]":
    """Read tables that parameter servers have saved, for a run that has them in its stages."""
    from heterps_compile.runtime.servers.saved_tables import (  # noqa: PLC0415 - only for such checkpoints
        export_tables,
        read_saved,
        refuse_grown,
    )

    for table in read_saved(checkpoint / SERVERS_NAME).tables:
        if table.name in wanted:
            refuse_grown(table, checkpoint)
    with tempfile.TemporaryDirectory(prefix="heterps-tables-") as name:
        export_tables(checkpoint / SERVERS_NAME, Path(name) / "tables.safetensors")
        return open_tensors(Path(name) / "tables.safetensors", lambda key: key in wanted)


def read_tables(folder: Path) -> dict[str, tuple[int, int]]:
    """Return rows and width of the tables that parameter servers have saved, by name."""
    from heterps_compile.runtime.servers.saved_tables import read_saved  # noqa: PLC0415 - only for such checkpoints

    return {table.name: (table.rows, table.width) for table in read_saved(folder).tables}


def write_optimizer(folder: Path, stage: int | str, known: OptimizerState) -> dict[str, str]:
    """Write numbers and options of an optimiser; give the SHA-256 of its file by name.

    Args:
        folder: The step's, which is being built.
        stage: Whose parameters it steps; ``"servers"`` for tables on servers.
        known: Of the optimiser.

    Raises:
        RunError: where the disk is full or the folder cannot be written.
    """
    name = f"optimizer-{stage}.json"
    content = {"kind": known.kind, "numbers": known.numbers, "options": known.options}
    if known.schedule is not None:
        content["schedule"] = asdict(known.schedule)
    try:
        (folder / name).write_text(json.dumps(content), "utf-8")
        return hash_files(folder, [name])
    except Exception as error:
        raise _unwritable(folder, error) from error


def find_tensor(checkpoint: Path, state: RunState, kind: str, name: str) -> Path | None:
    """Return the file of a stage that has a tensor, checked; None where none has.

    Args:
        checkpoint: The step's folder.
        state: Of it.
        kind: ``"weights"`` or ``"optimizer"``.
        name: Of the tensor in the file.

    Raises:
        RunError: where a file is damaged.
    """
    for stage in state.stages:
        path = checkpoint / stage_file(checkpoint, kind, stage)
        if path.is_file() and _has_tensor(path, name):
            check_some(checkpoint, state, [path.name])
            return path
    return None


def _has_tensor(path: Path, name: str) -> bool:
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - only where a run goes on

    try:
        with safe_open(path, framework="pt") as opened:
            return name in opened.keys()  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError) as error:
        raise RunError(f"{str(path)!r} is damaged or missing ({error}); {way_out(path.parent)}") from error


def read_optimizer(
    checkpoint: Path, state: RunState, names: Iterable[str], *, with_tensors: bool = True
) -> OptimizerState | None:
    """Read the optimiser's state of the named parameters; None where no stage had an optimiser.

    Of tables that lay on servers it has the options, their rows have the rest. What has no schedule of its own, because
    its stage trained nothing but tables, has that of another stage.

    Args:
        checkpoint: The step's folder.
        state: Of it.
        names: Of the parameters.
        with_tensors: Whether its tensors are read too.

    Raises:
        RunError: where a file is damaged, or stages have other schedules of learning rates.
    """
    wanted = set(names)
    schedules: list[Any] = []
    of_others: list[Any] = []
    kinds: set[str] = set()
    of_servers = ""
    numbers: dict[str, Any] = {}
    options: dict[str, Any] = {}
    files = []
    for stage in (*state.stages, *([SERVERS_NAME] if state.servers else [])):
        described = checkpoint / f"optimizer-{stage}.json"
        if not described.is_file():
            continue
        check_some(checkpoint, state, [described.name])
        content = _parse_json(described, _read_bytes(described))
        try:
            mine = {name for name in content["options"] if name in wanted}
            if mine and stage != SERVERS_NAME:
                kinds.add(str(content["kind"]))
                files.append(f"optimizer-{stage}.safetensors")
                schedules.append(content.get("schedule"))
            elif mine:
                of_servers = str(content["kind"])
            of_others.append(content.get("schedule"))
            numbers.update({name: content["numbers"][name] for name in mine if name in content["numbers"]})
            options.update({name: content["options"][name] for name in mine})
        except (KeyError, TypeError) as error:
            raise RunError(f"{str(described)!r} is damaged: {error} is missing") from error
    if not kinds and not of_servers:
        return None
    tensors: dict[str, Tensor] = {}
    if with_tensors:
        tensors = _read_tensors(checkpoint, state, files, lambda key: key.partition(":")[2] in wanted)
    schedule = _one_schedule(checkpoint, schedules or of_others[:1])
    return OptimizerState(", ".join(sorted(kinds)) or of_servers, tensors, numbers, options, schedule)


def _one_schedule(checkpoint: Path, found: Sequence[Any]) -> ScheduleState | None:
    """Return the schedule that the stages of a rank have in common."""
    if any(other != found[0] for other in found):
        raise RunError(
            f"{checkpoint.name} has other states of scheduler() for stages that now lie together; go on with the cuts "
            f"it was written with"
        )
    if found[0] is None:
        return None
    try:
        return ScheduleState(str(found[0]["kind"]), dict(found[0]["content"]))
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{str(checkpoint)!r} is damaged: the state of scheduler() cannot be read") from error


def check_some(checkpoint: Path, state: RunState, names: Iterable[str]) -> None:
    """Check some files of a checkpoint before they are read; errors as in :func:`check_written`."""
    if state.files is not None:
        for name in names:
            check_file(checkpoint, state.files, name, way_out(checkpoint))


def _read_tensors(
    checkpoint: Path, state: RunState, names: Sequence[str], is_wanted: Callable[[str], bool]
) -> "dict[str, Tensor]":
    """Read tensors; a file is hashed where it has some of them, or cannot be opened."""
    found: dict[str, Tensor] = {}
    for name in names:
        try:
            mine = open_tensors(checkpoint / name, is_wanted)
        except RunError:
            check_some(checkpoint, state, [name])
            raise
        if mine:
            check_some(checkpoint, state, [name])
        found = mine | found
    return found


def open_tensors(path: Path, is_wanted: Callable[[str], bool]) -> "dict[str, Tensor]":
    """Read the tensors of a file that are wanted, by name.

    Raises:
        RunError: where it is damaged or missing.
    """
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - only where a run goes on

    try:
        with safe_open(path, framework="pt") as opened:
            return {key: opened.get_tensor(key) for key in opened.keys() if is_wanted(key)}  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError) as error:
        raise RunError(f"{str(path)!r} is damaged or missing ({error}); {way_out(path.parent)}") from error


def _read_bytes(path: Path) -> bytes:
    try:
        return read_whole(path, _LARGEST_STATE_BYTES)
    except (OSError, ValueError) as error:
        raise RunError(f"{str(path)!r} cannot be read ({error}); {way_out(path.parent)}") from error


def _parse_json(path: Path, written: bytes) -> dict[str, Any]:
    try:
        content = read_json(written)
    except ValueError as error:
        raise RunError(f"{str(path)!r} cannot be read ({error}); {way_out(path.parent)}") from error
    if not isinstance(content, dict):
        raise RunError(f"{str(path)!r} is damaged (it holds no object); {way_out(path.parent)}")
    return content


def _unwritable(folder: Path, error: Exception) -> RunError:
    number = _OS_ERROR.search(str(error))  # safetensors has it in its words alone
    reason = os.strerror(int(number[1])) if number else getattr(error, "strerror", None) or error
    return RunError(f"cannot write a checkpoint in {str(folder.parent)!r}: {reason}")
