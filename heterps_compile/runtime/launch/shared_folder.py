"""Whether a folder is one that all ranks share: a disk of its own on every machine may have one of the same name.

Left out: what lies there (``checkpoint.py``, ``telemetry/``).
"""

import re
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from heterps_compile.errors import RunError

from .said import said_word

if TYPE_CHECKING:
    from heterps_compile.runtime.c10d import Store

_NUMBER = re.compile(r"[0-9a-f]{32}")


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
    token = folder / _name(said_word(store, key, _NUMBER, "a number"))
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
