"""What a checkpoint knows beside tensors, as a value: the content of its ``state.json``.

Left out: the file (``checkpoint_format.py``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from heterps_compile.cost.precision import FULL, PRECISIONS
from heterps_compile.escape import printable
from heterps_compile.runtime.data.identity import Identity, identity_from_json
from heterps_compile.runtime.pipeline.scaling import Scaling
from heterps_compile.runtime.validation.best import parse_best
from heterps_compile.runtime.validation.result import metrics_of

_RULE = ("rule", "replicas")


@dataclass(frozen=True, slots=True)
class Averaged:
    """What a checkpoint knows of the average of its weights.

    Attributes:
        decay: The share of it that a step leaves.
        updates: Steps that it has followed.
    """

    decay: float
    updates: int

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1 or type(self.updates) is not int or self.updates < 0:
            raise ValueError(f"an average of weights with a decay of {self.decay} after {self.updates} steps is none")


@dataclass(frozen=True, slots=True)
class BlockState:
    """What a checkpoint knows of the predictors of blocks of its data.

    Attributes:
        rounds: For every block how many averages its predictor is the mean of; 0 where there is none yet.
        losses: Summed since the last average: of the chain that sees all blocks, and of the one of the block alone.
    """

    rounds: tuple[int, ...]
    losses: tuple[float, float] = (0.0, 0.0)

    @property
    def made(self) -> tuple[int, ...]:
        """Return the blocks that have a predictor, from 0."""
        return tuple(block for block, rounds in enumerate(self.rounds) if rounds)


def blocks_of(content: Any) -> BlockState | None:
    """Return what a checkpoint knows of predictors of blocks; ValueError where that is damaged."""
    if content is None:
        return None
    rounds, losses = tuple(content["rounds"]), tuple(content["losses"])
    if not rounds or not all(type(number) is int and number >= 0 for number in rounds):
        raise ValueError("its predictors of blocks are none")
    together, alone = map(float, losses)
    return BlockState(rounds, (together, alone))


@dataclass(frozen=True, slots=True)
class RunState:
    """What a checkpoint knows beside tensors.

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

    step: int
    samples: int
    batch: int
    seed: int
    model: str
    plan: str
    stages: tuple[int, ...]
    servers: int = 0
    data: Identity | None = None
    files: Mapping[str, str] | None = None
    tied: tuple[tuple[str, ...], ...] | None = ()
    precision: str = FULL
    scaling: Scaling | None = None
    averaged: Averaged | None = None
    metrics: Mapping[str, float] | None = None
    validations: int = 0
    keep_best: str | None = None
    validation_data: Identity | None = None
    blocks: BlockState | None = None
    sync: tuple[tuple[str, int], ...] = ()


def rules_of(content: Any) -> tuple[tuple[str, int], ...]:
    """Return the rules that a checkpoint names; ValueError where it names none."""
    if not isinstance(content, list) or not all(isinstance(one, list) and len(one) == len(_RULE) for one in content):
        raise ValueError("its synchronisation rules are none")
    found = tuple((text, replicas) for text, replicas in content)
    if not all(type(text) is str and type(replicas) is int and replicas > 0 for text, replicas in found):
        raise ValueError("its synchronisation rules are none")
    return found


def precision_of(name: Any) -> str:
    """Return the name of a precision; ValueError for another."""
    if name not in PRECISIONS:
        raise ValueError(f"{printable(repr(name))} is no precision")
    return str(name)


def validations_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint knows of validations; an earlier version wrote nothing of them."""
    count, best = content.get("validations", 0), content.get("keep_best")
    if type(count) is not int or count < 0:
        raise ValueError("a count of validations is none")
    if best is not None:
        parse_best(str(best))
    metrics, data = content.get("metrics"), content.get("validation_data")
    return {
        "metrics": None if metrics is None else metrics_of(metrics),
        "validations": count,
        "keep_best": None if best is None else str(best),
        "validation_data": None if data is None else identity_from_json(data),
    }
