"""A problem whose costs are given: layers with measured times, values between them, a pool, a request.

A layer's times are known for some device types, some degrees of tensor parallelism and some sizes of a micro-batch.
Between two sizes they are read off a straight line, beyond them the line goes on (``cost/profile.py`` draws it): with
two sizes or more a fixed part that every micro-batch pays comes out, ``t(m) = t0 + t1 m``. With one size the time is
taken to be in proportion.

Left out: the file it is read from (``read_problem.py``), what must hold of it (``problem_laws.py``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from heterps_compile.cluster.devices import Cluster
from heterps_compile.cost.interpolation import interpolate
from heterps_compile.errors import InputError

STEP, REPLICA = "step", "replica"
BATCHES_OF = (STEP, REPLICA)
"""Whose a batch is: of a step, which all replicas of a stage share, or of one replica, which works on it alone."""

ELEMENT_BYTES = 4
"""Of a gradient's elements, where rules count them."""

HELD_IN_TRAINING, HELD_IN_INFERENCE = 4.0, 1.0
"""Bytes held for each byte of parameters: they themselves, their gradients and Adam's two states; they alone."""


@dataclass(frozen=True, slots=True)
class GivenTimes:
    """A layer on one unit of a group of units that share its work.

    Attributes:
        device: Name of the device type.
        tensor_parallel: Units of the group.
        samples: [N], sizes of a micro-batch that were measured, ascending.
        forward_s, backward_s: [N], of one micro-batch; what the group exchanges inside of the layer is in them.
        update_s: Of the optimiser, once a step.
        parameter_bytes: That one unit holds.
        activation_bytes_per_sample: That one unit keeps from forward to backward.
        compute_parallel: alpha, the part of forward and backward that replicas divide; None for the device type's.
        fixed_bytes: That one unit holds besides activations; None for its parameters with all that goes with them.
    """

    device: str
    tensor_parallel: int
    samples: tuple[int, ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    update_s: float
    parameter_bytes: float
    activation_bytes_per_sample: float
    compute_parallel: float | None = None
    fixed_bytes: float | None = None

    def forward_time_s(self, samples: float) -> float:
        """Return the forward of a micro-batch."""
        return interpolate(list(zip(self.samples, self.forward_s, strict=True)), samples)

    def backward_time_s(self, samples: float) -> float:
        """Return the backward of a micro-batch."""
        return interpolate(list(zip(self.samples, self.backward_s, strict=True)), samples)

    def held_bytes(self, held_per_parameter: float) -> float:
        """Compute bytes per unit without activations."""
        return held_per_parameter * self.parameter_bytes if self.fixed_bytes is None else self.fixed_bytes

    def parallel(self, of_type: float) -> float:
        """Return alpha, which is that of the device type where the layer has none of its own."""
        return of_type if self.compute_parallel is None else self.compute_parallel


@dataclass(frozen=True, slots=True)
class GivenTable:
    """A table that a layer looks rows up in and does nothing else with, so that servers may hold it.

    Attributes:
        name: Unique in the problem.
        size_bytes: Of all rows.
        rows_bytes_per_sample: Of those that a sample looks up.
    """

    name: str
    size_bytes: float
    rows_bytes_per_sample: float

    def rows_bytes(self, batch: int) -> float:
        """Return the bytes that a batch looks up: the whole table at most."""
        return min(self.size_bytes, batch * self.rows_bytes_per_sample)


@dataclass(frozen=True)
class GivenLayer:
    """A layer.

    Attributes:
        name: Unique in the problem.
        times: Of every device type and degree of tensor parallelism that it is known for.
        tables: That servers may hold; their bytes are among its parameters.
        shapes: Of its parameters, tensor by tensor; empty where they are not told.
    """

    name: str
    times: tuple[GivenTimes, ...]
    tables: tuple[GivenTable, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()

    @cached_property
    def by_group(self) -> Mapping[tuple[str, int], GivenTimes]:
        """Return the times by device type and degree of tensor parallelism."""
        return {(each.device, each.tensor_parallel): each for each in self.times}


@dataclass(frozen=True, slots=True)
class GivenEdge:
    """A value that other layers read.

    Attributes:
        producer: Name of the layer that makes it.
        readers: Names of those that read it.
        bytes_per_sample: Of the value; in training its gradient, as large, comes back.
        exchanged: Degrees of tensor parallelism, with the bytes that units of such a group of a reader exchange when
            the value enters their stage, and units of a group of the producer when its gradient does.
    """

    producer: str
    readers: tuple[str, ...]
    bytes_per_sample: float
    exchanged: tuple[tuple[int, float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class _Measured:
    """Sizes that were timed, ascending, and the time of each.

    Attributes:
        sizes_bytes: [N], of a message, or of what every unit of an all-reduce holds.
        times_s: [N].
    """

    sizes_bytes: tuple[float, ...]
    times_s: tuple[float, ...]

    def time_s(self, size_bytes: float) -> float:
        """Return the time of a size."""
        return interpolate(list(zip(self.sizes_bytes, self.times_s, strict=True)), size_bytes) if size_bytes else 0.0


@dataclass(frozen=True, slots=True)
class MeasuredTransfer(_Measured):
    """Messages between units.

    Attributes:
        between: Names of the device types of both ends.
    """

    between: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MeasuredAllReduce(_Measured):
    """All-reduces among units.

    Attributes:
        device: Name of their device type.
        units: That took part.
    """

    device: str
    units: int


@dataclass(frozen=True)
class GivenProblem:
    """Layers with given costs, the pool they may be placed on, and what is asked for.

    Attributes:
        name: For people.
        layers: In the order of the file.
        edges: Values that layers read of one another.
        pool: The device types; None where the file names none.
        asked: Options of the request by name, as the file has them.
        batch: Samples of a batch.
        batch_of: :data:`STEP` or :data:`REPLICA`.
        held_per_parameter: Bytes held for each byte of parameters.
        step_overhead_s: What every step takes besides: the optimiser's launch, the loader, synchronisation.
        transfers: That were timed, in place of the pool's rates.
        all_reduces: As above.
        assumptions: What the file did not say and the reader filled in.
        summed_every: Batches between two all-reduces of a replica, where transfers, all-reduce and work of a stage add
            up, as Piper has them; None where they overlap, as PipeDream has them.
    """

    name: str
    layers: tuple[GivenLayer, ...]
    edges: tuple[GivenEdge, ...]
    pool: Cluster | None
    asked: Mapping[str, Any]
    batch: int
    batch_of: str = STEP
    held_per_parameter: float = HELD_IN_TRAINING
    step_overhead_s: float = 0.0
    transfers: tuple[MeasuredTransfer, ...] = ()
    all_reduces: tuple[MeasuredAllReduce, ...] = ()
    assumptions: tuple[str, ...] = ()
    summed_every: float | None = None

    @property
    def training(self) -> bool:
        """Whether there are backwards."""
        return bool(self.asked.get("mode", "training") == "training")

    @property
    def directions(self) -> int:
        """Return how often a value crosses: in training its gradient comes back."""
        return 2 if self.training else 1

    @cached_property
    def position(self) -> Mapping[str, int]:
        """Return the index in :attr:`layers` of every name."""
        return {layer.name: i for i, layer in enumerate(self.layers)}

    @cached_property
    def tables(self) -> Mapping[str, GivenTable]:
        """Return the tables of all layers by name, in the order of the layers."""
        return {table.name: table for layer in self.layers for table in layer.tables}

    @property
    def known_pool(self) -> Cluster:
        """Return the pool.

        Raises:
            InputError: where there is none.
        """
        if self.pool is None:
            raise InputError(f"problem {self.name!r} names no pool; give one (--cluster NAME|FILE)")
        return self.pool
