"""What ranks check together before the first step: that all run the same, and which folders they share.

Every rank says what it runs; where they differ, all refuse alike. A folder may be one of the same name on a disk of its
own on every machine, so rank 0 puts a file into it and the others look for that.

Left out: the layout, which follows from plan and options; whether machines reach each other (``addresses.py``).
"""

import json
import platform
import re
from collections.abc import Mapping
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.packages import PYTORCH, __version__
from heterps_compile.strict_json import received

from .prepare import Prepared
from .run_options import GIVEN, RunOptions
from .store_values import read_word

if TYPE_CHECKING:
    from heterps_compile.runtime.c10d import Store


_NAMES = {
    "plan": "the plan (SHA-256 of plan.json)",
    "heterps_compile": "heterps-compile",
    PYTORCH: PYTORCH,
    "python": "Python",
    "training": "the training file (SHA-256)",
}
_SHOWN = 64

COME_S = 600.0
"""How long ranks wait for each other before the first step; machines may take their time to start."""

_NUMBER = re.compile(r"[0-9a-f]{32}")


def statement(prepared: Prepared, options: RunOptions, device: str, address: str) -> dict[str, Any]:
    """Return what this rank runs: versions, hashes of plan and training file, options, and where it computes."""
    import torch  # noqa: PLC0415 - torch only in the processes of a run

    return {
        "plan": prepared.plan_sha256,
        "training": None if options.train in (None, GIVEN) else sha256(Path(options.train).read_bytes()).hexdigest(),
        "heterps_compile": __version__,
        PYTORCH: torch.__version__,
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
    told = [(store.get(f"agree/{other}"), f"what rank {other} says of itself") for other in range(world_size)]
    said = [received(dict[str, Any], text, what) for text, what in told]
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


def _show(value: object) -> str:
    text = printable(value if isinstance(value, str) else json.dumps(value))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def ranks_without(store: "Store", rank: int, world_size: int, folder: Path, what: str) -> list[int]:
    """Return the ranks that do not see what rank 0 puts into a folder; every rank calls it and gets the same answer.

    Args:
        store: Of the run.
        rank: This one.
        world_size: Ranks in all.
        folder: Where this rank looks for it; rank 0 makes it.
        what: A word for it.

    Raises:
        RunError: where rank 0 cannot write there.
    """
    key = f"shared/{what}"
    if rank == 0:
        _put(store, folder, key, token_hex(16))  # nobody has looked for that name: no NFS client takes it to be absent
    token = folder / _name(read_word(store, key, _NUMBER, "a number"))
    store.set(f"{key}/{rank}", "seen" if token.exists() else "")
    answers = [store.get(f"{key}/{other}") for other in range(world_size)]
    if rank == 0:
        token.unlink(missing_ok=True)
    return [other for other, answer in enumerate(answers) if not answer]


def refuse_own_folders(store: "Store", rank: int, world_size: int, folder: Path) -> None:
    """Refuse a folder of checkpoints that not all ranks share.

    Raises:
        RunError: naming the first rank that does not see it; the same on every rank.
    """
    without = ranks_without(store, rank, world_size, folder, "checkpoints")
    if without:
        raise RunError(
            f"the folder of checkpoints {str(folder)!r} is not the same for rank 0 and rank {without[0]}; name one "
            f"that all machines share, such as a network file system's (--checkpoint DIR)"
        )


def _put(store: "Store", folder: Path, key: str, number: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _name(number)).touch()
    except OSError as error:
        raise RunError(f"cannot write in {str(folder)!r}: {error.strerror}") from error
    store.set(key, number)


def _name(number: str) -> str:
    return f".heterps-seen-{number}"
