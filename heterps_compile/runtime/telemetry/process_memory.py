"""The memory of a process, and what names its machine.

Left out: memory of other processes, and what other libraries than torch take on a GPU.
"""

import platform
import resource
import sys
from pathlib import Path
from typing import NamedTuple

_STATUS = Path("/proc/self/status")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_KIB = 1024


class MemoryUse(NamedTuple):
    """Bytes of this process: resident, resident at most so far, and the same of tensors on its GPU."""

    rss_bytes: int
    peak_rss_bytes: int
    gpu_bytes: int
    peak_gpu_bytes: int


def memory_use(gpu_index: int | None = None) -> MemoryUse:
    """Look at the memory of this process.

    Args:
        gpu_index: Of the CUDA device to look at besides, None for none.
    """
    rss_bytes, peak_bytes = _resident()
    if gpu_index is None:
        return MemoryUse(rss_bytes, peak_bytes, 0, 0)
    import torch  # noqa: PLC0415 - whoever has a GPU has it loaded; the launcher has not

    held, peak = torch.cuda.memory_allocated(gpu_index), torch.cuda.max_memory_allocated(gpu_index)
    return MemoryUse(rss_bytes, peak_bytes, held, peak)


def _resident() -> tuple[int, int]:
    try:
        lines = _STATUS.read_text("ascii", "replace").splitlines()
    except OSError:  # no Linux: only the largest value is known, in KiB, on macOS in bytes
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else _KIB)
        return peak, peak
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return tuple(int(fields[name].split()[0]) * _KIB for name in ("VmRSS", "VmHWM"))  # type: ignore[return-value]  # two


def machine_name() -> str:
    """Return what names this machine until it is booted again; its processes share the monotonic clock.

    Its host name is part of it: clones of a virtual machine were booted once.
    """
    try:
        return f"{_BOOT.read_text('ascii').strip()} {platform.node()}"
    except OSError:
        return platform.node()
