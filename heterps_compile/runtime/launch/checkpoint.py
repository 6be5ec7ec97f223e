"""Checkpoints by parameter name: what was trained in some stages can go on in others.

::

    DIR/
      step-000120/
        state.json               step, samples, batch, seed, model, data
        weights-0.safetensors    weights and buffers of stage 0
        optimizer-0.safetensors  its optimiser's tensors
        optimizer-0.json         its numbers and options, and the state of the learning-rate schedule
        weights-1.safetensors    ...
      step-000130/

A step's folder is built aside and appears in one rename, so that a crash leaves it whole or not at all. Every stage's
first replica writes its own files; rank 0 adds ``state.json`` when all are there, flushes and renames.

Why not ``torch.distributed.checkpoint``: its metadata is a pickle, and its safetensors storage, which has none, still
agrees on a plan among ranks with ``gather_object``, which unpickles what peers send.

Left out: who calls this when (``training_loop.py``), the rows of parameter servers (``servers/``).
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heterps_compile.errors import RunError
from heterps_compile.plan.swap import locked
from heterps_compile.runtime.data.identity import Identity, identity_from_json
from heterps_compile.units import format_bytes

from .optimizer_state import OptimizerState
from .schedule_state import ScheduleState

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
STATE_NAME = "state.json"
SERVERS_NAME = "servers"

_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_STEP = re.compile(r"step-(\d{6,})")
_ASIDE = ".heterps-new-"  # what plan/swap.py calls a folder that is being built
_WAY_OUT = "remove its folder to go on from the one before"
_LARGEST_STATE_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class RunState:
    """What a checkpoint knows beside tensors.

    Attributes:
        step: Steps done; the next to run.
        samples: Samples seen.
        batch: Samples in a step.
        seed: Of the run.
        model: SHA-256 of the model's structure.
        plan: SHA-256 of the plan file.
        stages: Whose files there are.
        servers: Parameter servers whose tables there are.
        data: What was read; None where an earlier version wrote it.
    """

    step: int
    samples: int
    batch: int
    seed: int
    model: str
    plan: str
    stages: tuple[int, ...]
    servers: int = 0
    data: Identity | None = None


def step_name(step: int) -> str:
    """Give the name of a step's folder."""
    return f"step-{step:06d}"


def find_checkpoints(directory: Path) -> list[Path]:
    """Give the finished checkpoints of a folder, the oldest first; none where there is no folder."""
    if not directory.is_dir():
        return []
    found = [(int(match[1]), path) for path in directory.iterdir() if (match := _STEP.fullmatch(path.name))]
    return [path for _, path in sorted(found) if (path / STATE_NAME).is_file()]


def write_stage(folder: Path, stage: int, weights: "Mapping[str, Tensor]", optimizer: OptimizerState | None) -> None:
    """Write one stage's tensors into a step's folder that is being built.

    Args:
        folder: The step's.
        stage: Its index.
        weights: Parameters and buffers by their names in the model.
        optimizer: State of the optimiser of these parameters; None where nothing is trained.

    Raises:
        RunError: where the disk is full or the folder cannot be written.
    """
    from safetensors.torch import save_file  # noqa: PLC0415 - only where checkpoints are written

    try:
        save_file(_with_own_bytes(weights), folder / f"weights-{stage}.safetensors")
        if optimizer is not None:
            save_file(_with_own_bytes(optimizer.tensors), folder / f"optimizer-{stage}.safetensors")
            content = {"kind": optimizer.kind, "numbers": optimizer.numbers, "options": optimizer.options}
            if optimizer.schedule is not None:
                content["schedule"] = asdict(optimizer.schedule)
            (folder / f"optimizer-{stage}.json").write_text(json.dumps(content), "utf-8")
    except Exception as error:
        raise _unwritable(folder, error) from error


