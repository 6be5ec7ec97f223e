"""Device types and the pool of them that a plan may rent.

Left out: the files pools are read from (``load.py``); topology beyond pairs of types.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from heterps_compile.errors import InputError, UnknownNameError


@dataclass(frozen=True, slots=True)
class DeviceType:
    """A kind of hardware that is rented by the unit (a CPU core, a GPU).

    Attributes:
        name: Unique in the pool.
        kind: ``"cpu"``, ``"gpu"`` or ``"npu"``.
        price_per_hour: Price of one unit in the pool's currency; 0 only where
            the file says "free".
        price_source: Where the price was read.
        max_units: How many units may be rented.
        memory_bytes: Memory of one unit.
        peak_flops: Peak FLOP/s of one unit by dtype.
        memory_bytes_per_s: Memory bandwidth of one unit.
        network_bytes_per_s: Bandwidth at which one unit sends to or receives
            from other stages.
        network_latency_s: Time before the first byte of a transfer.
        input_bytes_per_s: Bandwidth at which one unit reads training or
            request data.
        launch_s: Fixed time to start one operation.
        efficiency: The part of the peaks that real kernels reach, in (0, 1].
        compute_parallel: alpha of the HeterPS cost model, the part of
            computation that replicas divide.
        data_parallel: beta of the HeterPS cost model, the part of data
            movement that replicas divide.
        price_date: When the price was read: a year, a month or a day, as ISO
            8601 has it; "" for free hardware.
        shared_input_bytes_per_s: What all units together can read of inputs
            and embedding rows: the speed of the storage or the servers behind
            them, at which replicas stop to help; inf for no such limit.
        supports: Kinds of layers that it runs, as
            ``heterps_compile.ir.graph.OpKind`` calls them; None for all.
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
    price_date: str = ""
    shared_input_bytes_per_s: float = math.inf
    supports: tuple[str, ...] | None = None

    def flops_per_s(self, dtype: str) -> float:
        """Return the FLOP/s that are reached on a dtype; else float32's."""
        return self.peak_flops.get(dtype, self.peak_flops["float32"]) * self.efficiency


@dataclass(frozen=True, slots=True)
class Link:
    """What connects units of two types, or units of one: in place of what the types' own networks give.

    Attributes:
        between: Names of the two types; the same name twice for units of one
            type.
        bytes_per_s: Bandwidth in either direction.
        latency_s: Before the first byte.
    """

    between: tuple[str, str]
    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class ParameterServer:
    """A core of the servers through which replicas synchronise their parameters.

    Attributes:
        price_per_hour: Of one core; 0 only where the file says "free".
        price_source, price_date: Where and when the price was read.
        bytes_per_s: Parameters that one core takes in and gives out.
    """

    price_per_hour: float
    price_source: str
    price_date: str
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Cluster:
    """A pool: device types in the order of its file, links, servers.

    Prices are in one currency; links say what connects two types where their
    own networks do not.
    """

    name: str
    description: str
    currency: str
    device_types: tuple[DeviceType, ...]
    source: str = ""
    links: tuple[Link, ...] = ()
    parameter_server: ParameterServer | None = None

    def __post_init__(self) -> None:
        """Refuse a pool that nothing can be placed on."""
        if not self.device_types:
            raise InputError(f"the pool {self.name!r} has no device types; give it at least one")

    def link(self, name: str, other: str) -> Link:
        """Return what connects units of two types: a link, else a network.

        Raises:
            UnknownNameError: with the known names and the nearest.
        """
        for link in self.links:
            if link.between in ((name, other), (other, name)):
                return link
        device = self.device_type(name)
        return Link((name, other), device.network_bytes_per_s, device.network_latency_s)

    def device_type(self, name: str) -> DeviceType:
        """Find a type by name.

        Raises:
            UnknownNameError: with the known names and the nearest.
        """
        for device_type in self.device_types:
            if device_type.name == name:
                return device_type
        raise UnknownNameError("device type", name, (d.name for d in self.device_types))
