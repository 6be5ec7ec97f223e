"""Describe this machine as a pool, from what it can be asked.

Units are CPU cores. Memory and the number of cores are read; rates are typical of one core of a current
server and marked so. Left out: GPUs (a pool file describes them), measurement.
"""

import os
from types import MappingProxyType

from .devices import Cluster, DeviceType

SOURCE = "this machine"
"""The source of a pool that describes the machine it is made on."""

_PEAK_FLOPS = MappingProxyType({"float32": 60e9, "float64": 30e9})
_MEMORY_BYTES_PER_S = 10e9
_LOOPBACK_BYTES_PER_S = 2e9


def describe_local() -> Cluster:
    """Give the pool of this machine's CPU cores; its price is free."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    core = DeviceType(
        name="core",
        kind="cpu",
        price_per_hour=0.0,
        price_source="this machine, owned",
        max_units=cores,
        memory_bytes=memory_bytes / cores,
        peak_flops=_PEAK_FLOPS,
        memory_bytes_per_s=_MEMORY_BYTES_PER_S,
        network_bytes_per_s=_LOOPBACK_BYTES_PER_S,
        network_latency_s=50e-6,
        input_bytes_per_s=_LOOPBACK_BYTES_PER_S,
        launch_s=5e-6,
        efficiency=0.6,
        compute_parallel=0.95,
        data_parallel=0.95,
    )
    description = f"this machine: {cores} CPU cores; rates are typical of one server core, not measured"
    return Cluster("local", description, "USD", (core,), SOURCE)