def _with_own_bytes(tensors: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """Give tensors of which no two share a storage: a tied weight has two names, and safetensors refuses that."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        storage = own.untyped_storage().data_ptr()
        found[name] = own.clone() if storage in seen else own
        seen.add(storage)
    return found


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
    """Write ``state.json``, the last file of a checkpoint.

    Raises:
        RunError: where the disk is full or the folder cannot be written.
    """
    try:
        (folder / STATE_NAME).write_text(json.dumps({"format": FORMAT, **asdict(state)}, indent=2) + "\n", "ascii")
    except OSError as error:
        raise _unwritable(folder, error) from error


def read_state(checkpoint: Path) -> RunState:
    """Read and check what a checkpoint knows beside tensors.

    Raises:
        RunError: where it is damaged, or of a later version.
    """
    content = _read_json(checkpoint / STATE_NAME)
    try:
        if content["format"] != FORMAT:
            raise RunError(f"{str(checkpoint)!r} has format {content['format']!r}; this version reads {FORMAT}")
        numbers = {name: content[name] for name in ("step", "samples", "batch", "seed", "servers")}
        if any(type(number) is not int or number < 0 for number in numbers.values()):
            raise ValueError("a number is negative, or none")
        stages = tuple(content["stages"])
        if not all(type(stage) is int for stage in stages):
            raise ValueError("a stage is no number")
        data = None if content.get("data") is None else identity_from_json(content["data"])
        return RunState(**numbers, model=str(content["model"]), plan=str(content["plan"]), stages=stages, data=data)
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{str(checkpoint / STATE_NAME)!r} is damaged ({error}); {_WAY_OUT}") from error


def read_weights(
    checkpoint: Path, state: RunState, names: Iterable[str], *, optional: Collection[str] = ()
) -> "dict[str, Tensor]":
    """Read weights and buffers by name, whichever stages held them.

    Args:
        checkpoint: The step's folder.
        state: Of it.
        names: To read.
        optional: Those that may be missing: a buffer that nothing changes is a constant in stages of another backend.

    Raises:
        RunError: where one is missing or a file is damaged.
    """
    files = [checkpoint / f"weights-{stage}.safetensors" for stage in state.stages]
    wanted = dict.fromkeys(names)
    found = _read_tensors(files, lambda key: key in wanted)
    if state.servers and len(found) < len(wanted):
        found |= _read_tables(checkpoint, wanted)
    missing = [name for name in wanted if name not in found and name not in optional]
    if missing:
        raise RunError(f"{str(checkpoint)!r} has no {missing[0]!r}; it is of another model than the plan's")
    return found


def _read_tables(checkpoint: Path, wanted: Collection[str]) -> "dict[str, Tensor]":
    """Read tables that parameter servers have saved, for a run that has them in its stages."""
    from heterps_compile.runtime.servers.saved import export_tables  # noqa: PLC0415 - only for such checkpoints

    with tempfile.TemporaryDirectory(prefix="heterps-tables-") as name:
        export_tables(checkpoint / SERVERS_NAME, Path(name) / "tables.safetensors")
        return _read_tensors([Path(name) / "tables.safetensors"], lambda key: key in wanted)


def read_optimizer(checkpoint: Path, state: RunState, names: Iterable[str]) -> OptimizerState | None:
    """Read the optimiser's state of the named parameters; None where no stage had an optimiser.

    Raises:
        RunError: where a file is damaged, or stages have other schedules of learning rates.
    """
    wanted = set(names)
    schedules: list[Any] = []
    kinds: set[str] = set()
    numbers: dict[str, Any] = {}
    options: dict[str, Any] = {}
    files = []
    for stage in state.stages:
        described = checkpoint / f"optimizer-{stage}.json"
        if not described.is_file():
            continue
        content = _read_json(described)
        try:
            mine = {name for name in content["options"] if name in wanted}
            if mine:
                kinds.add(str(content["kind"]))
                files.append(checkpoint / f"optimizer-{stage}.safetensors")
                schedules.append(content.get("schedule"))
            numbers.update({name: content["numbers"][name] for name in mine if name in content["numbers"]})
            options.update({name: content["options"][name] for name in mine})
        except (KeyError, TypeError) as error:
            raise RunError(f"{str(described)!r} is damaged: {error} is missing") from error
    if not kinds:
        return None
    tensors = _read_tensors(files, lambda key: key.partition(":")[2] in wanted)
    return OptimizerState(", ".join(sorted(kinds)), tensors, numbers, options, _one_schedule(checkpoint, schedules))


def _one_schedule(checkpoint: Path, found: Sequence[Any]) -> ScheduleState | None:
    """Give the schedule that the stages of a rank have in common."""
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


def keep_last(directory: Path, keep: int) -> None:
    """Delete all finished checkpoints but the last ``keep``."""
    for old in find_checkpoints(directory)[:-keep]:
        # state.json goes first: what a crash leaves of the rest is then no checkpoint.
        with suppress(OSError):
            (old / STATE_NAME).unlink()
        shutil.rmtree(old, ignore_errors=True)


def tidy(directory: Path) -> None:
    """Delete what crashed runs left half built; what a live run holds stays."""
    if not directory.is_dir():
        return
    left = [path for path in directory.iterdir() if path.name.startswith(_ASIDE)]
    left += [p for p in directory.iterdir() if _STEP.fullmatch(p.name) and not (p / STATE_NAME).exists()]
    for path in left:
        with suppress(OSError), locked(path):
            shutil.rmtree(path)


def _read_tensors(files: Sequence[Path], is_wanted: Any) -> "dict[str, Tensor]":
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - only where a run goes on

    found: dict[str, Any] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                for key in opened.keys():  # noqa: SIM118 - safe_open is no mapping
                    if key not in found and is_wanted(key):
                        found[key] = opened.get_tensor(key)
        except (OSError, SafetensorError) as error:
            raise RunError(f"{str(file)!r} is damaged or missing ({error}); {_WAY_OUT}") from error
    return found


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _LARGEST_STATE_BYTES:
            raise ValueError(f"it is larger than {format_bytes(_LARGEST_STATE_BYTES)}")
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(f"{str(path)!r} cannot be read ({error}); {_WAY_OUT}") from error
    if not isinstance(content, dict):
        raise RunError(f"{str(path)!r} is damaged (it holds no object); {_WAY_OUT}")
    return content


def _unwritable(folder: Path, error: Exception) -> RunError:
    number = _OS_ERROR.search(str(error))  # safetensors has it in its words alone
    reason = os.strerror(int(number[1])) if number else getattr(error, "strerror", None) or error
    return RunError(f"cannot write a checkpoint in {str(folder.parent)!r}: {reason}")
