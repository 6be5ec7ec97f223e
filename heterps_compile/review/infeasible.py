"""Why no plan meets a request, or that one does: the passes of a compilation find out, and say what would help.

Not covered: how they find out (``passes/placement/proof/why_infeasible.py``).
"""

import json
from dataclasses import dataclass, replace
from typing import Any

from heterps_compile.api import open_draft
from heterps_compile.cost.objective import OBJECTIVES, plans_of_the_problem
from heterps_compile.errors import InfeasibleError
from heterps_compile.escape import printable
from heterps_compile.passes.drafts import Posed, Scheduled
from heterps_compile.passes.pipeline import run_to
from heterps_compile.schedule.readings import ONE_BATCH_ALONE, STEADY_STATE

_TIME_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Feasibility:
    """Whether a request can be met.

    Attributes:
        is_feasible: Whether some plan meets it.
        blocking: Which limit none meets and by how much; what a plan reaches where one does.
        remedies: What would help, one sentence each.
        layer_count: Layers of the model; another order of them was not searched.
        is_proven: Whether that is certain; a floor that no step was found to reach may be reached by one.
    """

    is_feasible: bool
    blocking: str
    remedies: tuple[str, ...]
    layer_count: int
    is_proven: bool = True

    def to_text(self) -> str:
        """Return the lines for a terminal."""
        none = f"No {plans_of_the_problem(self.layer_count)} {'exists' if self.is_proven else 'was found'}"
        head = "A plan exists" if self.is_feasible else none
        return "\n".join([f"{head}: {printable(self.blocking)}", *(f"- {printable(r)}" for r in self.remedies)]) + "\n"

    def to_json(self) -> str:
        """Return the text of a JSON document."""
        document = {
            "format_version": 1,
            "is_feasible": self.is_feasible,
            "is_proven": self.is_proven,
            "blocking": self.blocking,
            "remedies": list(self.remedies),
            "holds_for": f"every {plans_of_the_problem(self.layer_count)}",
        }
        return json.dumps(document, indent=2) + "\n"


def why_infeasible(model: Any, example_inputs: tuple[Any, ...] = (), **asked: Any) -> Feasibility:
    """Say why no plan meets a request.

    Arguments are those of :func:`heterps_compile.compile` that tell the model, the pool and the request.

    Raises:
        HeterpsError: where model, pool or options make no sense.
    """
    posed = run_to(open_draft(model, example_inputs, **asked), Posed)
    layers, limit_s = posed.problem.layer_count, posed.request.time_limit_s
    request = replace(posed.request, time_limit_s=_TIME_LIMIT_S if limit_s is None else limit_s)
    try:
        draft = run_to(replace(posed, request=request), Scheduled)
    except InfeasibleError as error:
        blocking, *remedies = str(error).split("; ")
        return Feasibility(False, blocking, tuple(remedies), layers, error.is_proven)
    found = draft.search
    objective = OBJECTIVES[request.objective]
    reached = objective.describe(found.value, draft.graph.batch, draft.cluster.currency)
    if objective.has_readings:
        reached += f", {ONE_BATCH_ALONE}" if request.minimises_step else f", in the {STEADY_STATE}"
    return Feasibility(True, reached, (), layers)
