"""The files of the stages in evaluation mode, beside those of the training: their source, and the same weights.

They are written aside by the backend. A weights file whose tensors all lie in the stage's own, under the same names and
with the same bytes, goes: the source reads that one. What is left gets ``scoring`` into its name::

    stage_0.py  stage_0.safetensors        stage_0_scoring.py

Of a plan for training, the plan to score by is that of these stages; :func:`plan_for_scoring` makes it.

Left out: what is in the files (``backends/``), how the stages come about (``heterps_compile/scoring.py``).
"""

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from heterps_compile.errors import RunError
from heterps_compile.escape import printable

from .plan import Plan

_WEIGHTS = ".safetensors"
_CHUNK_BYTES = 2**24
_LENGTH_BYTES = 8


def add_scoring(
    folder: Path, names: Sequence[Sequence[str]], write_stages: Callable[[Path], list[list[str]]]
) -> list[list[str]]:
    """Write the stages in evaluation mode into a folder that has those of the training.

    Args:
        folder: The folder.
        names: Of the files of every stage of the training.
        write_stages: Writes the others into an empty folder; gives the names of the files of each.

    Returns:
        Names of the files of every stage in evaluation mode, some of them those of the training.

    Raises:
        OSError: where something cannot be written.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".scoring-") as aside:
        written = write_stages(Path(aside))
        return [
            [_placed(Path(aside) / name, folder, own) for name in files]
            for files, own in zip(written, names, strict=True)
        ]


def _placed(path: Path, folder: Path, own: Sequence[str]) -> str:
    """Return the name that a file has in the folder: that of one which has all of it already, or a new one."""
    if path.name in own and path.suffix == _WEIGHTS and _is_part(path, folder / path.name):
        return path.name
    stem, dot, suffix = path.name.partition(".")
    name = f"{stem}_scoring{dot}{suffix}"
    path.rename(folder / name)
    return name


def _is_part(path: Path, other: Path) -> bool:
    """Tell whether every tensor of a file of safetensors lies in another one as well."""
    (mine, at), (theirs, their_at) = _header(path), _header(other)
    with path.open("rb") as one, other.open("rb") as two:
        for name, entry in mine.items():
            found = theirs.get(name)
            if found is None or (found["dtype"], found["shape"]) != (entry["dtype"], entry["shape"]):
                return False
            begin, end = entry["data_offsets"]
            one.seek(at + begin)
            two.seek(their_at + found["data_offsets"][0])
            for first in range(begin, end, _CHUNK_BYTES):
                count = min(_CHUNK_BYTES, end - first)
                if one.read(count) != two.read(count):
                    return False
    return True


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """Return what a file of safetensors says of its tensors, and where they begin."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header, _LENGTH_BYTES + length


def plan_for_scoring(plan: Plan) -> Plan:
    """Return a plan whose stages score; of one for inference itself.

    Raises:
        RunError: where a plan for training carries nothing to score with, saying why.
    """
    if plan.request.mode != "training":
        return plan
    scoring, shown = plan.scoring, printable(plan.model)
    if scoring is None:
        raise RunError(
            f"{shown!r} was compiled for training by an earlier version, without what scoring needs: dropout would "
            f"draw and batch norms would take the statistics of the micro-batch; compile it again"
        )
    if scoring.refused:
        raise RunError(f"{shown!r} was compiled for training and cannot score: {printable(scoring.refused)}")
    stages = tuple(
        replace(stage, inputs=inputs, outputs=outputs)
        for stage, (inputs, outputs) in zip(plan.stages, scoring.boundaries, strict=True)
    )
    return replace(
        plan,
        graph_inputs=scoring.graph_inputs,
        graph_outputs=scoring.graph_outputs,
        signature=scoring.signature,
        stages=stages,
        artifacts=scoring.artifacts,
        verification=scoring.verification or plan.verification,
    )
