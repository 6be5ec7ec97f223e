"""How much memory there is on this machine for what is about to be made.

Left out: memory of accelerators, and memory that other processes ask for later.
"""

import os
from pathlib import Path

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_USED = ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")


def available_bytes() -> int:
    """Give the bytes that this process can still have: what the machine has free, and what its control group allows."""
    found = [_of_machine()]
    for limit, used in zip(_LIMITS, _USED, strict=True):
        allowed, taken = _number(limit), _number(used)
        if allowed is not None and taken is not None:
            found.append(max(allowed - taken, 0))
    return min(found)


def _of_machine() -> int:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _number(path: str) -> int | None:
    """Give the number in a file, None where there is none ("max" is no limit)."""
    try:
        text = Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
