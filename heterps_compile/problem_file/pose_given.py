"""Reduce a problem with given costs to the arrays that every search method sees.

Every device type of the pool that has times of a layer is a type of the search, with each degree of tensor parallelism
that it has times for: a group is its unit there, with the price and the memory of all of its units. Times are those of
a whole batch, forward and backward, with the update, which every replica does whole. Memory is that of the type that
needs the least of it, with the activations of one sample: what a plan holds is known with its prediction. Layers keep
the order of the file.

Left out: the search (``passes/place_given.py``); that degrees of a type share its units (``passes/degree_shares.py``);
measured messages and the step overhead, which `predict` counts.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from heterps_compile.cluster.devices import Cluster, DeviceType
from heterps_compile.cost.all_reduce import Machines
from heterps_compile.cost.mixed_units import MixedPlacement
from heterps_compile.cost.pose import edge_arguments, goal_arguments, pool_arguments
from heterps_compile.cost.problem import FREE_PRICE_PER_HOUR, Floats, Placement, Problem
from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.plan.command_options import COMPILE, PROBLEM
from heterps_compile.plan.request import OPTIONS, Request
from heterps_compile.schedule.mixed_stage import BY_SPEED, EQUAL
from heterps_compile.sync_rules.network import endless_s

from .given_plan import GivenPlan, GivenReplicas, GivenStage
from .given_problem import STEP, GivenProblem, GivenTimes
from .message_times import group_network
from .problem_laws import shown

_REFUSED = tuple(
    option
    for option in COMPILE.options
    if option.name in OPTIONS and option.name != "mode" and PROBLEM not in (option.subjects or (PROBLEM,))
)
"""Options of a request that the command refuses beside a problem file; the mode is the file's to say."""

TimesTable = Sequence[Sequence[GivenTimes | None]]


@dataclass(frozen=True, slots=True)
class PosedGiven:
    """The arrays, and the group of units that each of their types is.

    Attributes:
        problem: The arrays.
        groups: [T], one replica of each type.
    """

    problem: Problem
    groups: tuple[GivenReplicas, ...]


def refuse_what_means_nothing(given: GivenProblem, request: Request) -> None:
    """Refuse options that the command refuses beside a problem file, wherever they were asked for.

    Raises:
        InputError: where one is asked for.
    """
    asked, usual = request.asked(), Request().asked()
    for option in _REFUSED:
        if asked[option.name] != usual[option.name]:
            raise InputError(f"problem {shown(given.name)}: {option.word} means nothing for given costs; leave it out")


def pose_given(given: GivenProblem, request: Request, *, every_degree: bool = False) -> PosedGiven:
    """Return the arrays of a problem; O(layers * types + edges + types^2).

    Args:
        given: The problem.
        request: Its objective and limits.
        every_degree: Pose all degrees of a type, each with all units, not only the least that most layers have.

    Raises:
        InputError: where the problem's batches are of one replica each.
        InfeasibleError: where no device type has times.
    """
    if given.batch_of != STEP:
        raise InputError(
            f"problem {shown(given.name)}: its batches are of one replica each, which are planned for the objective "
            f"throughput, not for {request.objective!r}"
        )
    pool = given.known_pool
    groups = _groups(given, pool, every_degree=every_degree)
    networks = [group_network(given, each) for each in groups]
    times = times_of(given, groups)
    allowed = np.array([[each is not None for each in row] for row in times])
    for layer, row in zip(given.layers, allowed, strict=True):
        if not row.any():
            raise InfeasibleError(
                f"problem {shown(given.name)}: no type of the pool has times of layer {shown(layer.name)} for a group "
                "that other layers have too; give it times on one"
            )
    devices = [pool.device_type(each.device) for each in groups]
    offers = [_offer(device, each.tensor_parallel) for device, each in zip(devices, groups, strict=True)]
    together = np.array([offer.together for offer in offers], np.int64)
    edges = [
        (
            given.position[edge.producer],
            edge.bytes_per_sample * given.batch * given.directions,
            sorted({given.position[reader] for reader in edge.readers}),
        )
        for edge in given.edges
    ]
    work_s = of_each(times, lambda each: each.forward_time_s(given.batch) + each.backward_time_s(given.batch), math.inf)
    update_s = of_each(times, lambda each: each.update_s, 0.0)
    compute_s = work_s + update_s
    for each, takes_time in zip(groups, np.any(np.isfinite(compute_s) & (compute_s > 0), axis=0), strict=True):
        if not takes_time:
            raise nothing_to_plan(given, each.device)
    degrees = np.array([each.tensor_parallel for each in groups])
    held, kept = (
        (of_each(times, bytes_of, math.inf) * degrees).min(axis=1)
        for bytes_of in (
            lambda each: each.held_bytes(given.held_per_parameter),
            lambda each: each.activation_bytes_per_sample,
        )
    )
    none = np.zeros(0, np.int64)
    problem = Problem(
        **pool_arguments(pool, [group.device for group in groups]),
        **goal_arguments(request, len(given.layers)),
        **edge_arguments(edges),
        layer_names=tuple(layer.name for layer in given.layers),
        type_names=tuple(
            each.device if each.tensor_parallel == 1 else f"{each.tensor_parallel} x {each.device}" for each in groups
        ),
        layer_kinds=("other",) * len(given.layers),
        batch=given.batch,
        compute_s=compute_s,
        data_s=np.zeros(compute_s.shape),
        layer_compute_parallel=_own_fractions(times, devices, work_s, compute_s),
        sync_s=of_each(times, lambda each: each.parameter_bytes * given.training, 0.0)
        * [endless_s(1.0, network.seconds_per_byte) for network in networks],
        compute_parallel=np.array([device.compute_parallel for device in devices]),
        data_parallel=np.array([device.data_parallel for device in devices]),
        uncuttable=np.zeros(len(given.layers) + 1, np.bool_),
        price_per_hour=np.array([offer.price_per_hour for offer in offers]),
        max_units=np.array([offer.most for offer in offers], np.int64),
        memory_bytes=np.array([device.memory_bytes for device in devices]) * degrees,
        weight_bytes=held,
        activation_bytes=kept,
        keeps_activations=given.training,
        tied_first=none,
        tied_second=none,
        tied_bytes=np.zeros(0),
        allowed=allowed,
        machines=Machines.of_networks(networks) if given.training else None,
        rented_together=together if np.any(together > 1) else None,
    )
    return PosedGiven(problem, groups)


