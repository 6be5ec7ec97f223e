"""Device types and the pool of them that a plan may rent.

Left out: the files pools are read from (``load.py``); topology beyond pairs of types.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from heterps_compile.errors import InputError, UnknownNameError

TFLOAT32 = "tfloat32"
"""Of peaks alone: products of float32 values that tensor cores round to 10 bits of mantissa (NVIDIA since Ampere)."""


@dataclass(frozen=True, slots=True)
class KindRate:
    """What a unit reaches on work of one kind, as ``calibrate`` measures it.

    Attributes:
        start_s: Of every operation.
        flops_per_s: inf where arithmetic costs nothing beside the rest.
        bytes_per_s: Of memory; inf likewise.
        backward: Time of the backward over that of the forward.
        error: The median relative error on shapes that the figures were not
            fitted to.
        dtype: That was measured; other dtypes scale as the peaks do.
        gradient_bytes_per_s: At which a backward makes the gradients of whole
            tables; inf where it takes no time of its own.
        inference: Time of a forward in inference over that in training, which
            keeps what its backward needs.
    """

    start_s: float
    flops_per_s: float
    bytes_per_s: float
    backward: float
    error: float
    dtype: str = "float32"
    gradient_bytes_per_s: float = math.inf
    inference: float = 1.0


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
        peak_flops: Peak FLOP/s of one unit by dtype; of products in TF32
            under :data:`TFLOAT32`.
        memory_bytes_per_s: Memory bandwidth of one unit.
        network_bytes_per_s: Bandwidth at which one unit sends to or receives
            from other stages; of a machine's network card, where units share
            one.
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
        units_per_machine: How many units stand in one machine and share its
            network, ``network_bytes_per_s``.
        inner_bytes_per_s, inner_latency_s: Between two units of a machine;
            inf and 0 where a machine has one unit.
        whole_machines: Whether units are rented as whole machines, of which
            ``max_units`` is a multiple, used or not.
        rates: Measured rates by kind of work, which replace peaks, efficiency
            and launch for that kind; none where nobody measured.
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
    units_per_machine: int = 1
    inner_bytes_per_s: float = math.inf
    inner_latency_s: float = 0.0
    whole_machines: bool = False
    rates: Mapping[str, KindRate] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def rented_together(self) -> int:
        """Return how many units are rented as one."""
        return self.units_per_machine if self.whole_machines else 1

    @property
    def is_one_machine(self) -> bool:
        """Return whether all units of a pool stand in one machine of several."""
        return 1 < self.units_per_machine >= self.max_units

    def idle_units(self, used: int) -> int:
        """Return how many units are rented beside those that are used."""
        return -used % self.rented_together

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


SERVER_MEMORY_BYTES = 8.0 * 2**30
"""Of a core, where a pool does not say: what memory-optimised machines of the clouds have (8 GiB a virtual CPU)."""

SERVER_PER_TABLE_S = 108e-6
"""Where a pool does not say: what an array on servers takes besides its bytes, fitted to measured trainings."""


@dataclass(frozen=True, slots=True)
class ParameterServer:
    """A core of the servers through which replicas synchronise their parameters, and on which tables may lie.

    Attributes:
        price_per_hour: Of one core; 0 only where the file says "free".
        price_source, price_date: Where and when the price was read.
        bytes_per_s: Parameters that one core takes in and gives out.
        memory_bytes: That one core has for tables and their states.
        per_table_s: To pull the rows of one table, or to push their
            gradients, however few they are.
    """

    price_per_hour: float
    price_source: str
    price_date: str
    bytes_per_s: float
    memory_bytes: float = SERVER_MEMORY_BYTES
    per_table_s: float = SERVER_PER_TABLE_S


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

    def way(self, name: str, other: str) -> Link:
        """Return what a stage on one type talks over with a stage on another.

        That is the inside of a machine where all units of one type stand in it,
        else what connects the types.

        Raises:
            UnknownNameError: with the known names and the nearest.
        """
        device = self.device_type(name)
        if name == other and device.is_one_machine:
            return Link((name, name), device.inner_bytes_per_s, device.inner_latency_s)
        return self.link(name, other)

    def device_type(self, name: str) -> DeviceType:
        """Find a type by name.

        Raises:
            UnknownNameError: with the known names and the nearest.
        """
        for device_type in self.device_types:
            if device_type.name == name:
                return device_type
        raise UnknownNameError("device type", name, (d.name for d in self.device_types))
