"""What was measured where: the machine and its devices.

Left out: clock rates and caches, which a virtual machine does not tell reliably.
"""

import os
import platform
from pathlib import Path

from heterps_compile.cluster.local import usable_cores
from heterps_compile.cost.profile import Host
from heterps_compile.errors import InputError
from heterps_compile.escape import printable

_SHOWN = 200


def describe_host() -> Host:
    """Describe this machine."""
    return Host(
        system=f"{platform.system()} {platform.machine()}",
        processor=_processor(),
        cores=usable_cores(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return printable(platform.processor() or platform.machine())[:_SHOWN]
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return printable(next(named, platform.machine()))[:_SHOWN]


def describe_device(name: str) -> tuple[str, str]:
    """Return a device's kind and what it calls itself.

    Args:
        name: ``"cpu"``, or ``"cuda:N"`` as PyTorch calls it.

    Raises:
        InputError: where there is no such device here.
    """
    if name == "cpu":
        return "cpu", _processor()
    kind, _, index = name.partition(":")
    if kind != "cuda" or not (index.isascii() and index.isdigit()):
        raise InputError(f"unknown device {name!r}; a profile is of cpu, or of a GPU such as cuda:0")
    import torch  # noqa: PLC0415 - torch only to ask for GPUs

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(index) >= count:
        raise InputError(f"there is no device {name!r}: PyTorch finds {count} GPUs here; take --device cpu")
    return "gpu", printable(torch.cuda.get_device_name(int(index)))[:_SHOWN]
