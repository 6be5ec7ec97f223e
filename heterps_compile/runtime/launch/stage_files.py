"""What the files of a stage say of its tensors; nothing of them is run, and no weights are read.

Left out: who is to hold what (``checkpoint/start.py``, ``combinations.py``).
"""

import ast
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from heterps_compile.plan.plan import Plan

_TIES = ("TIED", "TIED_AS")
_SPARSE = {"embedding": ("sparse", 4), "embedding_bag": ("sparse", 5)}
"""Ops whose weight may get a sparse gradient, and which argument of theirs says so, by name and by place."""


def tied_pairs_in(source: bytes) -> Iterator[tuple[str, str]]:
    """Yield names, and others that share their tensor, as the source of a stage says; nothing is run."""
    for statement in ast.parse(source).body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if isinstance(statement, ast.Assign) and isinstance(target, ast.Name) and target.id in _TIES:
            with suppress(ValueError):
                yield from ast.literal_eval(statement.value).items()


def sparse_weights_in(source: bytes) -> Iterator[str]:
    """Yield the weights that get sparse gradients as the source of a stage says, as it calls them; nothing is run."""
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        words = ast.unparse(call.func).split(".")
        op = next((word for word in words if word in _SPARSE), None)
        if op is None or not call.args:
            continue
        keyword, place = _SPARSE[op]
        given = [one.value for one in call.keywords if one.arg == keyword] or call.args[place : place + 1]
        if any(isinstance(one, ast.Constant) and one.value is True for one in given):
            yield ast.unparse(call.args[0]).removeprefix("self.")


def tensors_in(path: Path) -> dict[str, Any]:
    """Return what a file of safetensors says of its tensors."""
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - only where a run goes on

    try:
        with safe_open(path, framework="np") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - safe_open is no mapping
            return {name: (one.get_dtype(), tuple(one.get_shape())) for name, one in slices.items()}
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def sparse_weights_of(plan: Plan, folder: Path, stage: int) -> Iterator[str]:
    """Yield the weights of a stage that get sparse gradients, as its source calls them."""
    for artifact in plan.artifacts[stage] if stage < len(plan.artifacts) else ():
        if artifact.file.endswith(".py"):
            yield from sparse_weights_in((folder / artifact.file).read_bytes())


def stages_with(plan: Plan, folder: Path, name: str) -> list[int]:
    """Return the stages whose files have a tensor, under whatever name."""
    found = []
    for stage, files in zip(plan.stages, plan.artifacts, strict=False):
        names: set[str] = set()
        for artifact in files:
            if artifact.file.endswith(".safetensors"):
                names |= tensors_in(folder / artifact.file).keys()
            elif artifact.file.endswith(".py"):
                names |= {one for pair in tied_pairs_in((folder / artifact.file).read_bytes()) for one in pair}
        found += [stage.index] if name in names else []
    return found
