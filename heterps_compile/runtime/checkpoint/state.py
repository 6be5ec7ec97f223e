"""The content of a checkpoint's ``state.json``: all but the tensors, and the hashes of the other files."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, ClassVar

from pydantic import AfterValidator, ConfigDict, Field

from heterps_compile.cost.precision import FULL, PRECISIONS
from heterps_compile.escape import printable
from heterps_compile.runtime.data.identity import Identity
from heterps_compile.runtime.pipeline.scaling import Scaling
from heterps_compile.runtime.validation.best import parse_best
from heterps_compile.runtime.validation.result import Metrics

_STRICT = ConfigDict(strict=True)
Count = Annotated[int, Field(ge=0)]


def _known_precision(name: str) -> str:
    if name not in PRECISIONS:
        raise ValueError(f"{printable(repr(name))} is no precision")
    return name


def _known_best(text: str) -> str:
    parse_best(text)
    return text


def _name_inside(text: str) -> str:
    """Refuse a file name that leads out of its folder: an absolute one, one with ``..``, one that no file can have."""
    os.fsencode(text)
    path = PurePosixPath(text)
    if text != str(path) or "\0" in text or path.is_absolute() or {".", ".."} & set(path.parts):
        raise ValueError(f"{printable(repr(text))} is not a file inside the folder")
    return text


Hashes = Mapping[Annotated[str, AfterValidator(_name_inside)], Annotated[str, Field(pattern="^[0-9a-f]{64}$")]]
"""SHA-256 of files, by their names inside a checkpoint's folder."""


@dataclass(frozen=True, slots=True)
class Written:
    """The files that one rank has written into a new checkpoint.

    Attributes:
        files: SHA-256 by name.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    files: Hashes


@dataclass(frozen=True, slots=True)
class Averaged:
    """The average of a checkpoint's weights.

    Attributes:
        decay: The share of it that a step leaves.
        updates: Steps that it has followed.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    decay: Annotated[float, Field(gt=0, lt=1)]
    updates: Count


@dataclass(frozen=True, slots=True)
class BlockState:
    """The predictors of blocks of a checkpoint's data.

    Attributes:
        rounds: For every block how many averages its predictor is the mean of; 0 where there is none yet.
        losses: Summed since the last average: of the chain that sees all blocks, and of the one of the block alone.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    rounds: Annotated[tuple[Count, ...], Field(min_length=1)]
    losses: tuple[float, float] = (0.0, 0.0)

    @property
    def made(self) -> tuple[int, ...]:
        """Return the blocks that have a predictor, from 0."""
        return tuple(block for block, rounds in enumerate(self.rounds) if rounds)


@dataclass(frozen=True, slots=True)
class RunState:
    """A run at the time of a checkpoint, without the tensors.

    Attributes:
        step: Steps done; the next to run.
        samples: Samples seen.
        batch: Samples in a step.
        seed: Of the run.
        model: SHA-256 of the model's structure.
        plan: SHA-256 of the plan file.
        stages: Whose files there are.
        servers: Parameter servers whose tables there are.
        data: What was read; None where an earlier version wrote it.
        files: SHA-256 of its other files by name; None where an earlier version wrote it.
        tied: Names of parameters that are one tensor, group by group; None where an earlier version wrote it.
        precision: In which forwards computed.
        scaling: Of the losses; None where they are not scaled.
        averaged: Of the average of its weights, where there is one.
        metrics: Of the validation after this step; None where there was none.
        validations: How many the run has had by then.
        keep_best: The metric that says which is the best, as ``--keep-best`` has it; None for nothing.
        validation_data: What they went over; None where there were none.
        blocks: Of the predictors of blocks of its data, where it has some.
        sync: By which rule the replicas of every stage agreed, as text, and how many there were; empty where an
            earlier version wrote it.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    step: Count
    samples: Count
    batch: Count
    seed: Count
    model: str
    plan: str
    stages: tuple[int, ...]
    servers: Count = 0
    data: Identity | None = None
    files: Hashes | None = None
    tied: tuple[tuple[str, ...], ...] | None = None
    precision: Annotated[str, AfterValidator(_known_precision)] = FULL
    scaling: Scaling | None = None
    averaged: Averaged | None = None
    metrics: Metrics | None = None
    validations: Count = 0
    keep_best: Annotated[str, AfterValidator(_known_best)] | None = None
    validation_data: Identity | None = None
    blocks: BlockState | None = None
    sync: tuple[tuple[str, Annotated[int, Field(gt=0)]], ...] = ()
