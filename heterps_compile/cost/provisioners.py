"""The provisioning rules of HeterPS for the stages of one placement, beside the exact one of ``evaluate.py``.

Legend (HeterPS, arXiv 2111.10635, section on provisioning): tau the time of a batch (batch / throughput), k_i the
replicas of stage i, A the part of its work that replicas divide, S the part they do not, p_i the price of a unit, f a
price per hour that does not depend on the stages (parameter-server cores, a coordinator)::

    balance      every stage takes tau:  k_i(tau) = max(A_c / (tau - S_c), A_d / (tau - S_d))
    cost         of a batch, over 3600:  tau * (f + sum p_i k_i(tau))

With f = 0 the cost falls as tau grows, so the optimum lies at the throughput floor; with f > 0 it has an optimum
inside. Both are found here; the replicas of these rules are real numbers until they are rounded up.

Left out: limits on units and memory (the exact provisioner keeps them; these rules are what it is compared with).
"""

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from heterps_compile.errors import InfeasibleError, UnprovenError
from heterps_compile.units import format_seconds

from .evaluate import PlacementDetail, detail, slowest_batch_s, to_arrays
from .problem import Bools, Floats, Placement, Problem
from .replicas import StageWork
from .segments import FlatStages, flatten_stages

_NEWTON_STEPS = 60
_BISECTIONS = 60
_SAME = 1e-12


@dataclass(frozen=True, slots=True)
class Provisioning:
    """Replicas for the stages of a placement.

    Attributes:
        units: [S], whole numbers unless the rule was asked for its real-valued optimum.
        throughput: Samples/s they reach.
        price_per_hour: Of all of them and whatever does not depend on the stages.
    """

    units: tuple[float, ...]
    throughput: float
    price_per_hour: float

    @property
    def price_per_million_samples(self) -> float:
        """Return the objective ``cost``."""
        return self.price_per_hour / 3600 / self.throughput * 1e6


def provision(problem: Problem, placement: Placement, rule: str, fixed_price_per_hour: float = 0.0) -> PlacementDetail:
    """Return a placement's stages with the replicas of a rule.

    Args:
        problem: The problem.
        placement: A feasible placement.
        rule: ``"exact"``, ``"closed-form"`` or ``"newton"``; the first alone keeps limits on units.
        fixed_price_per_hour: What is paid whatever the replicas, for ``newton``.

    Raises:
        InfeasibleError: where the rule needs more units than there are.
    """
    best = detail(problem, placement)
    if rule == "exact":
        return best
    if rule == "newton":
        found = balanced_newton(problem, placement, fixed_price_per_hour=fixed_price_per_hour)
    else:
        found = closed_form(problem, placement)
    units = np.array(found.units)
    types = [stage.type for stage in best.stages]
    used = np.bincount(types, units, problem.type_count)
    for t in np.flatnonzero(used > problem.max_units):
        raise UnprovenError(
            f"the provisioner {rule!r} asks for {used[t]:.0f} {problem.type_names[t]!r}, and the limit is "
            f"{problem.max_units[t]}; --provisioner exact keeps limits"
        )
    return detail(problem, placement, units)


def closed_form(problem: Problem, placement: Placement, *, whole: bool = True) -> Provisioning:
    """Return the fewest replicas of every stage that carry the throughput floor: k = A / (tau - S).

    Raises:
        InfeasibleError: where there is no floor, or a stage cannot reach it with any number of replicas.
    """
    stages = _stages(problem, placement)
    floor_s = slowest_batch_s(problem)
    if math.isinf(floor_s):
        raise InfeasibleError("the closed form needs a throughput floor; give one, or let the exact provisioner choose")
    return _at(problem, stages, floor_s, 0.0, whole=whole)


