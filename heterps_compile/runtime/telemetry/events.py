"""What a rank tells of a run: one JSON object a line, in a file of its own (``docs/telemetry.md`` has the schema).

Numbers alone go through these files, and nothing in them is run or unpickled. Times are those of the rank's monotonic
clock, which all processes of one machine share; ``start`` ties it to the clock on the wall.

Left out: who writes the lines (``rank_recorder.py``) and who reads them (``follow.py``).
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from heterps_compile.errors import InputError, RunError
from heterps_compile.runtime.pipeline.recorder import StepNumbers

SCHEMA = 1
"""Version of the lines."""

WAITS = ("receive", "send", "reduce", "data", "pull")
"""What a rank waits for: values, its own sends, other replicas' gradients, its data source, rows of served tables."""

BETWEEN = ("optimizer", "validation", "checkpoint", "hooks", "outputs")
"""What a rank does between two steps."""


@dataclass(frozen=True, slots=True)
class RankStart:
    """A rank begins.

    Attributes:
        rank: Its number.
        position: Its place in the pipeline; -1 for a server of tables.
        replica: Of that position.
        stages: That it runs.
        machine: What names its machine until that is booted again; ranks of one machine share a clock.
        process: Its process id.
        clock_s: The monotonic clock.
        unix_s: The clock on the wall, at the same moment.
    """

    rank: int
    position: int
    replica: int
    stages: tuple[int, ...]
    machine: str
    process: int
    clock_s: float
    unix_s: float


@dataclass(frozen=True, slots=True)
class RankStep(StepNumbers):
    """What one rank did in one step.

    Attributes:
        rank: Its number.
        step: Number of the step.
        began_s, ended_s: Of the step, by the rank's clock.
        samples: Of the step.
        forward_s, backward_s: Computation of every stage it runs, without what it waited for inside.
        cpu_s: CPU time of all threads of the process during that computation, by stage and at most its wall time;
            empty on a GPU. It counts the process, as XLA and other runtimes compute in threads of their own.
        micro_batches: Forwards that it ran.
        wait_s: Waiting, by what for (:data:`WAITS`).
        received_bytes: By the rank they came from.
        messages: How many brought them.
        rss_bytes, peak_rss_bytes: Memory of the process, now and at most.
        gpu_bytes, peak_gpu_bytes: Memory of its CUDA device that tensors take, now and at most; 0 without one.
        learning_rates: Of the step, by group of the rank's optimiser; empty where it has none.
        between_s: What the rank did after the step before, by what it was (:data:`BETWEEN`).
        sync_bytes: By stage, what it sent to other replicas for agreeing, in the step and after the one before; -1
            stands for tensors that several stages hold.
        data_bytes: Of files far away whose blocks are kept, what was read since the step before, by where it came from.
        sync_between_bytes: Those of them that went to other machines; without stages of which none did.
        replica_gap: By stage, how far replicas that step alone were apart when that was last looked at: the root mean
            square distance from their mean, over its length.
    """

    rank: int
    step: int
    began_s: float
    ended_s: float
    samples: int
    forward_s: Mapping[int, float]
    backward_s: Mapping[int, float]
    micro_batches: int
    wait_s: Mapping[str, float]
    received_bytes: Mapping[int, int]
    messages: int
    rss_bytes: int = 0
    peak_rss_bytes: int = 0
    gpu_bytes: int = 0
    peak_gpu_bytes: int = 0
    learning_rates: tuple[float, ...] = ()
    between_s: Mapping[str, float] = field(default_factory=dict)
    sync_bytes: Mapping[int, int] = field(default_factory=dict)
    cpu_s: Mapping[int, float] = field(default_factory=dict)
    replica_gap: Mapping[int, float] = field(default_factory=dict)
    sync_between_bytes: Mapping[int, int] = field(default_factory=dict)
    data_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def step_s(self) -> float:
        """Return how long the step took here."""
        return self.ended_s - self.began_s

    def computed_s(self, stage: int) -> float:
        """Return how long it computed for a stage."""
        return self.forward_s.get(stage, 0.0) + self.backward_s.get(stage, 0.0)

    @property
    def busy_s(self) -> float:
        """Return how long it computed."""
        return sum(self.forward_s.values()) + sum(self.backward_s.values())


@dataclass(frozen=True, slots=True)
class RankValidation:
    """What a validation came to, as rank 0 tells it.

    Attributes:
        rank: Its number.
        step: Steps done when it was made.
        samples: That it went over.
        metrics: By name.
        time_s: That it took.
        best_step: Steps done at the best validation so far; None where nobody says what the best is.
        best_value: Of its metric.
    """

    rank: int
    step: int
    samples: int
    metrics: Mapping[str, float]
    time_s: float
    best_step: int | None = None
    best_value: float | None = None

    @property
    def is_best(self) -> bool:
        """Whether it is the best so far."""
        return self.best_step == self.step

    @property
    def after_steps(self) -> int:
        """Return the steps done when it was made."""
        return self.step

    @property
    def record(self) -> dict[str, Any]:
        """Return its line in the log."""
        return {
            "validation": dict(self.metrics),
            "after_steps": self.step,
            "samples": self.samples,
            "is_best": self.is_best,
            "best_after_steps": self.best_step,
            "best": self.best_value,
            "time_s": self.time_s,
        }

    @property
    def scalars(self) -> dict[str, float]:
        """Return its numbers for TensorBoard, by tag."""
        return {f"validation/{name}": value for name, value in self.metrics.items()}


