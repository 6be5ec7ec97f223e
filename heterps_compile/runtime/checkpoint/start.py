"""The checkpoint that a run begins with: which it is, whether it fits the run, and what a user should know of it.

Tensors fit by name, shape and what is tied. The mode and the cuts it was written in do not count, nor does the code of
the model: a folder compiled in evaluation mode scores with a checkpoint of a training. Only headers of files are read,
before any process of the run starts; a rank looks again at what it loads.

Left out: the state of optimisers (``optimizer_state.py``).
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from heterps_compile.cost.precision import SCALED
from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.plan.plan import Plan
from heterps_compile.runtime.data.identity import Identity, difference
from heterps_compile.runtime.launch.block_notes import block_notes, refuse_other_blocks
from heterps_compile.runtime.launch.prepare import Prepared
from heterps_compile.runtime.launch.run_options import RunOptions
from heterps_compile.runtime.launch.stage_files import tensors_in, tied_pairs_in
from heterps_compile.units import counted

from .folder import STATE_NAME, find_checkpoints, is_state_dict, tidy
from .format import Checkpoint, Described, open_checkpoint
from .own_state import own_state_notes
from .table_states import refuse_other_growth

_SHOWN = 3


def check_tensors(checkpoint: Checkpoint, plan: Plan, folder: Path, *, resumes: bool = False) -> list[str]:
    """Check that a run can take a checkpoint's tensors.

    Args:
        checkpoint: To take them from.
        plan: Of the run.
        folder: Of the compiled stages.
        resumes: Whether the run goes on with the state of its optimiser too, not with the weights alone.

    Returns:
        What the user should know of it, in sentences.

    Raises:
        RunError: naming a tensor of another shape, with both; or where no name is known; or two names that are one
            tensor in the one and two in the other, where a run goes on.
    """
    wanted = _described(plan, folder)
    if not wanted:  # a plan whose files lie elsewhere
        return []
    found, state = checkpoint.describe(), checkpoint.state
    common = wanted.keys() & found.keys()
    if not common:
        raise RunError(
            f"{checkpoint.name} is of another model: none of its {counted(len(found), 'tensor')} has the name of one "
            f"of the plan's; name another folder"
        )
    for name in sorted(common):
        if found[name][1] != wanted[name][1]:  # a dtype is looked at where the tensor is put
            refuse_other(checkpoint, name, found[name], wanted[name])
    notes = _tie_notes(checkpoint, ties_of(plan, folder), {*wanted, *found}, resumes=resumes)
    if state.model not in ("", plan.hashes.get("model", "")):
        notes.append(
            f"{checkpoint.name} was written by a model in another mode or of other code (SHA-256 "
            f"{state.model[:12]}…): its tensors are taken by name"
        )
    lacking = sorted(wanted.keys() - found.keys())
    if lacking:
        notes.append(
            f"{counted(len(lacking), 'tensor')} of this plan not in {checkpoint.name}, so buffers among "
            f"them stay as compiled: {_listed(lacking)}"
        )
    extra = sorted(found.keys() - wanted.keys() - {name for name, _ in _tied_pairs(plan, folder)})
    if extra:
        count = counted(len(extra), "tensor")
        notes.append(f"{count} of {checkpoint.name} without a place in this plan: {_listed(extra)}")
    return notes


def check_same_model(before: Prepared, after: Prepared) -> None:
    """Check that a run can go on in another compiled folder.

    Raises:
        RunError: where its model has other tensors, naming one.
    """
    here, there = (_described(one.plan, one.folder) for one in (before, after))
    for name in sorted({*here, *there}):
        if here.get(name) != there.get(name):
            found = [f"{of[name][0]}{list(of[name][1])}" if name in of else "not at all" for of in (here, there)]
            raise RunError(
                f"{printable(str(after.folder))!r} is of another model: the run trains {printable(name)!r} as "
                f"{found[0]}, the folder has it {'' if name not in there else 'as '}{found[1]}"
            )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, map(printable, names[:_SHOWN]))) + (", …" if len(names) > _SHOWN else "")


def refuse_other(checkpoint: Checkpoint, name: str, found: Described, wanted: Described) -> None:
    """Refuse a tensor of another dtype or shape.

    Raises:
        RunError: with both.
    """
    if found != wanted:
        raise RunError(
            f"{checkpoint.name} has {printable(name)!r} as {found[0]}{list(found[1])}, the plan's model as "
            f"{wanted[0]}{list(wanted[1])}"
        )


def ties_of(plan: Plan, folder: Path) -> tuple[tuple[str, ...], ...]:
    """Return the names of parameters that are one tensor, group by group, as the sources of a plan's stages say."""
    groups: dict[str, set[str]] = {}
    for name, other in _tied_pairs(plan, folder):
        both = groups.get(name, {name}) | groups.get(other, {other})
        groups.update(dict.fromkeys(both, both))
    return tuple(sorted({tuple(sorted(group)) for group in groups.values() if len(group) > 1}))


