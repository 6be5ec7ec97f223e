"""A profile: what layers, replicas and links take by the clock, as values.

A layer is found by its key (``layer_key.py``), whatever it is called. Its time at a batch is read off the measured
batches, by straight lines between them::

    time
      |                 . ' (3) the last line goes on
      |           x - '
      |     x - '     (2) straight between neighbours
      | - '
      |  (1) the first line goes back to what an empty batch takes: the fixed part
      +-----b1----b2--------- batch

A line beyond what was measured is ``t0 + t1 batch`` with neither below 0: one that falls is level, and one that would
be below 0 for an empty batch is the proportion of its nearer point.

With one measured batch the fixed part is not known; the time is then taken to be in proportion to the batch.

The types and the checks of the values are the schema of the file as well (``strict_json.py``).

Left out: reading and writing the file (``profile_file.py``), what a search makes of it (``measured.py``), measuring
(``profiling/``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from heterps_compile.ir.graph import OpKind
from heterps_compile.strict_json import STRICT

from .interpolation import interpolate
from .precision import FULL
from .roofline import TRAINING_FACTOR, Phases
from .step_rates import StepRates

MOST_ERROR = 0.1
"""A fraction that is less certain than this is told, and not used."""

_MOST = 2**63 - 1
_Text = Annotated[str, Field(max_length=1000)]
_Count = Annotated[int, Field(ge=0, le=_MOST)]
_Positive = Annotated[int, Field(ge=1, le=_MOST)]
_Seconds = Annotated[float, Field(ge=0, le=1e6)]
_Rate = Annotated[float, Field(gt=0, le=1e18)]
_Error = Annotated[float, Field(ge=0, le=1e18)]


@dataclass(frozen=True, slots=True)
class Timing:
    """A time that was measured several times.

    Attributes:
        median_s: The median of the repeats.
        spread_s: Half of the range that the middle half of them lies in.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    median_s: _Seconds
    spread_s: _Seconds


@dataclass(frozen=True, slots=True)
class LayerPoint:
    """A layer at one batch.

    Attributes:
        batch: Samples.
        flops: Floating-point operations of its forward, by the cost model.
        moved_bytes: Traffic with memory of its forward, by the cost model.
        forward: Forward, as in training where the profile is of training.
        backward: Backward, gradients made anew; None where inference was measured. 0 for what has none.
        accumulate: Backward that adds to the gradients of a micro-batch before; None as above.
        repeats: How often each was measured.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    batch: _Positive
    flops: _Count
    moved_bytes: _Count
    forward: Timing
    backward: Timing | None = None
    accumulate: Timing | None = None
    repeats: _Positive = 1


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """A layer at every batch that was measured.

    Attributes:
        name: Of one layer that it was measured on.
        keys: Under which it is found; one, unless a guess about the batch was wrong (``layer_key.py``).
        kind: Of its anchor.
        dtype: That it computes in.
        operations: Kernels it starts.
        points: By batch, ascending.
        compute_parallel: alpha of the layer; None where it was not measured.
        data_parallel: beta of the inputs of the model that it reads; None where it was not measured.
        served: It by batch with all of its tables on parameter servers, their rows at hand; none where it has no such
            table, or that was not measured.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    name: _Text
    keys: Annotated[tuple[Annotated[str, Field(pattern="^[0-9a-f]{24}$")], ...], Field(min_length=1, max_length=1000)]
    kind: Annotated[str, Field(pattern=f"^({'|'.join(OpKind)})$")]
    dtype: _Text
    operations: _Count
    points: Annotated[tuple[LayerPoint, ...], Field(min_length=1, max_length=1000)]
    compute_parallel: "Fitted | None" = field(default=None, repr=False)
    data_parallel: "Fitted | None" = field(default=None, repr=False)
    served: Annotated[tuple[LayerPoint, ...], Field(max_length=1000)] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        """Check that batches ascend."""
        _check_ascending(self.points)
        _check_ascending(self.served)

    @property
    def has_backward(self) -> bool:
        """Whether training was measured."""
        return all(point.backward is not None for point in self.points)

    def phases(self, samples: float, *, training: bool) -> Phases:
        """Return the layer's times over some samples; where inference alone was measured, backward is twice forward."""
        return self._phases(self.points, samples, training=training)

    def served_phases(self, samples: float, *, training: bool) -> Phases:
        """Return the same with its tables on servers; with them in it, where that was not measured."""
        return self._phases(self.served or self.points, samples, training=training)

    def _phases(self, points: Sequence[LayerPoint], samples: float, *, training: bool) -> Phases:
        forward_s = interpolate([(point.batch, point.forward.median_s) for point in points], samples)
        if not training:
            return Phases(forward_s, 0.0, 0.0)
        if not self.has_backward:
            backward_s = (TRAINING_FACTOR - 1) * forward_s
            return Phases(forward_s, backward_s, backward_s)
        backward = [(p.batch, p.backward.median_s) for p in points if p.backward is not None]
        accumulate = [(p.batch, p.accumulate.median_s) for p in points if p.accumulate is not None]
        return Phases(forward_s, interpolate(backward, samples), interpolate(accumulate or backward, samples))


