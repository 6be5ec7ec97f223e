"""The problem a search solves: graph, cluster and request, reduced to arrays.

Every search method sees this and nothing else, and :mod:`heterps_compile.cost.evaluate` is the single truth about
what a placement costs.

Legend (HeterPS, arXiv 2111.10635, section 4): L layers, T device types, B samples in a batch, OCT and ODT the
computation and data-movement time of a layer on one unit, alpha and beta their parallel fractions, k replicas.

A stage s of layers i..j-1 on type t with k replicas takes, for a batch of B samples::

    CT(k) = sum OCT_i * (1 - alpha_it) + sum OCT_i * alpha_it / k
    V     = (bytes in + bytes out) * seconds_per_byte_t + latency_t * ((in > 0) + (out > 0))
    DT(k) = sum data_s_i * (1 - beta_it) + V * (1 - beta_t) + (sum data_s_i * beta_it + V * beta_t) / k
            + sum sync_s * share_t(k), which is (k - 1) / k without machines
    ET(k) = max(CT(k), DT(k), sum shared_s)

alpha_it and beta_it are those of the type, alpha_t and beta_t, unless layers have fractions of their own.

Where pairs of types have links of their own, a value is received over the link between its reader's type and its
producer's, and sent over the slowest of the links to the stages that receive it; ``seconds_per_byte`` and ``latency_s``
then hold the least of each type's links, so that what is computed with them alone is a lower bound.

A plan's throughput is min over stages of B / ET; its price per hour the sum of price_t * k, or of whole machines
where units are rented together (:mod:`.whole_machines`). What is minimised, over
placements *and* over replicas, is the objective (:mod:`.objective`)::

    cost         price_per_hour / 3600 / throughput * 1e6, the price of a million samples
    price        price_per_hour, with the fewest replicas that reach min_throughput
    throughput   max over stages of ET
    latency      sum over stages of (sum OCT + D): nothing overlaps for a batch that is alone in the pipeline
    max-load     max over stages of ET(1), with one unit for every stage

Where tables lie on servers, their price is in price_per_hour, and a batch takes them time too (:mod:`.table_servers`).
All is subject to throughput >= min_throughput, price per hour <= budget_per_hour, sum of k on type t <= max_units_t,
memory of every stage <= memory_t, min_stages <= stages <= max_stages, uncuttable positions respected.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .all_reduce import Machines
from .rule_times import RuleSums

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

FREE_PRICE_PER_HOUR = 1e-9
"""Stands for "free" in a search, so that of two free plans the one with fewer unit-hours wins."""


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Arrays derived from graph, cluster and request.

    A value is charged once to the stage it leaves and once to every stage it enters, whatever the number of
    readers inside; a value that stays inside a stage is free.

    Attributes:
        layer_names: [L].
        type_names: [T].
        type_kinds: [T], ``"cpu"``, ``"gpu"`` or ``"npu"``.
        layer_kinds: [L], values of ``OpKind``.
        batch: B, samples in one step.
        compute_s: [L, T], OCT of a batch on one unit; inf where the type cannot run the layer.
        data_s: [L, T], ODT of a batch that no cut changes: input reading, embedding rows pulled from servers.
        sync_s: [L, T], what the bytes of an all-reduce of the layer's gradients take with ever more replicas
            (:mod:`.all_reduce`): k of them take a share of it, as data movement of their stage; 0 in inference.
        compute_parallel: [T], alpha.
        data_parallel: [T], beta; of what crosses cuts in any case.
        edge_producer: [E], layer that makes a value other layers read; graph inputs are in ``data_s`` instead.
        edge_bytes: [E], bytes that cross, both directions counted in training.
        edge_readers: For each value the layers that read it, ascending; concatenated.
        edge_starts: [E + 1], where each value's readers begin in ``edge_readers``.
        uncuttable: [L + 1], True at position p where no stage may begin at layer p.
        seconds_per_byte: [T], 1 / network bandwidth.
        latency_s: [T], charged once for a stage that receives and once for one that sends.
        price_per_hour: [T], above zero; a free unit has :data:`FREE_PRICE_PER_HOUR`.
        max_units: [T].
        memory_bytes: [T], of one unit.
        weight_bytes: [L], weights, gradients and optimiser state held by a stage with this layer.
        activation_bytes: [L], activations of one batch.
        keeps_activations: True in training, where a stage holds the sum over its layers; else it holds the largest.
        tied_first, tied_second: [P], pairs of layers that share a storage, neighbours in its list of readers.
        tied_bytes: [P], held once, not twice, where both layers of the pair are in one stage.
        allowed: [L, T], False where a pin or an unsupported op forbids the type.
        min_throughput: Samples/s that the plan must reach; 0 for no floor.
        min_stages, max_stages: Bounds on the number of stages.
        objective: A name of :data:`~.objective.OBJECTIVES`.
        budget_per_hour: What the units of a plan may cost in an hour; inf for no limit.
        shared_s: [L, T], time that the storage behind all replicas takes for a layer's inputs and embedding rows of a
            batch, however many replicas there are; None where nothing is shared.
        link_seconds_per_byte, link_latency_s: [T, T], what a stage on the first type pays to talk with one on the
            second; None where all links of a type are alike.
        ring_seconds_per_byte: [T, T], over what connects replicas of two types of one stage; None where types have no
            links of their own.
        currency: Of the prices; "" where none is told.
        machines: [T], in which the units of a type stand; None where every unit has a network card to itself.
        served_s: [L], what the rows that a batch pulls from and pushes to servers take through one server; None where
            no table is served (:mod:`.table_servers`).
        server_price_per_hour: Of one server, above zero where a table is served.
        rows_s: [L, T], what of ``data_s`` the rows that a batch looks up on servers take over a unit's network, in one
            direction (:mod:`.served_rows`); None where no table is served.
        requests_s: [L], what of ``data_s`` a request costs for the layer's tables, in one direction; likewise.
        least_servers: How many servers hold the tables; 0 where none is served.
        layer_compute_parallel, layer_data_parallel: [L, T], alpha and beta of every layer; None where all layers have
            those of their type.
        rented_together: [T], units that are rented as one machine, of which ``max_units`` is a multiple; None where
            each is rented by itself.
        rules: By which replicas may agree, in the order of their entries (:mod:`.rule_times`); ``sync_s`` is then what
            all that a layer may have take at least. None where all all-reduce.
    """

    layer_names: tuple[str, ...]
    type_names: tuple[str, ...]
    type_kinds: tuple[str, ...]
    layer_kinds: tuple[str, ...]
    batch: int
    compute_s: Floats
    data_s: Floats
    sync_s: Floats
    compute_parallel: Floats
    data_parallel: Floats
    edge_producer: Ints
    edge_bytes: Floats
    edge_readers: Ints
    edge_starts: Ints
    uncuttable: Bools
    seconds_per_byte: Floats
    latency_s: Floats
    price_per_hour: Floats
    max_units: Ints
    memory_bytes: Floats
    weight_bytes: Floats
    activation_bytes: Floats
    keeps_activations: bool
    tied_first: Ints
    tied_second: Ints
    tied_bytes: Floats
    allowed: Bools
    min_throughput: float = 0.0
    min_stages: int = 1
    max_stages: int = 10**9
    objective: str = "cost"
    budget_per_hour: float = float("inf")
    shared_s: Floats | None = None
    link_seconds_per_byte: Floats | None = None
    link_latency_s: Floats | None = None
    ring_seconds_per_byte: Floats | None = None
    currency: str = ""
    machines: Machines | None = None
    served_s: Floats | None = None
    server_price_per_hour: float = 0.0
    least_servers: int = 0
    rows_s: Floats | None = None
    requests_s: Floats | None = None
    layer_compute_parallel: Floats | None = None
    layer_data_parallel: Floats | None = None
    rented_together: Ints | None = None
    rules: tuple[RuleSums, ...] | None = None

    @property
    def alpha(self) -> Floats:
        """[L, T], or [T] where all layers of a type have one."""
        return self.compute_parallel if self.layer_compute_parallel is None else self.layer_compute_parallel

    @property
    def beta(self) -> Floats:
        """[L, T], or [T] where all layers of a type have one; of layers, not of what crosses cuts."""
        return self.data_parallel if self.layer_data_parallel is None else self.layer_data_parallel

    @property
    def layer_count(self) -> int:
        """L."""
        return int(self.compute_s.shape[0])

    @property
    def type_count(self) -> int:
        """T."""
        return int(self.compute_s.shape[1])

    @property
    def halves(self) -> bool:
        """Return whether some stages may agree by recursive halving, whose time falls from some replicas to more."""
        return any(each.form.halves for each in self.rules or ())


