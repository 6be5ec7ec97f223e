"""``search.json``: what a search is, written once when it begins and read by whoever goes on with it or shows it.

Left out: what came of it (``journal.py``).
"""

import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from heterps_compile.errors import InputError
from heterps_compile.escape import one_line, printable, short

from .ask_tell import Fidelity

RECORD_FILE = "search.json"
SCHEMA = 1

_MOST_WORKERS = 100_000
_LARGEST_BYTES = 8 * 2**20
_PYDANTIC: dict[str, Any] = {"extra": "forbid", "strict": True}
_UNITS = ("steps", "samples", "epochs")


def _units(one: tuple[str, int]) -> int:
    return one[1]


@dataclass(frozen=True, slots=True)
class RecordedClass:
    """A class of workers, as the search had it.

    Attributes:
        name: Unique among the classes.
        workers: How many there are; each runs one trial at a time. They are called ``name-0``, ``name-1``, and so on.
        units: Of its device type that one worker has: cores, where these are CPUs.
        memory_bytes: Of one worker.
        price_per_hour: Of one worker, in ``SearchRecord.currency``.
        flops_per_s: In float32.
        types: What one worker has: names of device types, and units of each; empty where the search began with a
            version that had one type a worker.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = _PYDANTIC

    name: str
    workers: int
    units: int
    memory_bytes: float
    price_per_hour: float
    flops_per_s: float
    types: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            InputError: where one is out of its range.
        """
        numbers = (self.memory_bytes, self.price_per_hour, self.flops_per_s)
        if not 1 <= self.workers <= _MOST_WORKERS or self.units < 1 or not all(0 <= n < math.inf for n in numbers):
            raise InputError(f"class {short(printable(self.name))} has a number out of its range")
        if self.types and (sum(units for _, units in self.types) != self.units or min(self.types, key=_units)[1] < 1):
            raise InputError(f"class {short(printable(self.name))} has other units than its device types")

    @property
    def worker_names(self) -> tuple[str, ...]:
        """Return how its workers are called."""
        return tuple(f"{self.name}-{slot}" for slot in range(self.workers))


@dataclass(frozen=True, slots=True)
class SearchRecord:
    """A search.

    Attributes:
        schema: Of the file.
        space_name: The name of the space's file, whose ending says how it is read.
        space_text: The space as it was given.
        method: Of the search.
        metric: What is optimised, as validations call it.
        is_maximised: Whether more of it is better.
        least: Of the fidelity: the shortest trial.
        most: A whole trial.
        unit: What both count: steps, samples or epochs.
        eta: One in so many trials is promoted.
        seed: Of everything drawn.
        trials: How many are run.
        rule: How trials are assigned to classes.
        classes: The workers.
        parts: Names of the disjoint parts of the space.
        budget: What may be spent, in the currency; None for no limit.
        currency: Of prices and of the budget.
        time_limit_s: Of one trial; None for no limit.
        retries: How often a trial that failed is started again.
        engine: What starts trials.
        validate_every: Steps between two validations of a trial; None for the end of every epoch, and its own end.
        verifies: Whether compiled models are run against the whole model.
        arguments: What trials are made of, by the option's name without dashes: train, model, data, ...
        hashes: SHA-256 of the files that trials run, by the option's name: train, model.
        versions: Of the packages, by name.
        started_at: When it began, as ISO 8601 in UTC.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = _PYDANTIC

    space_name: str
    space_text: str
    method: str
    metric: str
    is_maximised: bool
    least: float
    most: float
    unit: str
    eta: int
    seed: int
    trials: int
    rule: str
    classes: tuple[RecordedClass, ...]
    parts: tuple[str, ...]
    budget: float | None
    currency: str
    time_limit_s: float | None
    retries: int
    engine: str
    validate_every: int | None = None
    verifies: bool = False
    arguments: Mapping[str, str] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    started_at: str = ""
    schema: Literal[1] = 1

    def __post_init__(self) -> None:
        """Check the numbers, and that classes have different names.

        Raises:
            InputError: where one is out of its range.
        """
        for name, number in (("budget", self.budget), ("time_limit_s", self.time_limit_s)):
            if number is not None and not 0 < number < math.inf:
                raise InputError(f"{name} is {number}; it must be above 0")
        if self.validate_every is not None and self.validate_every < 1:
            raise InputError(f"validate_every is {self.validate_every}; it must be 1 or more")
        if self.trials < 1 or self.retries < 0:
            raise InputError(f"{self.trials} trials with {self.retries} retries are no search")
        if self.unit not in _UNITS:
            raise InputError(f"the unit of fidelity is {short(self.unit)}; it is one of {', '.join(_UNITS)}")
        if sum(each.workers for each in self.classes) > _MOST_WORKERS:
            raise InputError(f"a search has {_MOST_WORKERS:,} workers at the most")
        if not self.classes or len({each.name for each in self.classes}) < len(self.classes):
            raise InputError("a search has classes of workers, with different names")
        _ = self.fidelity  # which checks its numbers

    @property
    def fidelity(self) -> Fidelity:
        """Return how long trials train."""
        return Fidelity(self.least, self.most, self.eta, self.unit)

    @property
    def space_sha256(self) -> str:
        """Return the hash of the space's text."""
        return hashlib.sha256(self.space_text.encode("utf-8", "surrogatepass")).hexdigest()

    def loss_of(self, value: float) -> float:
        """Return the loss of a value of the metric: less is better."""
        return -value if self.is_maximised else value

    def is_better(self, value: float, than: float) -> bool:
        """Return whether one value of the metric is better than another."""
        return self.loss_of(value) < self.loss_of(than)


def write_record(folder: Path, record: SearchRecord) -> None:
    """Write ``search.json`` into a folder that has none, as a whole or not at all.

    Raises:
        InputError: where it cannot be written.
    """
    from pydantic import TypeAdapter  # noqa: PLC0415 - only where a search is written

    text = TypeAdapter(SearchRecord).dump_json(record, indent=2)
    target, new = folder / RECORD_FILE, folder / f".{RECORD_FILE}.new"
    try:
        with new.open("wb") as file:
            file.write(text + b"\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(target)
    except OSError as error:
        raise InputError(f"cannot write {printable(str(target))}: {error.strerror or error}") from error


def read_record(folder: Path) -> SearchRecord:
    """Read the ``search.json`` of a folder.

    Raises:
        InputError: where there is none, or it is something else.
    """
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - only where a search is read

    path = folder / RECORD_FILE
    shown = printable(str(path))
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_BYTES + 1)
    except FileNotFoundError as error:
        raise InputError(f"{printable(str(folder))} is no folder of a search: it has no {RECORD_FILE}") from error
    except OSError as error:
        raise InputError(f"{shown} cannot be read: {error.strerror or error}") from error
    if len(data) > _LARGEST_BYTES:
        raise InputError(f"{shown} has more than {_LARGEST_BYTES:,} bytes, which are the most of a search")
    try:
        return TypeAdapter(SearchRecord).validate_json(data)
    except ValidationError as error:
        raise InputError(f"{shown} is no search: {fault_of(error)}") from error
    except InputError as error:
        raise InputError(f"{shown} is no search: {error}") from error


def fault_of(error: Any) -> str:
    """Return the first fault that pydantic found, in one line."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{short(printable(place))}: {one_line(first['msg'])}" if place else one_line(first["msg"])
