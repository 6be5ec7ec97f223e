"""Columns of the stages of a predicted step.

Left out: the prediction (``predict_step.py``), JSON (``prediction_words.py``).
"""

from dataclasses import dataclass

from heterps_compile.columns.column import (
    BRIEF,
    BYTES,
    COUNT,
    NAMES,
    SECONDS,
    TEXT,
    TEXTS,
    THOROUGH,
    Column,
)
from heterps_compile.escape import printable, shorten
from heterps_compile.problem_file.given_plan import GivenPlan, GivenStage
from heterps_compile.problem_file.given_problem import GivenProblem
from heterps_compile.sync_rules.rule_text import rule_text
from heterps_compile.sync_rules.rules import USUAL

from .predict_step import Prediction, StagePrediction

_LONGEST_NAME = 40


@dataclass(frozen=True, slots=True)
class PredictedRow:
    """A stage of a predicted step: its place, and the names of its layers."""

    index: int
    layers: tuple[str, ...]
    predicted: StagePrediction


def predicted_rows(problem: GivenProblem, prediction: Prediction) -> list[PredictedRow]:
    """Make a row a stage, in the order of the pipeline."""
    return [
        PredictedRow(index, tuple(problem.layers[i].name for i in each.stage.layers), each)
        for index, each in enumerate(prediction.stages)
    ]


def shown_name(name: str) -> str:
    """Find a name from a file, printable and short."""
    return shorten(printable(name), _LONGEST_NAME)


def has_rules(plan: GivenPlan) -> bool:
    """Check whether a stage synchronises by another rule than all-reduce."""
    return any(stage.sync != USUAL for stage in plan.stages)


def _replicas(stage: GivenStage) -> str:
    """Name the replicas of a stage: ``"2 x v100, 1 x 4 t4"``."""
    said = (
        f"{each.count} x {f'{each.tensor_parallel} ' if each.tensor_parallel > 1 else ''}{shown_name(each.device)}"
        for each in stage.replicas
    )
    return ", ".join(said) + (" by speed" if len(stage.replicas) > 1 and stage.feed == "speed" else "")


def predicted_columns(plan: GivenPlan) -> list[Column[PredictedRow]]:
    """Make the columns; a plan with rules has those of its rules."""
    agreement = "agreement" if has_rules(plan) else "all-reduce"
    rules: list[Column[PredictedRow]] = [
        Column("agrees by", lambda row: rule_text(row.predicted.stage.sync), TEXT, on=THOROUGH)
    ]
    return [
        Column("stage", lambda row: row.index, COUNT, on=TEXTS),
        Column("replicas", lambda row: _replicas(row.predicted.stage), TEXT, on=TEXTS),
        Column("layers", lambda row: row.layers, NAMES, on=BRIEF),
        Column("layers", lambda row: len(row.layers), COUNT, on=THOROUGH),
        Column("forward", lambda row: row.predicted.forward_s, SECONDS, on=THOROUGH),
        Column("backward", lambda row: row.predicted.backward_s, SECONDS, on=THOROUGH),
        Column("busy", lambda row: row.predicted.busy_s, SECONDS, on=TEXTS),
        Column(agreement, lambda row: row.predicted.all_reduce_s, SECONDS, on=THOROUGH),
        Column("to the next", lambda row: row.predicted.transfer_s, SECONDS, on=THOROUGH),
        Column("holds", lambda row: max(row.predicted.held_bytes), BYTES, on=TEXTS),
        *(rules if has_rules(plan) else []),
    ]
