"""Whether the tensors of a checkpoint are those of a plan's stages: by name, shape and what is tied.

The mode and the cuts it was written in do not count, nor does the code of the model: a folder compiled in evaluation
mode scores with a checkpoint of a training. Only headers of files are read, before any process of the run starts; a
rank looks again at what it loads.

Left out: the bytes (``checkpoint_files.py``), the state of optimisers (``optimizer_state.py``).
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.units import counted

from .checkpoint import SERVERS_NAME, RunState, read_tables, way_out
from .prepare import Prepared

if TYPE_CHECKING:
    from torch import Tensor

Described = Mapping[str, tuple[str, tuple[int, ...]]]
"""Dtype and shape of tensors, by name."""

_TIES = ("TIED", "TIED_AS")
_SHOWN = 3


def check_tensors(checkpoint: Path, state: RunState, prepared: Prepared) -> list[str]:
    """Check that a run can take a checkpoint's tensors.

    Returns:
        What the user should know of it, in sentences.

    Raises:
        RunError: naming a tensor of another shape, with both; or where no name is known.
    """
    wanted = dict(_of_plan(prepared))
    if not wanted:  # a plan whose files lie elsewhere
        return []
    found = _of_checkpoint(checkpoint, state)
    common = wanted.keys() & found.keys()
    if not common:
        raise RunError(
            f"{checkpoint.name} is of another model: none of its {counted(len(found), 'tensor')} has the name of one "
            f"of the plan's; name another folder"
        )
    for name in sorted(common):
        if found[name][1] != wanted[name][1]:  # a dtype is looked at where the tensor is put
            refuse_other(checkpoint, name, found[name], wanted[name])
    notes = []
    if state.model != prepared.plan.hashes.get("model", ""):
        notes.append(
            f"{printable(checkpoint.name)} was written by a model in another mode or of other code (SHA-256 "
            f"{state.model[:12]}…): its tensors are taken by name"
        )
    lacking = sorted(wanted.keys() - found.keys())
    if lacking:
        notes.append(
            f"{counted(len(lacking), 'tensor')} of this plan not in {printable(checkpoint.name)}, so buffers among "
            f"them stay as compiled: {_listed(lacking)}"
        )
    extra = sorted(found.keys() - wanted.keys() - _tied_names(prepared))
    if extra:
        count = counted(len(extra), "tensor")
        notes.append(f"{count} of {printable(checkpoint.name)} without a place in this plan: {_listed(extra)}")
    return notes


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, map(printable, names[:_SHOWN]))) + (", …" if len(names) > _SHOWN else "")


def refuse_other(
    checkpoint: Path, name: str, found: tuple[str, tuple[int, ...]], wanted: tuple[str, tuple[int, ...]]
) -> None:
    """Refuse a tensor of another dtype or shape.

    Raises:
        RunError: with both.
    """
    if found != wanted:
        raise RunError(
            f"{checkpoint.name} has {printable(name)!r} as {found[0]}{list(found[1])}, the plan's model as "
            f"{wanted[0]}{list(wanted[1])}"
        )


def refuse_untied(
    checkpoint: Path, loaded: "Mapping[str, Tensor]", into: "Mapping[str, Tensor]", tied_as: Mapping[str, str]
) -> None:
    """Refuse tensors that are one in the plan's model and differ in the checkpoint.

    Args:
        checkpoint: Its folder.
        loaded: Its tensors by name.
        into: Those of a stage, by name; what is tied is one tensor under several names.
        tied_as: Of names, the one that the plan has for a tensor; it may lie in another stage.

    Raises:
        RunError: with both names.
    """
    import torch  # noqa: PLC0415 - torch only in the processes of a run

    first: dict[int, str] = {}
    for name in loaded:
        others = [tied_as.get(name, name), first.setdefault(id(into.get(name, name)), name)]
        for other in others:
            if other in loaded and not torch.equal(loaded[name], loaded[other]):
                raise RunError(
                    f"{checkpoint.name} has other numbers in {printable(name)!r} than in {printable(other)!r}, which "
                    f"are one tensor in the plan's model; it is of another model"
                )


def _of_plan(prepared: Prepared) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    for files in prepared.plan.artifacts:
        for artifact in files:
            if artifact.file.endswith(".safetensors"):
                yield from _header(prepared.folder / artifact.file).items()


def _tied_names(prepared: Prepared) -> set[str]:
    """Give the names that share the tensor of another name, as the sources of the stages say; nothing is run."""
    found: set[str] = set()
    for files in prepared.plan.artifacts:
        for artifact in files:
            if artifact.file.endswith(".py"):
                found |= set(_names_in((prepared.folder / artifact.file).read_bytes()))
    return found


def _names_in(source: bytes) -> Iterator[str]:
    for statement in ast.parse(source).body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if isinstance(statement, ast.Assign) and isinstance(target, ast.Name) and target.id in _TIES:
            with suppress(ValueError):
                yield from ast.literal_eval(statement.value)


def _of_checkpoint(checkpoint: Path, state: RunState) -> dict[str, tuple[str, tuple[int, ...]]]:
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for stage in state.stages:
        path = checkpoint / f"weights-{stage}.safetensors"
        try:
            found |= _header(path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{str(path)!r} is damaged or missing ({error}); {way_out(checkpoint)}") from error
    if state.servers:
        found |= {name: ("F32", shape) for name, shape in read_tables(checkpoint / SERVERS_NAME).items()}
    return found


def _header(path: Path) -> dict[str, Any]:
    """Give what a file of safetensors says of its tensors."""
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - only where a run goes on

    try:
        with safe_open(path, framework="np") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - safe_open is no mapping
            return {name: (one.get_dtype(), tuple(one.get_shape())) for name, one in slices.items()}
    except SafetensorError as error:
        raise ValueError(str(error)) from error