@dataclass(frozen=True, slots=True)
class Placement:
    """Where every layer goes.

    Attributes:
        types: [L], index of the device type of every layer.
        cuts: Positions p in 1..L-1 where a stage begins although layers p-1 and p share a type; ascending.
    """

    types: tuple[int, ...]
    cuts: tuple[int, ...] = ()

    @classmethod
    def of_stages(cls, types: tuple[int, ...], stages: Sequence[int]) -> "Placement":
        """Return the placement of layers on types, in stages that are given by number layer by layer."""
        begins = (p for p in range(1, len(types)) if stages[p] != stages[p - 1])
        return cls(types, tuple(p for p in begins if types[p] == types[p - 1]))

    def starts(self) -> tuple[int, ...]:
        """Return the first layer of every stage, ascending, 0 first."""
        forced = set(self.cuts)
        return tuple(p for p in range(len(self.types)) if p == 0 or p in forced or self.types[p] != self.types[p - 1])


@dataclass(frozen=True, slots=True)
class ChosenStep:
    """What is decided with a placement where the simulated step is minimised.

    Attributes:
        units: [S], replicas of every stage.
        micro_batches: In the step.
        schedule: That they follow.
        step_s: The simulated step.
    """

    units: tuple[int, ...]
    micro_batches: int
    schedule: str
    step_s: float


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search method gives back.

    Attributes:
        placement: The best one seen.
        value: Its objective, by ``evaluate``; lower is better.
        bound: A proven lower bound on the objective of every placement of this problem.
        method: The method's name.
        seed: The seed it ran with.
        evaluations: How many placements it evaluated.
        search_s: Seconds it took, the bound included.
        notes: What the user should know: fallbacks, limits reached.
        found_by: The part of the run that came upon the placement: one of ``finders.py``, the name of
            another method, or a part of the method itself such as ``"polish"``; "" where the method does not say.
        bound_of_all_orders: A proven lower bound on the objective of every placement in every order of the layers, no
            higher than ``bound``; minus infinity where there is none.
        step: Where ``value`` is that of a step, what is decided with the placement; None in the steady state.
        steady_bound: The bound that the steady state gives of the step's value; minus infinity where ``step`` is None.
        mixed_units: [S][T], the units of every stage where stages may have several types; ``placement`` has then the
            type that works on the most of each. Empty where every stage has one.
    """

    placement: Placement
    value: float
    bound: float
    method: str
    seed: int
    evaluations: int
    search_s: float
    notes: tuple[str, ...] = ()
    found_by: str = ""
    bound_of_all_orders: float = -float("inf")
    step: ChosenStep | None = None
    steady_bound: float = -float("inf")
    mixed_units: tuple[tuple[int, ...], ...] = ()

    @property
    def gap(self) -> float:
        """Return (value - bound) / value, 0 where both are 0."""
        return 0.0 if self.value <= 0 else max(0.0, (self.value - self.bound) / self.value)

    def with_placement(self, placement: Placement, value: float) -> "SearchResult":
        """Return the result with another placement in its stead, with bounds no higher than its value."""
        bounds = {name: min(getattr(self, name), value) for name in ("bound", "bound_of_all_orders")}
        return replace(self, placement=placement, value=value, **bounds)


@dataclass(frozen=True, slots=True)
class MethodResult:
    """What one method made of the problem.

    Attributes:
        method: Its name.
        value: The objective; inf where it found no plan.
        evaluations: Placements it evaluated.
        search_s: Seconds it took, the proof not included.
        fault: Why there is no plan; "" where there is one.
    """

    method: str
    value: float
    evaluations: int
    search_s: float
    fault: str = ""


def tiny_problem() -> Problem:
    """Build a chain of three equal layers on two types, with which loops of searches are compiled."""
    layers, types = 3, 2
    of_layers, of_types, none = np.ones(layers), np.ones(types), np.zeros(0, np.int64)
    times = np.ones((layers, types))
    return Problem(
        layer_names=("a", "b", "c"),
        type_names=("first", "second"),
        type_kinds=("cpu", "gpu"),
        layer_kinds=("gemm",) * layers,
        batch=1,
        compute_s=times,
        data_s=times,
        sync_s=times,
        compute_parallel=0.9 * of_types,
        data_parallel=0.9 * of_types,
        edge_producer=np.arange(layers - 1),
        edge_bytes=np.ones(layers - 1),
        edge_readers=np.arange(1, layers),
        edge_starts=np.arange(layers),
        uncuttable=np.zeros(layers + 1, np.bool_),
        seconds_per_byte=of_types,
        latency_s=of_types,
        price_per_hour=of_types,
        max_units=np.full(types, 100),
        memory_bytes=100 * of_types,
        weight_bytes=of_layers,
        activation_bytes=of_layers,
        keeps_activations=False,
        tied_first=none,
        tied_second=none,
        tied_bytes=np.zeros(0),
        allowed=np.ones((layers, types), np.bool_),
        min_throughput=0.05,
    )