@dataclass(frozen=True, slots=True)
class Whole:
    """The whole model at one batch, beside the sum of its layers as they were timed one by one.

    Attributes:
        batch: Samples.
        forward_s, backward_s: Of the model in one piece; 0 for a backward that was not measured.
        layers_forward_s, layers_backward_s: The sums of its layers before they were corrected.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    batch: _Positive
    forward_s: _Seconds
    layers_forward_s: _Seconds
    backward_s: _Seconds = 0.0
    layers_backward_s: _Seconds = 0.0


@dataclass(frozen=True, slots=True)
class Fitted:
    """A number that was fitted to measurements.

    Attributes:
        value: The number.
        error: Its standard error.
        units: Numbers of units that it was fitted to.
        unclipped: What was fitted, where it was not in the range that it can have; else None.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    value: Annotated[float, Field(ge=0, le=1)]
    error: _Error
    units: Annotated[tuple[_Positive, ...], Field(min_length=1, max_length=1000)]
    unclipped: Annotated[float, Field(ge=-1e18, le=1e18)] | None = field(default=None, repr=False)

    @property
    def is_usable(self) -> bool:
        """Whether the error is small enough for a plan to be built on the number."""
        return self.value > 0 and self.error <= MOST_ERROR

    def differs_from(self, other: float) -> bool:
        """Whether the number is further from another one than its error."""
        return abs(self.value - other) > self.error


@dataclass(frozen=True, slots=True)
class LinkProfile:
    """What a message between two processes takes: latency and time in proportion to its bytes.

    Attributes:
        bytes_per_s, latency_s: The line that fits best.
        bytes_per_s_error, latency_s_error: Standard errors.
        between: Which processes, in words.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    bytes_per_s: _Rate
    bytes_per_s_error: _Error
    latency_s: _Seconds
    latency_s_error: _Seconds
    between: _Text


@dataclass(frozen=True, slots=True)
class Crowding:
    """How much longer the model takes while the other cores are busy with it too than while they idle.

    Attributes:
        factor: Of its time, as measured.
        spread: Half of the range that the middle half of the rounds lies in.
        others: Processes that were busy beside it, each on a core of its own.
        batch: Samples, of every process.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    factor: Annotated[float, Field(gt=0, le=1e6)]
    spread: _Error
    others: _Positive
    batch: _Positive

    @property
    def slower(self) -> float:
        """Return the factor; what was faster beside others was so by chance."""
        return max(1.0, self.factor)


