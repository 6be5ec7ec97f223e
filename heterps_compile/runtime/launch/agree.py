"""Before the first step, every rank says what it runs; where they differ, all refuse alike.

Left out: the layout, which follows from plan and options.
"""

import json
import platform
from collections.abc import Mapping
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heterps_compile import __version__
from heterps_compile.errors import RunError
from heterps_compile.escape import printable

from .options import GIVEN, RunOptions
from .prepare import Prepared

if TYPE_CHECKING:
    from heterps_compile.runtime.c10d import Store

_NAMES = {
    "plan": "the plan (SHA-256 of plan.json)",
    "heterps_compile": "heterps-compile",
    "torch": "torch",
    "python": "Python",
    "training": "the training file (SHA-256)",
}
_SHOWN = 64

COME_S = 600.0
"""How long ranks wait for each other before the first step; machines may take their time to start."""


def statement(prepared: Prepared, options: RunOptions, device: str, address: str) -> dict[str, Any]:
    """Return what this rank runs: versions, hashes of plan and training file, options, and where it computes."""
    import torch  # noqa: PLC0415 - torch only in the processes of a run

    return {
        "plan": prepared.plan_sha256,
        "training": None if options.train in (None, GIVEN) else sha256(Path(options.train).read_bytes()).hexdigest(),
        "heterps_compile": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "options": options.shared(),
        "device": device,
        "host": platform.node(),
        "address": address,
    }


def agree(
    store: "Store", rank: int, world_size: int, mine: Mapping[str, Any], *, patience_s: float = COME_S
) -> list[dict[str, Any]]:
    """Wait for what all ranks say and compare it.

    Args:
        store: Of the run.
        rank: This one.
        world_size: Ranks in all.
        mine: What this rank says.
        patience_s: How long to wait for the others.

    Returns:
        What each said, rank by rank.

    Raises:
        RunError: naming the rank that differs from rank 0, and both values; the same on every rank.
    """
    store.set(f"agree/{rank}", json.dumps(mine))
    keys = [f"agree/{other}" for other in range(world_size)]
    try:
        store.wait(keys, timedelta(seconds=patience_s))
    except RuntimeError as error:  # what torch raises where time is up
        missing = [other for other, key in enumerate(keys) if not store.check([key])]
        if not missing:
            raise
        raise RunError(
            f"{len(missing)} of {world_size} ranks did not come within {patience_s:g} s, rank {missing[0]} first; "
            f"start all of them"
        ) from error
    said = [_read(store.get(f"agree/{other}"), other) for other in range(world_size)]
    for other in range(1, world_size):
        for key, name in _NAMES.items():
            _compare(name, said[0].get(key), said[other].get(key), other)
        first, second = said[0].get("options"), said[other].get("options")
        if not isinstance(first, dict) or not isinstance(second, dict):
            raise RunError(f"rank {other} or rank 0 did not say what options it has; do they run different versions?")
        for key in sorted({*first, *second}):
            _compare(f"the option {printable(key)}", first.get(key), second.get(key), other)
    return said


def _compare(name: str, first: object, other: object, rank: int) -> None:
    if first != other:
        raise RunError(
            f"ranks differ in {name}: rank 0 has {_show(first)}, rank {rank} has {_show(other)}; start all with the "
            f"same"
        )


def _read(text: bytes, rank: int) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise RunError(f"what rank {rank} says of itself cannot be read") from error
    if not isinstance(content, dict):
        raise RunError(f"what rank {rank} says of itself cannot be read")
    return content


def _show(value: object) -> str:
    text = printable(value if isinstance(value, str) else json.dumps(value))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
