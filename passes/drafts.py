"""A compilation in progress: one type for every step of it, each holding what the one before holds and more.

::

    Draft -> Layered -> Annotated -> Posed -> Placed -> Fused -> Provisioned -> Agreed -> Scheduled -> Emitted
             layers     costs        times    search    stages   replicas,      rules     schedule     partition,
                                     problem  tried,             servers                               runnable
                                              other

A pass says with the types of its call which step it takes and which it gives (``contract.py``). A class lists the
fields that its step fills in, those of earlier steps too where it fills them in anew.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from inspect import get_annotations
from types import MappingProxyType
from typing import Any, TypeVar

from heterps_compile.cluster.devices import Cluster
from heterps_compile.cost.layer_cost import LayerCost
from heterps_compile.cost.layer_orders import LayerOrders, orders_of, reordered
from heterps_compile.cost.layer_times import LayerTimes
from heterps_compile.cost.measured import Measurements
from heterps_compile.cost.memory import NEVER
from heterps_compile.cost.problem import MethodResult, Problem, SearchResult
from heterps_compile.cost.served_tables import Table
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.layers import LayerGraph
from heterps_compile.ir.partition import Partition
from heterps_compile.plan.other_plan import OtherPlan
from heterps_compile.plan.planned_schedule import Schedule
from heterps_compile.plan.planned_stage import PlannedStage
from heterps_compile.plan.request import Request
from heterps_compile.plan.served_tables import ParameterServers, ServedTables

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
        served_layers: Names of layers whose tables a plan has put on servers; None where that is to be decided.
        baselines: Names of placement methods to try beside that of the request.
        can_recompute: Whether what the stages run on can compute activations again.
        makes_sparse: Whether look-ups that make gradients of rows alone do so in what the stages run on.
        splits_backward: Whether they compute gradients of inputs apart from those of weights.
        build: Builds the stages; None for a plan alone.
    """

    graph: Graph
    cluster: Cluster
    request: Request
    measurements: Measurements | None = None
    warm_start: tuple[PlannedStage, ...] = ()
    warm_fingerprints: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    served_layers: tuple[str, ...] | None = None
    baselines: tuple[str, ...] = ()
    can_recompute: bool = True
    makes_sparse: bool = True
    splits_backward: bool = True
    build: Build | None = None

    @property
    def recompute(self) -> str:
        """Return which stages compute their activations again."""
        return self.request.recomputes if self.can_recompute else NEVER


@dataclass(frozen=True, slots=True, kw_only=True)
class Layered(Draft):
    """Nodes are grouped into layers; once they are annotated, their values are those of the request's precision."""

    layers: LayerGraph

    @property
    def layers_as_read(self) -> LayerGraph:
        """Return the layers with the values of the model, whatever precision is asked for."""
        return replace(self.layers, graph=self.graph)


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotated(Layered):
    """The work of every layer is known."""

    costs: tuple[LayerCost, ...]

    @property
    def orders(self) -> LayerOrders:
        """Return the orders that plans may take the layers in."""
        return orders_of(self.layers, self.costs, optimizer=self.request.trains_with)


@dataclass(frozen=True, slots=True, kw_only=True)
class Posed(Annotated):
    """Times of layers on devices are known, and the search problem is stated.

    Attributes:
        costs: With the tables that lie on servers (``LayerCost.served``).
        times: Of layers on types.
        problem: Of these costs.
        open_tables: That are held, and that the search may put on servers too.
    """

    costs: tuple[LayerCost, ...]
    times: LayerTimes
    problem: Problem
    open_tables: tuple[Table, ...] = ()


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
    tables: ServedTables | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed(Provisioned):
    """Every stage has the rule by which its replicas agree."""

    stages: tuple[PlannedStage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled(Agreed):
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


P = TypeVar("P", bound=Posed)


def in_order(draft: P, order: Sequence[int]) -> P:
    """Return a draft with its layers in another order, given as indices into its own; nothing else changes.

    Raises:
        GraphError: where an edge would run backward.
    """
    if list(order) == list(range(len(order))):
        return draft
    layers, costs = draft.layers.reordered(order), tuple(draft.costs[i] for i in order)
    return replace(
        draft,
        layers=layers,
        costs=costs,
        times=draft.times.reordered(layers, costs, order),
        problem=reordered(draft.problem, draft.orders, order),
    )


def filled_in(takes: type[Draft], gives: type[Draft]) -> tuple[str, ...]:
    """Return the names of the fields that a pass between two steps fills in, in order."""
    steps = [step for step in reversed(gives.__mro__) if not issubclass(takes, step)] or [gives]
    return tuple(dict.fromkeys(name for step in steps for name in get_annotations(step)))