@dataclass(frozen=True)
class DeviceProfile:
    """What was measured on one device.

    Attributes:
        name: As it was asked for: ``"cpu"``, ``"cuda:0"``.
        kind: ``"cpu"`` or ``"gpu"``.
        description: What the device calls itself.
        backend: What ran the layers.
        mode: ``"inference"`` or ``"training"``.
        threads: That a layer ran on.
        clock: ``"wall"``, or ``"cpu"`` for the thread's own time, which other processes do not lengthen.
        layers: The layers.
        wholes: The whole model by batch, ascending.
        compute_parallel: alpha of the cost model; None where it was not measured.
        data_parallel: beta of the cost model; None where it was not measured.
        link: Between processes on it; None where it was not measured.
        precision: In which forwards computed, one of ``PRECISIONS``.
        crowding: What busy cores take from one another; None where it was not measured.
        step_rates: Of what a step has besides layers; None where it was not measured, as in inference.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$")]
    kind: Annotated[str, Field(pattern="^(cpu|gpu|npu)$")]
    description: _Text
    backend: _Text
    mode: Annotated[str, Field(pattern="^(inference|training)$")]
    threads: _Positive
    clock: Annotated[str, Field(pattern="^(wall|cpu)$")]
    layers: Annotated[tuple[LayerProfile, ...], Field(min_length=1, max_length=100_000)]
    wholes: Annotated[tuple[Whole, ...], Field(max_length=1000)] = ()
    compute_parallel: Fitted | None = None
    data_parallel: Fitted | None = None
    link: LinkProfile | None = None
    precision: Annotated[str, Field(pattern="^(fp32|tf32|bf16|fp16)$")] = field(default=FULL, repr=False)
    crowding: Crowding | None = field(default=None, repr=False)
    step_rates: StepRates | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check that a key has one layer, and that every point has the times of the mode."""
        _check_ascending(self.wholes)
        known: dict[frozenset[str], LayerProfile] = {}
        for layer in self.layers:
            keys = frozenset(layer.keys)
            if keys in known:
                first_s, second_s = (each.points[0].forward.median_s for each in (known[keys], layer))
                raise ValueError(
                    f"the key {layer.keys[0]!r} has two entries, {known[keys].name!r} with a forward of {first_s} s "
                    f"and {layer.name!r} with {second_s} s; keep the one that holds, or measure again"
                )
            known[keys] = layer
            for point in (*layer.points, *layer.served):
                timed = {"backward": point.backward, "accumulate": point.accumulate}
                wrong = [what for what, time in timed.items() if (time is None) is (self.mode == "training")]
                if wrong:
                    raise ValueError(
                        f"{wrong[0]} of layer {layer.name!r} at batch {point.batch} must be "
                        f"{'a time' if self.mode == 'training' else 'null'} in a profile of {self.mode}"
                    )

    @cached_property
    def by_key(self) -> Mapping[str, LayerProfile]:
        """Return the layers by key; of two with one key the first."""
        return {key: layer for layer in reversed(self.layers) for key in layer.keys}


@dataclass(frozen=True, slots=True)
class Host:
    """The machine that was measured.

    Attributes:
        system: Operating system and architecture.
        processor: What the processor calls itself.
        cores: Cores that the process could run on.
        memory_bytes: Of the machine.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    system: _Text
    processor: _Text
    cores: _Positive
    memory_bytes: _Count


@dataclass(frozen=True, slots=True)
class Profile:
    """What was measured of one model.

    Attributes:
        model: Its name.
        measured: When, as ISO 8601 has it.
        host: Where.
        versions: Of what ran it, by distribution name.
        devices: What was measured on each device.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    model: _Text
    measured: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z$")]
    host: Host
    versions: Annotated[Mapping[str, _Text], Field(max_length=100)]
    devices: Annotated[tuple[DeviceProfile, ...], Field(min_length=1, max_length=64)]

    def __post_init__(self) -> None:
        """Check that names of devices differ."""
        names = [device.name for device in self.devices]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"device {twice!r} stands {names.count(twice)} times; names must differ")


def _check_ascending(points: Sequence[LayerPoint | Whole]) -> None:
    batches = [point.batch for point in points]
    if any(first >= second for first, second in pairwise(batches)):
        raise ValueError(f"batches must ascend, and they are {batches[:16]}")
