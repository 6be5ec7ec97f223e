"""A plan that was found for given costs, printed for people and for programs, its predicted step below it.

Left out: the search (``passes/place_given.py``), the prediction (``prediction_words.py``).
"""

import json
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.text import Text

from heterps_compile.columns.column import ABSENT, BRIEF, MONEY_PER_HOUR, TEXTS, THOROUGH, Column, Medium, pairs
from heterps_compile.columns.glance import Glance, print_glance
from heterps_compile.columns.terminal import terminal_table
from heterps_compile.console import PlainConsole, note_text, pairs_table
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.passes.rivals_of_given import PlacedGiven
from heterps_compile.plan.idle_units import idle_of
from heterps_compile.plan.plan_notes import is_warning
from heterps_compile.plan.request import ALONE, STEADY, Request
from heterps_compile.problem_file.given_plan import GivenPlan, plan_document
from heterps_compile.problem_file.given_problem import GivenProblem
from heterps_compile.schedule.readings import ONE_BATCH_ALONE, STEADY_STATE
from heterps_compile.units import counted, format_rate, format_seconds, format_share

from .predict_step import Prediction
from .predicted_columns import predicted_columns, predicted_rows, shown_name
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
        return ONE_BATCH_ALONE if self.request.reading == ALONE else f"in the {STEADY_STATE}"

    @property
    def gap(self) -> float:
        """Return how much lower than the value the bound is, as a part."""
        value = self.placed.value
        return max(0.0, 1 - self.placed.bound / value) if value > 0 else 0.0


def print_placed(console: PlainConsole, planned: PlannedGiven, *, in_full: bool) -> None:
    """Print the plan, its value, price and bound.

    Args:
        console: Where to.
        planned: The plan.
        in_full: Print the parts of the predicted step, every stage and every note too.
    """
    currency = planned.problem.known_pool.currency
    facts = list(pairs(FACTS, planned, Medium.DETAILS if in_full else Medium.GLANCE, currency))
    notes = [*planned.problem.assumptions, *planned.prediction.notes, *planned.placed.notes]
    if in_full:
        console.print(pairs_table(facts))
        console.print(Text(""))
        print_prediction(console, planned.problem, planned.plan, planned.prediction)
        for note in planned.placed.notes:
            console.print(note_text(note))
        return
    rows = predicted_rows(planned.problem, planned.prediction)
    columns = predicted_columns(planned.plan)
    glance = Glance(
        head=list(pairs(HEAD, planned, Medium.GLANCE, currency)),
        table=partial(terminal_table, columns, rows, console.width, currency=currency, medium=Medium.GLANCE),
        rows=len(rows),
        facts=facts,
        warnings=[note for note in notes if is_warning(note)],
        notes=[note for note in notes if not is_warning(note)],
    )
    print_glance(console, glance)


def _problem(planned: PlannedGiven) -> str:
    problem, plan, prediction = planned.problem, planned.plan, planned.prediction
    batch = f"batch {plan.batch} in {counted(prediction.micro_batches, 'micro-batch')}"
    layers = counted(sum(len(stage.layers) for stage in plan.stages), "layer")
    mode = "training" if problem.training else "inference"
    return f"{shown_name(problem.name)}, {mode}, {batch}, {layers} in {counted(len(plan.stages), 'stage')}"


def _throughput(planned: PlannedGiven) -> str:
    prediction = planned.prediction
    what = "step" if prediction.reading == ONE_BATCH_ALONE else "a batch every"
    return f"{format_rate(prediction.samples_per_s)}, {what} {format_seconds(prediction.step_s)} ({prediction.reading})"


def _price_per_hour(planned: PlannedGiven) -> float:
    """Return the price of all units, idle ones too, and of servers."""
    pool, used = planned.problem.known_pool, Counter[str]()
    for stage in planned.plan.stages:
        for each in stage.replicas:
            used[each.device] += each.units
    of_units = sum(count * pool.device_type(name).price_per_hour for name, count in used.items())
    of_idle = sum(idle.price_per_hour for idle in idle_of(used, pool.device_types))
    served, server = planned.plan.served, pool.parameter_server
    return of_units + of_idle + (0.0 if served is None or server is None else served.servers * server.price_per_hour)


def _value(planned: PlannedGiven) -> Any:
    if planned.request.objective == "price":
        return ABSENT
    currency = planned.problem.known_pool.currency
    value = OBJECTIVES[planned.request.objective].describe(planned.placed.value, planned.problem.batch, currency)
    return f"{planned.request.objective} {value}, {planned.reading}"


def _bound(planned: PlannedGiven) -> str:
    problem, placed = planned.problem, planned.placed
    objective, currency = OBJECTIVES[planned.request.objective], problem.known_pool.currency
    bound = objective.describe(placed.bound, problem.batch, currency)
    if placed.bound <= 0:
        return f"{bound}; nothing is cheaper" if placed.value == 0 else "none"
    by = f", by at most {format_share(planned.gap)}" if planned.gap > 1e-9 else ""
    return f"{bound}{by}; of {placed.holds_for}"


def _folder(planned: PlannedGiven) -> Any:
    return ABSENT if planned.directory is None else f"{planned.directory}: plan.json"


HEAD: tuple[Column[PlannedGiven], ...] = (Column("problem", _problem, on=TEXTS),)
FACTS: tuple[Column[PlannedGiven], ...] = (
    Column("throughput", _throughput, on=BRIEF),
    Column("price", _price_per_hour, MONEY_PER_HOUR, on=TEXTS),
    Column("objective", _value, on=TEXTS),
    Column("proven bound", _bound, on=TEXTS),
    Column("method", lambda of: f"{of.placed.method}, in {format_seconds(of.placed.search_s)}", on=THOROUGH),
    Column("verified", lambda _: "no: a problem with given costs has nothing to run", on=TEXTS),
    Column("written to", _folder, on=TEXTS),
)
"""Lines below the stages."""


def placed_document(planned: PlannedGiven) -> str:
    """Return the plan as a JSON document; its keys are a promise."""
    placed = planned.placed
    document = {
        "format_version": FORMAT_VERSION,
        "problem": planned.problem.name,
        "directory": planned.directory,
        "method": placed.method,
        "objective": {"name": planned.request.objective, "value": placed.value},
        "reading": ALONE if planned.request.reading == ALONE else STEADY,
        "bound": placed.bound,
        "bound_holds_for": placed.holds_for,
        "gap": planned.gap,
        "search_s": placed.search_s,
        "plan": plan_document(planned.problem, planned.plan),
        "prediction": prediction_record(planned.problem, planned.plan, planned.prediction),
        "notes": list(placed.notes),
    }
    return json.dumps(document, indent=2, allow_nan=False)
