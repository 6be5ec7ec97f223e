"""A compilation in progress: one type for every step of it, each holding what the one before holds and more.

::

    Draft -> Layered -> Annotated -> Posed -> Placed -> Fused -> Provisioned -> Scheduled -> Emitted
             layers     costs        times    search    stages   replicas,      schedule     partition,
                                     problem  tried,             servers                     runnable
                                              other

A pass says with the types of its call which step it takes and which it gives (``contract.py``). A class lists the
fields that its step fills in, those of earlier steps too where it fills them in anew.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from inspect import get_annotations
from types import MappingProxyType
from typing import Any, TypeVar

from heterps_compile.cluster.devices import Cluster
from heterps_compile.cost.layer_cost import LayerCost
from heterps_compile.cost.layer_times import LayerTimes
from heterps_compile.cost.measured import Measurements
from heterps_compile.cost.problem import MethodResult, Problem, SearchResult
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.layers import LayerGraph
from heterps_compile.ir.partition import Partition
from heterps_compile.plan.other_plan import OtherPlan
from heterps_compile.plan.plan import ParameterServers, PlannedStage, Schedule
from heterps_compile.plan.request import Request

Build = Callable[[Graph, Partition, Sequence[PlannedStage]], tuple[Any, ...]]
"""Builds what runs, one object a stage; passes know no backend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a compilation begins with.

    Attributes:
        graph: The model.
        cluster: The pool.
        request: What the user asks for.
        measurements: Measured times; None where every time is estimated.
        warm_start: Stages of an old plan of the model, for the search to begin from.
        warm_fingerprints: Of their layers, by which those that have other names today are found; none to go by names.
        baselines: Names of placement methods to try beside that of the request.
        build: Builds the stages; None for a plan alone.
    """

    graph: Graph
    cluster: Cluster
    request: Request
    measurements: Measurements | None = None
    warm_start: tuple[PlannedStage, ...] = ()
    warm_fingerprints: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    baselines: tuple[str, ...] = ()
    build: Build | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layered(Draft):
    """Nodes are grouped into layers; once they are annotated, their values are those of the request's precision."""

    layers: LayerGraph

    @property
    def layers_as_read(self) -> LayerGraph:
        """Return the layers with the values of the model, whatever precision is asked for."""
        return LayerGraph(self.graph, self.layers.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotated(Layered):
    """The work of every layer is known."""

    costs: tuple[LayerCost, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Posed(Annotated):
    """Times of layers on devices are known, and the search problem is stated."""

    times: LayerTimes
    problem: Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed(Posed):
    """Every layer has its device type.

    Attributes:
        search: The placement, and what is proven of it.
        tried: What each method found by itself.
        other: What the other objective about money would choose; None where there is no floor, or no answer.
    """

    search: SearchResult
    tried: tuple[MethodResult, ...] = ()
    other: OtherPlan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused(Placed):
    """Layers are fused into stages, which have no replicas yet."""

    stages: tuple[PlannedStage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provisioned(Fused):
    """Stages have replicas, times, memory and prices."""

    stages: tuple[PlannedStage, ...]
    parameter_servers: ParameterServers


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled(Provisioned):
    """The schedule is chosen, and the stages' memory is that of the micro-batches it holds at once."""

    schedule: Schedule
    stages: tuple[PlannedStage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Emitted(Scheduled):
    """The graph is cut where the stages are; ``runnable`` holds what runs, and is empty for a plan alone."""

    partition: Partition
    runnable: tuple[Any, ...]


D = TypeVar("D", bound=Draft)


def advance(draft: Draft, step: type[D], **filled_in: Any) -> D:
    """Return a draft at a step: its fields of earlier steps, and those that are filled in."""
    kept = {f.name: getattr(draft, f.name) for f in fields(step) if f.name not in filled_in and hasattr(draft, f.name)}
    return step(**kept, **filled_in)


def filled_in(takes: type[Draft], gives: type[Draft]) -> tuple[str, ...]:
    """Return the names of the fields that a pass between two steps fills in, in order."""
    steps = [step for step in reversed(gives.__mro__) if not issubclass(takes, step)] or [gives]
    return tuple(dict.fromkeys(name for step in steps for name in get_annotations(step)))
