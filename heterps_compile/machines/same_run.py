"""Whether a checkpoint, a plan and a model are of one run, before anything is decided about it.

A checkpoint carries the SHA-256 of the plan that wrote it and of its model's structure, and names and shapes of its
tensors; a plan carries that of the model, and its stages' files have the tensors. Only headers of files are read.

Left out: the bytes of the tensors, which the run checks when it loads them.
"""

import hashlib
from pathlib import Path

from heterps_compile.errors import InputError
from heterps_compile.escape import printable
from heterps_compile.ir.graph import Graph
from heterps_compile.plan.folder import PLAN_NAME
from heterps_compile.plan.provenance import hash_graph
from heterps_compile.plan.source import read_plan
from heterps_compile.runtime.checkpoint.format import Checkpoint
from heterps_compile.runtime.checkpoint.start import check_tensors


def check_same_run(folder: str | Path, checkpoint: Checkpoint) -> tuple[str, tuple[str, ...]]:
    """Check that a folder's plan can go on from a checkpoint.

    Returns:
        The SHA-256 of the plan's model, "" where an earlier version wrote none, and what the user should know.

    Raises:
        HeterpsError: where the checkpoint has other tensors than the plan's stages, or a file cannot be read.
    """
    plan = read_plan(str(folder))
    shown, name, state = printable(repr(str(folder))), checkpoint.name, checkpoint.state
    notes = check_tensors(checkpoint, plan, Path(folder), resumes=True)
    try:
        written = hashlib.sha256((Path(folder) / PLAN_NAME).read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"cannot read the plan in {shown}: {error.strerror}") from error
    if state.plan != written:
        notes.append(
            f"{name} was written under another plan (SHA-256 {printable(state.plan[:12])}…) than that in {shown} "
            f"({written[:12]}…), of the same tensors: what is said of the step is of the latter"
        )
    before, here = [replicas for _, replicas in state.sync], [stage.replicas for stage in plan.stages]
    if before and before != here:
        notes.append(
            f"{name} was written by {_listed(before)} replicas of the stages, and the plan in {shown} has "
            f"{_listed(here)}: name lost machines (--lost) where it goes on with fewer"
        )
    return plan.hashes.get("model", ""), tuple(notes)


def check_same_model(model: str, graph: Graph, sha256: str) -> None:
    """Check that a model is the one a plan was made for.

    Args:
        model: What messages call it.
        graph: The model.
        sha256: Of the plan's; "" where it is not known.

    Raises:
        InputError: where its structure is another.
    """
    found = hash_graph(graph)
    if sha256 and found != sha256:
        raise InputError(
            f"{model} is not the model that the plan was made for: the SHA-256 of its structure is {found[:12]}…, the "
            f"plan has {printable(sha256[:12])}…; name the model, with the same --shape, that machines -o was given"
        )


def _listed(counts: list[int]) -> str:
    return ", ".join(map(str, counts))
