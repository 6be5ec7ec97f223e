"""Give back the disk's room for the part of a file that has been read, so that a run may last as long as it likes.

The file keeps its size and whoever writes goes on where it is; what lies before becomes a hole. A rank writes about
400 bytes a step, so a day of steps of 10 ms would take 3.5 GB a rank without it, in the run's own folder; with it, a
file holds 1 MiB at most (``tests/unit/runtime/telemetry/test_follow.py``). Both who follows a rank's file and who
forwards it to another machine read it so.

Left out: systems and file systems that make no holes (others than Linux, NFS before 4.2): there the file grows as long
as the run lasts.
"""

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

RELEASE_EVERY_BYTES = 2**20
"""Read since the last time, before it is worth a call."""

_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # linux/falloc.h


def release(path: Path, size_bytes: int) -> None:
    """Give back the room for the first bytes of a file, where the system can."""
    if sys.platform != "linux":
        return
    with suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY)
        try:
            fallocate = ctypes.CDLL(None).fallocate64
            fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
            fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, 0, size_bytes)
        finally:
            os.close(descriptor)
