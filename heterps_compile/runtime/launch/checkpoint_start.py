"""Whether the tensors of a checkpoint are those of a plan's stages: by name, shape and what is tied.

The mode and the cuts it was written in do not count, nor does the code of the model: a folder compiled in evaluation
mode scores with a checkpoint of a training. Only headers of files are read, before any process of the run starts; a
rank looks again at what it loads.

Left out: the bytes (``checkpoint_hashes.py``), the state of optimisers (``optimizer_state.py``).
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from heterps_compile.cost.precision import SCALED
from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.plan.plan import Plan
from heterps_compile.runtime.data.identity import Identity, difference
from heterps_compile.units import counted

from .block_notes import block_notes, refuse_other_blocks, refuse_unknown_block
from .checkpoint_folder import STATE_NAME, find_checkpoints, is_state_dict, stage_file, tidy, way_out
from .checkpoint_format import SERVERS_NAME, check_written, read_state, read_tables, unchecked_note
from .checkpoint_state import RunState
from .own_state import own_state_notes
from .prepare import Prepared
from .run_options import RunOptions
from .stage_files import tensors_in, tied_pairs_in
from .table_states import refuse_other_growth

if TYPE_CHECKING:
    from torch import Tensor


class Compiled(Protocol):
    """A folder with its plan, as ``Prepared`` is one."""

    @property
    def folder(self) -> Path:
        """Return the compiled folder."""
        ...

    @property
    def plan(self) -> Plan:
        """Return its plan."""
        ...


Described = Mapping[str, tuple[str, tuple[int, ...]]]
"""Dtype and shape of tensors, by name."""

_SHOWN = 3


def check_tensors(checkpoint: Path, state: RunState, prepared: Compiled, *, resumes: bool = False) -> list[str]:
    """Check that a run can take a checkpoint's tensors.

    Args:
        checkpoint: Its folder.
        state: Of it.
        prepared: The run, or the folder it is to run.
        resumes: Whether the run goes on with the state of its optimiser too, not with the weights alone.

    Returns:
        What the user should know of it, in sentences.

    Raises:
        RunError: naming a tensor of another shape, with both; or where no name is known; or two names that are one
            tensor in the one and two in the other, where a run goes on.
    """
    wanted = dict(_of_plan(prepared))
    if not wanted:  # a plan whose files lie elsewhere
        return []
    found = describe_tensors(checkpoint, state)
    common = wanted.keys() & found.keys()
    if not common:
        raise RunError(
            f"{checkpoint.name} is of another model: none of its {counted(len(found), 'tensor')} has the name of one "
            f"of the plan's; name another folder"
        )
    for name in sorted(common):
        if found[name][1] != wanted[name][1]:  # a dtype is looked at where the tensor is put
            refuse_other(checkpoint, name, found[name], wanted[name])
    notes = _tie_notes(checkpoint, state, prepared, {*wanted, *found}, resumes=resumes)
    if state.model not in ("", prepared.plan.hashes.get("model", "")):
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
    extra = sorted(found.keys() - wanted.keys() - {name for name, _ in _tied_pairs(prepared)})
    if extra:
        count = counted(len(extra), "tensor")
        notes.append(f"{count} of {printable(checkpoint.name)} without a place in this plan: {_listed(extra)}")
    return notes


def check_same_model(before: Prepared, after: Prepared) -> None:
    """Check that a run can go on in another compiled folder.

    Raises:
        RunError: where its model has other tensors, naming one.
    """
    here, there = dict(_of_plan(before)), dict(_of_plan(after))
    for name in sorted({*here, *there}):
        if here.get(name) != there.get(name):
            found = [f"{of[name][0]}{list(of[name][1])}" if name in of else "not at all" for of in (here, there)]
            raise RunError(
                f"{printable(str(after.folder))!r} is of another model: the run trains {printable(name)!r} as "
                f"{found[0]}, the folder has it {'' if name not in there else 'as '}{found[1]}"
            )


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


def ties_of(prepared: Compiled) -> tuple[tuple[str, ...], ...]:
    """Return the names of parameters that are one tensor, group by group, as the sources of a plan's stages say."""
    groups: dict[str, set[str]] = {}
    for name, other in _tied_pairs(prepared):
        both = groups.get(name, {name}) | groups.get(other, {other})
        groups.update(dict.fromkeys(both, both))
    return tuple(sorted({tuple(sorted(group)) for group in groups.values() if len(group) > 1}))


