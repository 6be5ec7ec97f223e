"""A plan that was found for given costs, printed for people and for programs, its predicted step below it.

Left out: the search (``passes/place_given.py``), the prediction (``prediction_words.py``).
"""

import json
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from heterps_compile.console import note_text, pairs_table
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.escape import printable
from heterps_compile.passes.place_given import PlacedGiven
from heterps_compile.plan.request import ALONE, STEADY, Request
from heterps_compile.problem_file.given_plan import GivenPlan, plan_document
from heterps_compile.problem_file.given_problem import GivenProblem
from heterps_compile.schedule.readings import ONE_BATCH_ALONE, STEADY_STATE
from heterps_compile.units import format_seconds, format_share

from .predict_step import Prediction
from .prediction_words import FORMAT_VERSION, prediction_record, print_prediction


@dataclass(frozen=True, slots=True)
class PlannedGiven:
    """A plan with where it comes from.

    Attributes:
        problem: What was planned.
        request: What was asked for.
        placed: What the search found.
        plan: The plan with its micro-batch.
        prediction: Of its step.
        directory: That it was written to; None for none.
    """

    problem: GivenProblem
    request: Request
    placed: PlacedGiven
    plan: GivenPlan
    prediction: Prediction
    directory: str | None = None

    @property
    def reading(self) -> str:
        """Say which reading the value is of."""
        return ONE_BATCH_ALONE if self.placed.steps else f"in the {STEADY_STATE}"

    @property
    def gap(self) -> float:
        """Return how much lower than the value the bound is, as a part."""
        value = self.placed.value
        return max(0.0, 1 - self.placed.bound / value) if value > 0 else 0.0


def print_placed(console: Console, planned: PlannedGiven) -> None:
    """Print what the plan is the best in and how far that is proven, then its predicted step."""
    problem, placed = planned.problem, planned.placed
    objective, currency = OBJECTIVES[planned.request.objective], problem.known_pool.currency
    value = objective.describe(placed.value, problem.batch, currency)
    bound = objective.describe(placed.bound, problem.batch, currency)
    proven = f"{bound}; nothing is cheaper" if placed.value == 0 else "none"
    by = f", by at most {format_share(planned.gap)}" if planned.gap > 1e-9 else ""
    pairs = [
        (objective.name, f"{value}, {planned.reading}"),
        ("proven bound", f"{bound}{by}; of {placed.holds_for}" if placed.bound > 0 else proven),
        ("method", f"{placed.method}, in {format_seconds(placed.search_s)}"),
    ]
    if planned.directory is not None:
        pairs.append(("written to", f"{planned.directory}: plan.json"))
    console.print(pairs_table(pairs))
    console.print(Text(""))
    print_prediction(console, problem, planned.plan, planned.prediction)
    for note in placed.notes:
        console.print(note_text(printable(note)))


def placed_document(planned: PlannedGiven) -> str:
    """Return the plan as a JSON document; its keys are a promise."""
    placed = planned.placed
    document = {
        "format_version": FORMAT_VERSION,
        "problem": planned.problem.name,
        "directory": planned.directory,
        "method": placed.method,
        "objective": {"name": planned.request.objective, "value": placed.value},
        "reading": ALONE if placed.steps else STEADY,
        "bound": placed.bound,
        "bound_holds_for": placed.holds_for,
        "gap": planned.gap,
        "search_s": placed.search_s,
        "plan": plan_document(planned.problem, planned.plan),
        "prediction": prediction_record(planned.problem, planned.plan, planned.prediction),
        "notes": list(placed.notes),
    }
    return json.dumps(document, indent=2, allow_nan=False)
