"""Connections to the key-value store of a run, one for every thread that waits in it.

======================================  =========================================================
ranks of one machine with a launcher    a file for every key in the run's private folder
ranks of any scheduler                  ``TCPStore`` at ``MASTER_ADDR:MASTER_PORT``, below a prefix
======================================  =========================================================

What changes several times a second is on a page (``beats.py``).

Left out: how ranks meet, and who hosts the server (``env_rank.py``).
"""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from heterps_compile.errors import RunError
from heterps_compile.escape import one_line, printable
from heterps_compile.runtime.c10d import PrefixStore, Store, TCPStore

from .folder_store import FolderStore

Connect = Callable[[], Store]
"""Makes a connection for one thread."""

FOLDER = timedelta(seconds=10)
"""Patience of a launcher and of ``resize`` for a value."""

_PATIENCE = timedelta(days=7)  # the watchers end a wait, not a clock
_CONNECT = timedelta(minutes=1)
_NAME = "store"


def folder_store(folder: Path, patience: timedelta = _PATIENCE) -> Store:
    """Open the store in the folder of a run.

    Args:
        folder: Of the run.
        patience: For values.
    """
    return FolderStore(folder / _NAME, patience)


def tcp_store(address: str, port: int, prefix: str) -> Store:
    """Connect to the server that the ranks of a world have.

    Args:
        address: Of the server.
        port: Of the server.
        prefix: Of the keys of this run.

    Raises:
        RunError: if the server cannot be reached.
    """
    try:
        store = TCPStore(address, port, None, False, timeout=_CONNECT, wait_for_workers=False)
    except RuntimeError as error:
        raise RunError(
            f"this rank cannot reach the store of the run at {printable(address)}:{port} any more: "
            f"{one_line(str(error))[:300]}. Fix: see whether rank 0 or its agent has ended"
        ) from error
    store.set_timeout(_PATIENCE)
    return PrefixStore(prefix, store)