@dataclass(frozen=True, slots=True)
class RankTables:
    """What tables on parameter servers hold, as the worker tells it that speaks for all of them.

    Attributes:
        rank: Its number.
        step: Steps done.
        servers: How many there are.
        size_bytes: Of all rows with the state of their optimizer, once.
        tables: By name of those that grow, numbers of rows: ``rows`` there are, of which ``waiting`` to be admitted,
            ``new`` and ``evicted`` since the run began.
    """

    rank: int
    step: int
    servers: int
    size_bytes: int
    tables: Mapping[str, Mapping[str, int]]

    @property
    def after_steps(self) -> int:
        """Return the steps done when it was made."""
        return self.step

    @property
    def record(self) -> dict[str, Any]:
        """Return its line in the log."""
        tables = {name: dict(numbers) for name, numbers in self.tables.items()}
        return {"tables": tables, "after_steps": self.step, "servers": self.servers, "size_bytes": self.size_bytes}

    @property
    def scalars(self) -> dict[str, float]:
        """Return its numbers for TensorBoard, by tag."""
        return {f"tables/{table}/{name}": n for table, numbers in self.tables.items() for name, n in numbers.items()}


class Ran(NamedTuple):  # a tuple is made in a third of the time, and JSON writes it as a list
    """One action and when it ran; ``phase`` is ``"forward"``, ``"backward"`` or ``"weight"``."""

    stage: int
    micro_batch: int
    phase: str
    began_s: float
    ended_s: float


class Received(NamedTuple):
    """One message that the rank took in; ``before`` is the place, in the step's actions, of the one that waited for it.

    ``before`` is the number of actions where none followed.
    """

    source: int
    size_bytes: int
    began_s: float
    ended_s: float
    before: int


class Waited(NamedTuple):
    """One wait; ``what`` is one of :data:`WAITS`."""

    what: str
    began_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class RankSpans:
    """Everything a rank did in one step, for a trace."""

    rank: int
    step: int
    actions: tuple[Ran, ...] = ()
    messages: tuple[Received, ...] = ()
    waits: tuple[Waited, ...] = ()


Event = RankStart | RankStep | RankSpans | RankValidation | RankTables

_KINDS: Mapping[str, type[Event]] = MappingProxyType(
    {"start": RankStart, "step": RankStep, "spans": RankSpans, "validation": RankValidation, "tables": RankTables}
)
_MAY_BE_INFINITE = ("loss", "losses", "replica_gap", "learning_rates")
_FIELDS = {kind: tuple(field.name for field in fields(kind)) for kind in _KINDS.values()}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_ADAPTERS: Mapping[str, TypeAdapter[Event]] = MappingProxyType(
    {name: TypeAdapter(kind) for name, kind in _KINDS.items()}
)
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def to_line(event: Event) -> str:
    """Return an event as one line of JSON, its end included."""
    content: dict[str, Any] = {"kind": _NAMES[type(event)]}
    if isinstance(event, RankStart):
        content["schema"] = SCHEMA
    for name in _FIELDS[type(event)]:  # not asdict(), which copies everything and takes longer than all the rest
        content[name] = plain_value(getattr(event, name)) if name in _MAY_BE_INFINITE else getattr(event, name)
    return _ENCODER.encode(content) + "\n"


def plain_value(value: Any) -> Any:
    """Return a value as JSON has it: NaN and infinity by name, keys as text, a link of two ranks as ``0->1``."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {
            "->".join(map(str, key)) if isinstance(key, tuple) else str(key): plain_value(one)
            for key, one in value.items()
        }
    return [plain_value(one) for one in value] if isinstance(value, tuple) else value


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Name what cannot be written, such as a file on a disk that is full.

    Raises:
        RunError: if it cannot.
    """
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write {what}: {error.strerror}; expected a place with room that stays writable"
        ) from error


def from_line(line: str) -> Event:
    """Read what :func:`to_line` wrote.

    Raises:
        InputError: where it is no such line.
    """
    try:
        content = json.loads(line)
        kind = content.pop("kind")
        if kind == "start" and content.pop("schema") != SCHEMA:
            raise InputError(f"a telemetry file has another schema than {SCHEMA}; ranks run different versions")
        return _ADAPTERS[kind].validate_python(content)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"a telemetry file has a line that is none: {line[:80]!r}") from error