def nothing_to_plan(given: GivenProblem, device: str) -> InputError:
    """Return the error of a problem whose layers take no time on a device type."""
    return InputError(
        f"problem {shown(given.name)}: its layers take no time on {shown(device)}, so there is nothing to plan; give "
        "one of them a time above 0"
    )


@dataclass(frozen=True, slots=True)
class _Offer:
    """What groups of a type are rented as: so many together at most so often, each at its part of their price."""

    price_per_hour: float
    together: int
    most: int


def _offer(device: DeviceType, degree: int) -> _Offer:
    """Return what a pool offers of groups of so many units; a machine pays units too that no group has room in."""
    price, of_machine = device.price_per_hour or FREE_PRICE_PER_HOUR, device.rented_together
    if of_machine == 1:
        return _Offer(degree * price, 1, device.max_units // degree)
    machines = device.max_units // of_machine
    if degree > of_machine:
        each = -(-degree // of_machine)
        return _Offer(each * of_machine * price, 1, machines // each)
    inside = of_machine // degree
    return _Offer(of_machine * price / inside, inside, machines * inside)


def times_of(given: GivenProblem, groups: Sequence[GivenReplicas]) -> TimesTable:
    """Return [L, T], the times of each layer for each group, None where it has none."""
    return [[layer.by_group.get((each.device, each.tensor_parallel)) for each in groups] for layer in given.layers]


def of_each(times: TimesTable, number: Callable[[GivenTimes], float], without: float) -> Floats:
    """Return [L, T], a number of every entry of times.

    Args:
        times: Of L layers, for T groups.
        number: Of an entry.
        without: Where there is none.
    """
    return np.array([[without if each is None else number(each) for each in row] for row in times])


def parallel_of(times: TimesTable, devices: Sequence[DeviceType]) -> Floats:
    """Return [L, T], the part of forward and backward that replicas divide."""
    of_type = [device.compute_parallel for device in devices]
    return np.array(
        [[a if each is None else each.parallel(a) for each, a in zip(row, of_type, strict=True)] for row in times]
    )


def _own_fractions(
    times: TimesTable, devices: Sequence[DeviceType], work_s: Floats, compute_s: Floats
) -> Floats | None:
    """Return [L, T], what replicas divide of layers: alpha of forward and backward, nothing of the update.

    None where every layer has the fraction of its type.
    """
    of_type = np.array([device.compute_parallel for device in devices])
    own = parallel_of(times, devices)
    works = np.isfinite(compute_s) & (compute_s > 0)
    divided = own * np.divide(work_s, compute_s, out=np.ones_like(own), where=works)
    return None if np.array_equal(divided, np.broadcast_to(of_type, divided.shape)) else divided


def _groups(given: GivenProblem, pool: Cluster, *, every_degree: bool) -> tuple[GivenReplicas, ...]:
    """Make one replica of each type, of all degrees or the commonest."""
    degrees: dict[str, Counter[int]] = {}
    for layer in given.layers:
        for device, degree in layer.by_group:
            degrees.setdefault(device, Counter())[degree] += 1
    named = [device for device in pool.device_types if device.name in degrees]
    if not named:
        raise InfeasibleError(
            f"problem {shown(given.name)}: the pool {shown(pool.name)} has no type that times are given on"
        )
    return tuple(
        GivenReplicas(device.name, 1, degree)
        for device in named
        for degree in sorted(degrees[device.name], key=lambda each: (-degrees[device.name][each], each))[
            : None if every_degree else 1
        ]
        if degree <= device.max_units or not every_degree
    )


def mixed_plan_of(given: GivenProblem, posed: PosedGiven, placement: MixedPlacement) -> GivenPlan:
    """Return the plan of a placement whose stages may have several types, fed by speed; its batch is undivided."""
    stages = []
    for (begin, end), units in zip(pairwise((*placement.starts, len(given.layers))), placement.units, strict=True):
        kinds = tuple(replace(group, count=count) for group, count in zip(posed.groups, units, strict=True) if count)
        stages.append(GivenStage(tuple(range(begin, end)), kinds, BY_SPEED if len(kinds) > 1 else EQUAL))
    return GivenPlan(tuple(stages), given.batch, given.batch)


def plan_of(given: GivenProblem, posed: PosedGiven, placement: Placement, replicas: list[int]) -> GivenPlan:
    """Return the plan of a placement with so many replicas of each stage, its batch undivided."""
    return mixed_plan_of(given, posed, MixedPlacement.of_plain(posed.problem, placement, replicas))