def _tie_notes(
    checkpoint: Checkpoint, ties_here: Sequence[Sequence[str]], names: set[str], *, resumes: bool
) -> list[str]:
    """Compare what is tied in a checkpoint and in a plan, as far as both know the names."""
    if checkpoint.state.tied is None:  # not known to an earlier version; numbers are compared on loading
        return []
    there, here = _first_of_group(checkpoint.state.tied), _first_of_group(ties_here)
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
                    f"optimiser knows does not fit; begin with its weights "
                    f"(--weights {printable(str(checkpoint.path))}) and another folder (--checkpoint DIR)"
                )
            if is_there:
                notes.append(f"{both} are one tensor in {checkpoint.name} and two here: both begin with its numbers")
    return notes


def _first_of_group(groups: Sequence[Sequence[str]]) -> dict[str, str]:
    return {name: group[0] for group in groups for name in group}


def _files_of(plan: Plan, folder: Path, suffix: str) -> Iterator[Path]:
    return (folder / one.file for files in plan.artifacts for one in files if one.file.endswith(suffix))


def _described(plan: Plan, folder: Path) -> dict[str, Described]:
    return {name: one for path in _files_of(plan, folder, ".safetensors") for name, one in tensors_in(path).items()}


def _tied_pairs(plan: Plan, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield names, and others that share their tensor, as the sources of the stages say; nothing is run."""
    for path in _files_of(plan, folder, ".py"):
        yield from tied_pairs_in(path.read_bytes())


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
    path = Path(options.weights)
    if not (path / STATE_NAME).exists() and not is_state_dict(path):
        found = [printable(str(one)) for one in find_checkpoints(path)]
        own = "write weights of your own by safetensors.torch.save_file(model.state_dict(), 'init.safetensors')"
        fix = f"name a checkpoint in it (--weights {found[-1]})" if found else own
        raise RunError(f"{printable(str(path))!r} is no checkpoint and no .safetensors file. Fix: {fix}")
    checkpoint = open_checkpoint(path)
    checkpoint.kind(averaged=options.averaged, block=options.from_block)
    refuse_other_growth(checkpoint, options.servers.grow_tables, with_state=False)
    if files_too:
        checkpoint.check()
        check_tensors(checkpoint, prepared.plan, prepared.folder)


def find_start(
    prepared: Prepared, options: RunOptions, data: Identity | None = None, *, files_too: bool = True
) -> Checkpoint | None:
    """Return the checkpoint that a run resumes from, None where it starts at the beginning.

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
    start = open_checkpoint(found[-1])
    check_fits(start, prepared, options, data)
    refuse_other_blocks(start.path, start.state, prepared.sync, prepared.layout)
    refuse_other_growth(start, options.servers.grow_tables, with_state=True)
    if files_too:
        start.check()
        check_tensors(start, prepared.plan, prepared.folder, resumes=True)
    return start


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


def start_notes(options: RunOptions, prepared: Prepared, start: Checkpoint | None) -> list[str]:
    """Say what a user should know of the checkpoint that a run begins with."""
    found, resumes = start, start is not None
    if found is None and options.weights is not None:
        found = open_checkpoint(Path(options.weights))
    if found is None:
        shown = printable(repr(options.checkpoint))
        return [f"{shown} has no checkpoint to go on from: the run begins at its first step"] if options.resume else []
    notes, state = unchecked_notes(found), found.state
    if resumes and state.precision != prepared.precision:
        left = ", without its loss scale" if state.scaling is not None and prepared.precision not in SCALED else ""
        notes.append(
            f"{found.name} was reached in {state.precision}, and the run goes on in {prepared.precision}{left}"
        )
    notes += average_notes(found, options, resumes=resumes)
    notes += own_state_notes(found, prepared, resumes=resumes)
    notes += block_notes(found.path, state, prepared.sync, resumes=resumes, taken=options.block)
    return [*notes, *check_tensors(found, prepared.plan, prepared.folder, resumes=resumes)]


def unchecked_notes(checkpoint: Checkpoint) -> list[str]:
    """Say so if the files of a checkpoint cannot be checked."""
    if checkpoint.state.files is not None or is_state_dict(checkpoint.path):
        return []
    return [f"{checkpoint.name} was written by an earlier version, without hashes: damage in its files is not noticed"]


def average_notes(found: Checkpoint, options: RunOptions, *, resumes: bool) -> list[str]:
    """Say what becomes of the average of a checkpoint's weights, and where one begins that it does not have."""
    there, name = found.state.averaged, found.name
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


def check_fits(checkpoint: Checkpoint, prepared: Prepared, options: RunOptions, data: Identity | None = None) -> None:
    """Check that a run can go on from a checkpoint.

    Raises:
        RunError: where it counts its samples otherwise, or has read other data.
    """
    state, batch = checkpoint.state, prepared.layout.batch
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
            f"with the same, or start anew on others with its weights (--weights {checkpoint.path}) and another folder "
            f"(--checkpoint DIR)"
        )
