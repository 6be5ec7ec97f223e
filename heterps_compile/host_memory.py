"""How much memory there is on this machine for what is about to be made.

Left out: memory of accelerators, and memory that other processes ask for later.
"""

import mmap
import os
from pathlib import Path
from typing import Any

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_USED = ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")


def available_bytes() -> int:
    """Return the bytes that this process can still have: free on the machine, and allowed by its control group."""
    found = [_of_machine()]
    for limit, used in zip(_LIMITS, _USED, strict=True):
        allowed, taken = _number(limit), _number(used)
        if allowed is not None and taken is not None:
            found.append(max(allowed - taken, 0))
    return min(found)


def release_mapped(array: Any) -> None:
    """Release the pages of an array in a mapped file.

    Anything else stays as it is: a map that may have been written to would lose what is in no file.
    """
    base = array
    while base is not None and not isinstance(base, mmap.mmap):
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    if base is None or array.nbytes == 0:
        return
    with memoryview(base) as view:
        if not view.readonly:
            return
    import numpy as np  # noqa: PLC0415 - arrays are there, so numpy is

    start = array.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    base.madvise(mmap.MADV_DONTNEED, first, min(start + array.nbytes, len(base)) - first)


def _of_machine() -> int:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _number(path: str) -> int | None:
    """Return the number in a file, None where there is none ("max" is no limit)."""
    try:
        text = Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
