"""What a pass is: a name, its options as fields, and one pure function from draft to draft.

A :class:`Draft` is what the passes refine: it starts with a graph, a cluster and a request, and every pass
fills in what it ``ensures`` from what it ``requires``. Passes never import each other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from heterps_compile.cluster.devices import Cluster
from heterps_compile.cost.intensity import LayerCost
from heterps_compile.cost.layer_times import LayerTimes
from heterps_compile.cost.measured import Measurements
from heterps_compile.cost.problem import Problem, SearchResult
from heterps_compile.errors import HeterpsError
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.layers import LayerGraph
from heterps_compile.ir.partition import Partition
from heterps_compile.plan.comparison import MethodResult
from heterps_compile.plan.plan import ParameterServers, PlannedStage, Schedule
from heterps_compile.plan.request import Request


@dataclass(frozen=True, slots=True)
class Draft:
    """A compilation in progress; a field is None until the pass that ensures it has run.

    ``measurements`` are given like the first three, or None where every time is estimated.
    """

    graph: Graph
    cluster: Cluster
    request: Request
    layers: LayerGraph | None = None
    costs: tuple[LayerCost, ...] | None = None
    times: LayerTimes | None = None
    problem: Problem | None = None
    search: SearchResult | None = None
    tried: tuple[MethodResult, ...] | None = None
    stages: tuple[PlannedStage, ...] | None = None
    parameter_servers: ParameterServers | None = None
    schedule: Schedule | None = None
    partition: Partition | None = None
    runnable: tuple[Any, ...] | None = None
    measurements: Measurements | None = None


class Pass(Protocol):
    """A frozen dataclass with a name; its fields are its options."""

    name: ClassVar[str]
    requires: ClassVar[tuple[str, ...]]
    ensures: ClassVar[tuple[str, ...]]

    def __call__(self, draft: Draft) -> Draft:
        """Refine a draft."""
        ...


Observer = Callable[[Pass, Draft], None]


def run_passes(draft: Draft, passes: Sequence[Pass], observer: Observer = lambda _pass, _draft: None) -> Draft:
    """Run passes in order, checking what each requires and ensures.

    Args:
        draft: Where to begin.
        passes: In order.
        observer: Called after every pass, for printing and timing.

    Raises:
        HeterpsError: where a pass runs before what it requires, naming the passes run so far.
    """
    done: list[str] = []
    for step in passes:
        missing = [name for name in step.requires if getattr(draft, name) is None]
        if missing:
            raise HeterpsError(f"pass {step.name!r} needs {', '.join(missing)}; passes run before: {done or 'none'}")
        draft = step(draft)
        unkept = [name for name in step.ensures if getattr(draft, name) is None]
        if unkept:
            raise HeterpsError(f"pass {step.name!r} did not make {', '.join(unkept)}")
        done.append(step.name)
        observer(step, draft)
    return draft


def refine(draft: Draft, **changes: object) -> Draft:
    """Return the draft with some fields filled in."""
    return replace(draft, **changes)  # type: ignore[arg-type]
