"""What the files of a stage say of its tensors; nothing of them is run, and no weights are read.

Left out: who is to hold what (``checkpoint_start.py``, ``sync_of_run.py``).
"""

import ast
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

_TIES = ("TIED", "TIED_AS")


def tied_pairs_in(source: bytes) -> Iterator[tuple[str, str]]:
    """Yield names, and others that share their tensor, as the source of a stage says; nothing is run."""
    for statement in ast.parse(source).body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if isinstance(statement, ast.Assign) and isinstance(target, ast.Name) and target.id in _TIES:
            with suppress(ValueError):
                yield from ast.literal_eval(statement.value).items()


def tensors_in(path: Path) -> dict[str, Any]:
    """Return what a file of safetensors says of its tensors."""
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - only where a run goes on

    try:
        with safe_open(path, framework="np") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - safe_open is no mapping
            return {name: (one.get_dtype(), tuple(one.get_shape())) for name, one in slices.items()}
    except SafetensorError as error:
        raise ValueError(str(error)) from error