def balanced_newton(
    problem: Problem, placement: Placement, *, fixed_price_per_hour: float = 0.0, whole: bool = True
) -> Provisioning:
    """Minimise the price of a batch over balanced replicas, by Newton's iteration on tau, kept inside a bracket.

    Raises:
        InfeasibleError: where there is no floor and nothing bounds tau from above, the floor cannot be reached, or
            units share machines.
    """
    stages = _stages(problem, placement)
    slowest_s = slowest_batch_s(problem)
    price = problem.price_per_hour[stages.type]
    if fixed_price_per_hour <= 0:
        if math.isinf(slowest_s):
            raise InfeasibleError("without a floor or a fixed price the balanced cost falls for ever as replicas do")
        return _at(problem, stages, slowest_s, 0.0, whole=whole)
    if stages.work.machines is not None:
        raise InfeasibleError(
            "the provisioner 'newton' takes an all-reduce to be one ring, and the pool has machines of several units; "
            "--provisioner exact knows them"
        )
    demand = stages.work.demand()
    optimum_s = _newton(lambda tau_s: _slopes(stages.work, price, fixed_price_per_hour, tau_s), _fixed_s(stages.work))
    if whole:  # between two whole numbers of replicas there may be a time that neither reaches
        optimum_s = max(optimum_s, float(np.max(demand.time_s(demand.fastest_units()))))
    best = _at(problem, stages, min(optimum_s, slowest_s), fixed_price_per_hour, whole=whole)
    # where one replica is enough a stage stops to synchronise, and the price has a kink: Newton sees no kinks
    for tau_s in map(float, demand.once_s):
        if tau_s < slowest_s and np.isfinite(_fractions(stages.work, tau_s)[0]).all():
            other = _at(problem, stages, tau_s, fixed_price_per_hour, whole=whole)
            best = min(best, other, key=lambda rule: rule.price_per_million_samples)
    return best


def static_ratio(problem: Problem, placement: Placement, units_per_accelerator: float) -> Provisioning:
    """Rent CPU units in a fixed ratio to accelerators (StaRatio): the fewest accelerators that meet the floor.

    Of each kind the units are dealt to its stages in proportion to the work they have; a stage gets one at least.

    Raises:
        InfeasibleError: where no number of accelerators within the limits meets the floor.
    """
    stages = _stages(problem, placement)
    on_cpu = np.array([problem.type_kinds[t] == "cpu" for t in stages.type])
    slowest_s = slowest_batch_s(problem)
    most = int(problem.max_units.sum())

    def cpu_units(accelerators: int) -> int:
        return max(1, math.ceil(units_per_accelerator * accelerators))

    def dealt(accelerators: int) -> Floats:
        return _deal(stages.work, on_cpu, cpu_units(accelerators)) + _deal(stages.work, ~on_cpu, accelerators)

    def batch_s(accelerators: int) -> float:
        return float(stages.work.time_s(np.maximum(dealt(accelerators), 1)).max())

    accelerators = 1 + bisect.bisect_left(range(1, most + 1), -slowest_s, key=lambda count: -batch_s(count))
    if accelerators > most:
        raise UnprovenError(
            f"no number of accelerators up to {most}, with {units_per_accelerator:g} CPU units each, reaches "
            f"{problem.min_throughput:,.0f} samples/s for this placement"
        )
    units = np.maximum(dealt(accelerators), 1)
    paid = float(problem.price_per_hour[stages.type] @ units)
    # what the ratio rents and no stage has a use for is paid all the same
    paid += _idle_price(problem, cpu_units(accelerators) - units[on_cpu].sum(), is_cpu=True)
    paid += _idle_price(problem, accelerators - units[~on_cpu].sum(), is_cpu=False)
    return Provisioning(tuple(units.tolist()), problem.batch / batch_s(accelerators), paid)


def parameter_servers(parameter_bytes: float, workers: int, server_bytes_per_s: float, compute_s: float) -> int:
    """Return the parameter servers that keep up: N_ps >= 2 S_p N_w / (B_ps T_C), at least one.

    Args:
        parameter_bytes: S_p, pushed and pulled by every worker in every round.
        workers: N_w.
        server_bytes_per_s: B_ps, bandwidth of one server.
        compute_s: T_C, computation of one round, behind which the traffic must hide.
    """
    return max(1, math.ceil(2 * parameter_bytes * workers / (server_bytes_per_s * compute_s) * (1 - _SAME)))


def static_ps_ratio(
    problem: Problem, placement: Placement, servers_per_worker: float, server_price_per_hour: float
) -> Provisioning:
    """Rent parameter servers in a fixed ratio to training units (StaPSRatio), stages at the floor.

    Raises:
        InfeasibleError: as :func:`closed_form`.
    """
    workers = closed_form(problem, placement)
    servers = math.ceil(servers_per_worker * sum(workers.units))
    paid = workers.price_per_hour + servers * server_price_per_hour
    return Provisioning(workers.units, workers.throughput, paid)


def _stages(problem: Problem, placement: Placement) -> FlatStages:
    return flatten_stages(problem, *to_arrays([placement]))


def _fixed_s(work: StageWork) -> float:
    """Return a time of a batch that no number of replicas gets below."""
    return float(work.demand().fixed_s.max())


