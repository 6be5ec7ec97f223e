"""Device types and the pool of them that a plan may rent.

Left out: the files pools are read from (``pools.py``), link topology beyond one bandwidth per type.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from heterps_compile.errors import UnknownNameError


@dataclass(frozen=True, slots=True)
class DeviceType:
    """A kind of hardware that is rented by the unit (a CPU core, a GPU).

    Attributes:
        name: Unique in the pool.
        kind: ``"cpu"``, ``"gpu"`` or ``"npu"``.
        price_per_hour: Price of one unit in the pool's currency; 0 only where the file says "free".
        price_source: Where and when the price was read.
        max_units: How many units may be rented.
        memory_bytes: Memory of one unit.
        peak_flops: Peak FLOP/s of one unit by dtype.
        memory_bytes_per_s: Memory bandwidth of one unit.
        network_bytes_per_s: Bandwidth at which one unit sends to or receives from other stages.
        network_latency_s: Time before the first byte of a transfer.
        input_bytes_per_s: Bandwidth at which one unit reads training or request data.
        launch_s: Fixed time to start one operation.
        efficiency: The part of the peaks that real kernels reach, in (0, 1].
        compute_parallel: alpha of the HeterPS cost model, the part of computation that replicas divide.
        data_parallel: beta of the HeterPS cost model, the part of data movement that replicas divide.
    """

    name: str
    kind: str
    price_per_hour: float
    price_source: str
    max_units: int
    memory_bytes: float
    peak_flops: Mapping[str, float]
    memory_bytes_per_s: float
    network_bytes_per_s: float
    network_latency_s: float
    input_bytes_per_s: float
    launch_s: float
    efficiency: float
    compute_parallel: float
    data_parallel: float

    def flops_per_s(self, dtype: str) -> float:
        """Give the FLOP/s this type reaches on a dtype; one it does not list runs at its float32 rate."""
        return self.peak_flops.get(dtype, self.peak_flops["float32"]) * self.efficiency


@dataclass(frozen=True, slots=True)
class Cluster:
    """A pool: device types in the order of the file, one currency."""

    name: str
    description: str
    currency: str
    device_types: tuple[DeviceType, ...]
    source: str = ""

    def device_type(self, name: str) -> DeviceType:
        """Find a type by name.

        Raises:
            UnknownNameError: with the known names and the nearest.
        """
        for device_type in self.device_types:
            if device_type.name == name:
                return device_type
        raise UnknownNameError("device type", name, (d.name for d in self.device_types))
