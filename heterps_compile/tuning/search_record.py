"""``search.json``: what a search is, written when it begins, and read to resume or show it.

Left out: what came of it (``journal.py``).
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import ConfigDict

from heterps_compile.errors import InputError
from heterps_compile.escape import printable, short
from heterps_compile.strict_json import STRICT, read_json, write_json

from .ask_tell import Fidelity
from .compute_classes import ComputeClass, check_classes
from .tune_options import TUNE

RECORD_FILE = "search.json"
_USUAL = {option.name: option.default for option in TUNE.options}

_UNITS = ("steps", "samples", "epochs")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """The options of a search that ``search.json`` has as they were given.

    Attributes:
        method: Of the search.
        metric: Name of the optimised validation metric.
        trials: Number of trials, short ones too.
        eta: One in ``eta`` trials is promoted.
        seed: Of everything drawn.
        time_limit_s: Of one trial, in seconds; None for no limit.
        retries: Number of times a failed trial is started again.
        engine: Starts the trials.
        validate_every: Steps between two validations of a trial; None for the end of every epoch, and its own end.
    """

    method: str = _USUAL["method"]
    metric: str
    trials: int
    eta: int = _USUAL["eta"]
    seed: int = _USUAL["seed"]
    time_limit_s: float | None = None
    retries: int = _USUAL["retries"]
    engine: str = _USUAL["engine"]
    validate_every: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRecord(SearchOptions):
    """A search.

    Attributes:
        schema: Of the file.
        space_name: The name of the space's file, whose ending says how it is read.
        space_text: The space as it was given.
        is_maximised: Whether more of it is better.
        least: Of the fidelity: the shortest trial.
        most: A whole trial.
        unit: What both count: steps, samples or epochs.
        rule: How trials are assigned to classes.
        classes: The workers.
        parts: Names of the disjoint parts of the space.
        budget: What may be spent, in the currency; None for no limit.
        currency: Of prices and of the budget.
        verifies: Whether compiled models are run against the whole model.
        arguments: What trials are made of, by the option's name without dashes: train, model, data, ...
        hashes: SHA-256 of the files that trials run, by the option's name: train, model.
        versions: Of the packages, by name.
        started_at: When it began, as ISO 8601 in UTC.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    space_name: str
    space_text: str
    is_maximised: bool
    least: float
    most: float
    unit: str
    rule: str
    classes: tuple[ComputeClass, ...]
    parts: tuple[str, ...]
    budget: float | None
    currency: str
    verifies: bool = False
    arguments: Mapping[str, str] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    started_at: str = ""
    schema: Literal[2] = 2

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
        check_classes(self.classes)
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
    """Write ``search.json`` into a folder that has none.

    Raises:
        RunError: if it cannot be written.
    """
    write_json(folder / RECORD_FILE, record)


def read_record(folder: Path) -> SearchRecord:
    """Read the ``search.json`` of a folder.

    Raises:
        InputError: naming the first fault.
    """
    path = folder / RECORD_FILE
    if not path.is_file():
        raise InputError(f"{printable(str(folder))} is no folder of a search: it has no {RECORD_FILE}")
    return read_json(path, SearchRecord)