def _tie_notes(checkpoint: Path, state: RunState, prepared: Compiled, names: set[str], *, resumes: bool) -> list[str]:
    """Compare what is tied in a checkpoint and in a plan, as far as both know the names."""
    if state.tied is None:  # an earlier version did not say; what differs in numbers is found when it is loaded
        return []
    there, here = _first_of_group(state.tied), _first_of_group(ties_of(prepared))
    notes = []
    for ties, others, is_there in ((there, here, True), (here, there, False)):
        for name, first in sorted(ties.items()):
            if name == first or not {name, first} <= names or others.get(name, name) == others.get(first, first):
                continue
            both = f"{printable(first)!r} and {printable(name)!r}"
            counts = ("one tensor", "two") if is_there else ("two tensors", "one")
            if resumes:
                raise RunError(
                    f"{checkpoint.name} has {both} as {counts[0]}, and the plan's model as {counts[1]}: what an "
                    f"optimiser knows does not fit; begin with its weights (--weights {printable(str(checkpoint))}) "
                    f"and another folder (--checkpoint DIR)"
                )
            if is_there:
                notes.append(f"{both} are one tensor in {checkpoint.name} and two here: both begin with its numbers")
    return notes


def _first_of_group(groups: Sequence[Sequence[str]]) -> dict[str, str]:
    return {name: group[0] for group in groups for name in group}


def _of_plan(prepared: Compiled) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    for files in prepared.plan.artifacts:
        for artifact in files:
            if artifact.file.endswith(".safetensors"):
                yield from tensors_in(prepared.folder / artifact.file).items()


def _tied_pairs(prepared: Compiled) -> Iterator[tuple[str, str]]:
    """Yield names, and others that share their tensor, as the sources of the stages say; nothing is run."""
    for files in prepared.plan.artifacts:
        for artifact in files:
            if artifact.file.endswith(".py"):
                yield from tied_pairs_in((prepared.folder / artifact.file).read_bytes())


