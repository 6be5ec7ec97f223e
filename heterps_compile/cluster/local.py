"""Describe this machine as a pool, from what it can be asked.

Units are CPU cores. Memory and the number of cores are read, what a container may use of them included; rates are
typical of one core of a current server and marked so. Left out: GPUs (a pool file describes them), measurement.
"""

import os
from pathlib import Path

SOURCE = "this machine"
"""The source of a pool that describes the machine it is made on."""

_LIMITS = Path("/sys/fs/cgroup")  # of a container, in files of the second version of control groups


def local_toml() -> str:
    """Return the text of a pool's file with this machine's CPU cores; its price is free."""
    cores = usable_cores()
    return f"""\
description = "{SOURCE}: {cores} CPU cores; rates are typical of one server core, not measured"

[[device]]
name = "core"
kind = "cpu"
price = "free"
price_source = "{SOURCE}, owned"
max_units = {cores}
memory = "{memory_of_machine_bytes() // cores} B"  # of one core: its share
peak = {{ float32 = "60 GFLOP/s", float64 = "30 GFLOP/s" }}
memory_bandwidth = "10 GB/s"
network_bandwidth = "2 GB/s"  # loopback
network_latency = "50 us"
input_bandwidth = "2 GB/s"
launch = "20 us"  # of an operation of eager PyTorch
efficiency = 0.6
compute_parallel = 0.95
data_parallel = 0.95
"""


def usable_cores() -> int:
    """Count the cores that this process may use: those it may run on, no more than its container has the time of."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    match _limit("cpu.max"):
        case [quota_us, period_us] if period_us > 0:
            return max(1, min(cores, quota_us // period_us))
    return cores


def memory_of_machine_bytes() -> int:
    """Return the memory of this machine, no more than its container may use."""
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_limit("memory.max")])


def _limit(file: str) -> list[int]:
    """Return the numbers of a limit; none where there is no limit, or no such file."""
    try:
        words = (_LIMITS / file).read_text("ascii").split()
    except OSError:
        return []
    return [] if words[:1] == ["max"] else [int(word) for word in words if word.isdigit()]