def _fractions(work: StageWork, tau_s: float) -> tuple[Floats, Floats]:
    """Return the real-valued replicas of every stage at tau, and the fixed part S of whichever of CT and DT binds.

    A stage for which one replica is enough does not synchronise, even where the rule asks for less than one. Data
    movement that grows with replicas asks for none and allows only so many. Inf where no number is enough.
    """
    sync_s = np.where(work.demand().once_s <= tau_s, 0.0, 0.0 if work.sync_s is None else work.sync_s)
    fixed = np.stack([work.serial_compute_s, work.serial_data_s + sync_s])
    shared = np.stack([work.compute_s - work.serial_compute_s, work.data_s - work.serial_data_s - sync_s])
    grows = shared[1] < 0
    with np.errstate(divide="ignore", invalid="ignore"):
        units = np.where(fixed < tau_s, shared / (tau_s - fixed), np.inf)
        most = np.where(grows & (fixed[1] > tau_s), shared[1] / (tau_s - fixed[1]), np.inf)
    units[1, grows] = 0.0
    units[:, np.maximum(units[0], 1.0) > most] = np.inf
    if work.shared_s is not None:
        units[:, work.shared_s > tau_s] = np.inf
    binding = units.argmax(axis=0)
    stage = np.arange(units.shape[1])
    return units[binding, stage], fixed[binding, stage]


def _slopes(work: StageWork, price: Floats, fixed_price: float, tau_s: float) -> tuple[float, float]:
    """Return first and second derivative of the price of a batch by tau; d(tau k)/dtau = -k S / (tau - S)."""
    units, fixed_s = _fractions(work, tau_s)
    if np.any(np.isinf(units)):
        return -math.inf, 0.0
    slack = tau_s - fixed_s
    first = fixed_price - float(price @ (units * fixed_s / slack))
    second = float(price @ (2 * units * fixed_s / slack**2))
    return first, second


def _newton(slopes: Callable[[float], tuple[float, float]], lowest_s: float) -> float:
    """Find where the first derivative is zero above ``lowest_s``; it rises from minus infinity to above zero."""
    low, high = lowest_s, max(lowest_s * 2, 1e-9)
    while slopes(high)[0] < 0:
        low, high = high, high * 2
    tau_s = following = (low + high) / 2
    for _ in range(_NEWTON_STEPS):
        first, second = slopes(tau_s)
        low, high = (tau_s, high) if first < 0 else (low, tau_s)
        step = tau_s - first / second if second > 0 else low
        following = step if low < step < high else (low + high) / 2
        if abs(following - tau_s) <= _SAME * tau_s:
            break
        tau_s = following
    return high if math.isinf(slopes(following)[0]) else following  # it may lie where a stage becomes possible


def _at(problem: Problem, stages: FlatStages, tau_s: float, fixed_price: float, *, whole: bool) -> Provisioning:
    units = stages.work.demand().units(tau_s) if whole else _fractions(stages.work, tau_s)[0]
    for stage in np.flatnonzero(np.isinf(units)):
        first, last = (problem.layer_names[i] for i in (stages.first[stage], stages.end[stage] - 1))
        raise UnprovenError(
            f"the stage of layers {first!r} to {last!r} takes more than {format_seconds(tau_s)} a batch with any "
            f"number of replicas, which the floor of {problem.min_throughput:,.0f} samples/s does not leave"
        )
    batch_s = float(stages.work.time_s(units).max()) if whole else tau_s
    paid = fixed_price + float(problem.price_per_hour[stages.type] @ units)
    return Provisioning(tuple(units.tolist()), problem.batch / batch_s, paid)


def _deal(work: StageWork, mask: Bools, count: int) -> Floats:
    """Deal so many units to the stages of the mask so that the slowest is as fast as can be; 0 for all others."""
    if not mask.any():
        return np.zeros(len(mask))
    demand = work.demand().take(mask)
    fast_s, slow_s = float(demand.fixed_s.max()), float(demand.once_s.max())
    for _ in range(_BISECTIONS):
        middle_s = (fast_s + slow_s) / 2
        if demand.units(middle_s).sum() <= count:
            slow_s = middle_s
        else:
            fast_s = middle_s
    units = np.zeros(len(mask))
    units[mask] = demand.units(slow_s)
    return units


def _idle_price(problem: Problem, count: float, *, is_cpu: bool) -> float:
    """Return the price of so many units that no stage uses: of the kind's cheapest type, where the pool has one."""
    prices = [
        p for p, kind in zip(problem.price_per_hour, problem.type_kinds, strict=True) if (kind == "cpu") is is_cpu
    ]
    return max(0.0, count) * float(min(prices, default=0.0))