def describe_tensors(checkpoint: Path, state: RunState) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return dtype and shape of a checkpoint's weights and buffers by name, of tables on servers too.

    Raises:
        RunError: where a file is damaged or missing.
    """
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for stage in state.stages:
        path = checkpoint / stage_file(checkpoint, "weights", stage)
        try:
            found |= tensors_in(path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{str(path)!r} is damaged or missing ({error}); {way_out(checkpoint)}") from error
    if state.servers:
        found |= {name: ("F32", shape) for name, shape in read_tables(checkpoint / SERVERS_NAME).items()}
    return found


def check_weights(options: RunOptions, prepared: Prepared, *, files_too: bool = True) -> None:
    """Check that a run can begin with the weights of the checkpoint it names.

    Args:
        options: Of the run.
        prepared: The run.
        files_too: Whether its files are checked, or have just been.

    Raises:
        RunError: where it is none, is of another model, a file was changed, or a stage's weights are part of what
            runs it.
    """
    if options.weights is None:
        return
    checkpoint = Path(options.weights)
    if not (checkpoint / STATE_NAME).exists() and not is_state_dict(checkpoint):
        found = [printable(str(one)) for one in find_checkpoints(checkpoint)]
        own = "write weights of your own by safetensors.torch.save_file(model.state_dict(), 'init.safetensors')"
        fix = f"name a checkpoint in it (--weights {found[-1]})" if found else own
        raise RunError(f"{printable(str(checkpoint))!r} is no checkpoint and no .safetensors file. Fix: {fix}")
    if options.averaged and read_state(checkpoint).averaged is None:
        raise RunError(f"{printable(checkpoint.name)} has no average of its weights (--ema); leave --averaged out")
    if options.from_block is not None:
        refuse_unknown_block(checkpoint, read_state(checkpoint), options.from_block)
    refuse_other_growth(checkpoint, options.servers.grow_tables, with_state=False)
    if files_too:
        state = read_state(checkpoint)
        check_written(checkpoint, state)
        check_tensors(checkpoint, state, prepared)


def find_start(
    prepared: Prepared, options: RunOptions, data: Identity | None = None, *, files_too: bool = True
) -> Path | None:
    """Return the checkpoint that a run goes on from, None where it starts at the beginning.

    Args:
        prepared: The run.
        options: Its options.
        data: What it reads; None where they have not been opened yet, and any will do.
        files_too: Whether the checkpoint's files are checked, or have just been.

    Raises:
        RunError: where there are checkpoints and nobody asked to resume, or they do not fit the run, or a file of
            them was changed, or a table has grown in them and grows no more.
    """
    if options.checkpoint is None:
        return None
    directory = Path(options.checkpoint)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tidy(directory)
        with tempfile.TemporaryFile(dir=directory):  # what cannot be kept is told before it has been computed
            pass
        found = find_checkpoints(directory)
    except OSError as error:
        raise RunError(f"cannot use the folder {options.checkpoint!r} for checkpoints: {error.strerror}") from error
    if not found:
        return None
    refuse_unasked(options, found)
    state = read_state(found[-1])
    check_fits(found[-1], state, prepared, options, data)
    refuse_other_blocks(found[-1], state, prepared.sync, prepared.layout)
    refuse_other_growth(found[-1], options.servers.grow_tables, with_state=True)
    if files_too:
        check_written(found[-1], state)
        check_tensors(found[-1], state, prepared, resumes=True)
    return found[-1]


def refuse_unasked(options: RunOptions, found: Sequence[Path]) -> None:
    """Refuse checkpoints that are there although the run is not to resume.

    Raises:
        RunError: naming the last of them.
    """
    if found and not options.resume:
        raise RunError(
            f"{options.checkpoint!r} holds checkpoints up to {found[-1].name}; go on from there (--resume), or name "
            f"another folder (--checkpoint DIR)"
        )


def start_notes(options: RunOptions, prepared: Prepared, start: Path | None) -> list[str]:
    """Say of the checkpoint that a run begins with what a user should know."""
    found = start if start is not None else None if options.weights is None else Path(options.weights)
    if found is None:
        return [_begins_anew(options)] if options.resume else []
    state = read_state(found)
    note = unchecked_note(found, state)
    notes = [] if note is None else [note]
    if start is not None and state.precision != prepared.precision:
        left = ", without its loss scale" if state.scaling is not None and prepared.precision not in SCALED else ""
        notes.append(
            f"{start.name} was reached in {state.precision}, and the run goes on in {prepared.precision}{left}"
        )
    notes += average_notes(found, state, options, resumes=start is not None)
    notes += own_state_notes(found, state, prepared, resumes=start is not None)
    notes += block_notes(found, state, prepared.sync, resumes=start is not None, taken=options.block)
    return [*notes, *check_tensors(found, state, prepared, resumes=start is not None)]


def _begins_anew(options: RunOptions) -> str:
    return f"{printable(repr(options.checkpoint))} has no checkpoint to go on from: the run begins at its first step"


def average_notes(found: Path, state: RunState, options: RunOptions, *, resumes: bool) -> list[str]:
    """Say what becomes of the average of a checkpoint's weights, and where one begins that it does not have."""
    there, name = state.averaged, printable(found.name)
    if there is None:
        begins = resumes and options.ema is not None
        return [f"{name} has no average of its weights: one begins after the next step"] if begins else []
    average = f"an average of its weights (EMA, decay {there.decay:g})"
    if not resumes and options.averaged:
        return [f"{name} has {average}, which is taken; the weights themselves are left"]
    if not resumes:
        return [f"{name} has {average}, which is left: --averaged takes it in place of the weights"]
    if options.ema is None:
        return [f"{name} has {average}, which is left: --ema {there.decay:g} goes on with it"]
    return [f"{name} has {average}, which goes on with {options.ema:g}"] if options.ema != there.decay else []


def check_fits(
    checkpoint: Path, state: RunState, prepared: Prepared, options: RunOptions, data: Identity | None = None
) -> None:
    """Check that a run can go on from a checkpoint.

    Raises:
        RunError: where it counts its samples otherwise, or has read other data.
    """
    batch = prepared.layout.batch
    if state.batch != batch:
        raise RunError(
            f"{checkpoint.name} was reached with steps of {state.batch} samples, this run has {batch}; go on with "
            f"--batch {state.batch}, so that no sample is lost or repeated"
        )
    if state.seed != options.seed:
        raise RunError(
            f"{checkpoint.name} was reached with the seed {state.seed}, this run has {options.seed}; go on with "
            f"--seed {state.seed}, so that samples and masks are the same"
        )
    differ = None if state.data is None or data is None else difference(state.data, data, state.samples)
    if differ is not None:
        raise RunError(
            f"{checkpoint.name} was reached with other data ({differ[0]}) than this run reads ({differ[1]}); go on "
            f"with the same, or start anew on others with its weights (--weights {checkpoint}) and another folder "
            f"(--checkpoint DIR)"
        )
