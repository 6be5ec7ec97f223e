"""What messages between stages and among replicas take, in a problem with given costs.

A message takes what the problem's table of measured transfers says for its size, else the latency and the rate of what
connects the two types in the pool. Between replicas of several types the slowest pair counts. Gradients of k replicas
take what a table of measured all-reduces says, else that of rings inside of machines and between them
(``sync_rules/network.py``), of one type or several; units of a group with tensor parallelism add up their own parts
side by side.

Stages fill the machines of a type with their units, one stage after the other. Where two that follow one another stand
in one machine, a message between them goes inside of it; else it goes over the machines' cards, which the replicas of a
stage in one machine share: they work alike, and send at the same time.

Left out: links that several stages share, machines with units of several types.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from heterps_compile.cost.pose import network_of
from heterps_compile.sync_rules.network import Network, endless_s, joined, ring_share

from .given_plan import GivenPlan, GivenReplicas, stage_of_layers
from .given_problem import GivenProblem, MeasuredAllReduce, MeasuredTransfer


def transfer_s(
    problem: GivenProblem,
    senders: Sequence[GivenReplicas],
    receivers: Sequence[GivenReplicas],
    size_bytes: float,
    *,
    in_one_machine: bool | None = None,
) -> float:
    """Return the time of a message from a replica of one stage to one of the next.

    Args:
        problem: Whose pool and measured messages count.
        senders: Replicas of the one stage.
        receivers: Of the other.
        size_bytes: Of the message.
        in_one_machine: Whether both stages stand in one; None where machines are not looked at, and every message has
            a card to itself.
    """
    if not size_bytes:
        return 0.0
    return max(
        _message_s(problem, sender, receiver, size_bytes, in_one_machine=in_one_machine)
        for sender in senders
        for receiver in receivers
    )


def _message_s(
    problem: GivenProblem,
    sender: GivenReplicas,
    receiver: GivenReplicas,
    size_bytes: float,
    *,
    in_one_machine: bool | None,
) -> float:
    pair = sender.device, receiver.device
    measured = _timed_transfer(problem, pair)
    if measured is not None:
        return measured.time_s(size_bytes)
    if in_one_machine:
        device = problem.known_pool.device_type(sender.device)
        return device.inner_latency_s + size_bytes / device.inner_bytes_per_s
    sides = [problem.known_pool.link(*pair), problem.known_pool.link(*pair[::-1])]
    at_once = 1
    if in_one_machine is not None:
        at_once = max(min(each.count, group_network(problem, each).units_per_machine) for each in (sender, receiver))
    return max(side.latency_s for side in sides) + at_once * size_bytes / min(side.bytes_per_s for side in sides)


def _timed_transfer(problem: GivenProblem, pair: tuple[str, str]) -> MeasuredTransfer | None:
    return next((each for each in problem.transfers if each.between in (pair, pair[::-1])), None)


def moved_s(problem: GivenProblem, plan: GivenPlan) -> list[float]:
    """Return [S], what a unit's network card takes for all that its stage receives and sends with a batch, both ways.

    That is DT of the steady state, without an all-reduce (``cost/replicas.py``). 0 where :func:`has_unknown_cards`.
    """
    pool, stage_of = problem.known_pool, stage_of_layers(problem, plan.stages)
    bytes_s, latency_s = [0.0] * len(plan.stages), [[0.0, 0.0] for _ in plan.stages]
    if has_unknown_cards(problem):
        return bytes_s

    for edge in problem.edges:
        made, size_bytes = stage_of[problem.position[edge.producer]], edge.bytes_per_sample * plan.batch
        readers = {stage_of[problem.position[reader]] for reader in edge.readers} - {made}
        for stage in (made, *readers) if readers and size_bytes else ():
            others = readers if stage == made else {made}
            ways = [
                [pool.way(a.device, b.device) for a in plan.stages[stage].replicas for b in plan.stages[other].replicas]
                for other in others
            ]
            bytes_s[stage] += (
                problem.directions * size_bytes * max(min(1 / w.bytes_per_s for w in each) for each in ways)
            )
            late_s = max(min(way.latency_s for way in each) for each in ways)
            latency_s[stage][stage == made] = max(latency_s[stage][stage == made], late_s)
    fractions = [max(pool.device_type(each.device).data_parallel for each in stage.replicas) for stage in plan.stages]
    return [
        (own_s + sum(late_s)) * (1 - part + part / stage.width)
        for own_s, late_s, part, stage in zip(bytes_s, latency_s, fractions, plan.stages, strict=True)
    ]


def crossings(problem: GivenProblem, group: GivenReplicas) -> Iterator[tuple[int, int, float, float]]:
    """Yield producer, reader, entering and leaving time of every value.

    That is where the parts of a stage add up: both directions are counted on both sides.
    """
    card_s = problem.batch * group_network(problem, group).seconds_per_byte
    for edge in problem.edges:
        both_ways = problem.directions * edge.bytes_per_sample
        own = next((sizes for degree, *sizes in edge.exchanged if degree == group.tensor_parallel), (0.0, 0.0))
        entering_s, leaving_s = ((both_ways + size) * card_s for size in own)
        made = problem.position[edge.producer]
        yield from ((made, problem.position[reader], entering_s, leaving_s) for reader in edge.readers)


def crossing_s(problem: GivenProblem, plan: GivenPlan) -> list[float]:
    """Compute times [S] of crossing values per batch and replica."""
    stage_of, total_s = stage_of_layers(problem, plan.stages), [0.0] * len(plan.stages)
    groups = [replace(stage.replicas[0], count=1) for stage in plan.stages]
    for group in set(groups):
        for made, read, entering_s, leaving_s in crossings(problem, group):
            for stage, other, time_s in ((made, read, leaving_s), (read, made, entering_s)):
                if stage_of[stage] != stage_of[other] and groups[stage_of[stage]] == group:
                    total_s[stage_of[stage]] += time_s / plan.stages[stage_of[stage]].width
    return total_s


def summed_share_s(problem: GivenProblem, group: GivenReplicas, size_bytes: Any, replicas: Any) -> Any:
    """Compute the all-reduce time per batch, 4 (k - 1) / k S / bandwidth / batches.

    Args:
        problem: Its replicas sum every so many batches.
        group: One replica.
        size_bytes: Of the gradients that a unit has; a number or an array.
        replicas: k; inf for ever more.
    """
    whole_s = 2 * endless_s(size_bytes, group_network(problem, group).seconds_per_byte)
    return whole_s / (problem.summed_every or 1.0) * ring_share(replicas)


def has_unknown_cards(problem: GivenProblem) -> bool:
    """Return whether messages may pass by the network cards: inside of machines, or in a time that was measured."""
    return bool(problem.transfers) or any(each.units_per_machine > 1 for each in problem.known_pool.device_types)


def untimed_pairs(
    problem: GivenProblem, senders: Sequence[GivenReplicas], receivers: Sequence[GivenReplicas]
) -> list[tuple[str, str]]:
    """Return the pairs of types, of replicas that send and that receive, between which no transfer was timed."""
    pairs = {(sender.device, receiver.device) for sender in senders for receiver in receivers}
    return sorted(pair for pair in pairs if _timed_transfer(problem, pair) is None)


def in_one_machine(problem: GivenProblem, stages: Sequence[Sequence[GivenReplicas]]) -> list[bool]:
    """Return [S - 1], whether all units of a stage and of the next stand in one machine."""
    taken: dict[str, int] = {}
    machines = [_machine(problem, replicas, taken) for replicas in stages]
    return [here is not None and here == there for here, there in pairwise(machines)]


def _machine(problem: GivenProblem, replicas: Sequence[GivenReplicas], taken: dict[str, int]) -> tuple[str, int] | None:
    """Return the type and the number of the machine that all units of a stage stand in; None where there is none."""
    machine = None
    for each in replicas:
        of_machine = problem.known_pool.device_type(each.device).units_per_machine
        first = taken.get(each.device, 0)
        taken[each.device] = first + each.units
        if len(replicas) == 1 and of_machine > 1 and first // of_machine == (first + each.units - 1) // of_machine:
            machine = each.device, first // of_machine
    return machine


def all_reduce_s(
    problem: GivenProblem, replicas: Sequence[GivenReplicas], held_bytes: Sequence[float], network: Network
) -> float:
    """Return the time to add up gradients, of so many bytes on one unit of every kind of replica."""
    count = sum(each.count for each in replicas)
    if count < 2 or not any(held_bytes):
        return 0.0
    if problem.summed_every is not None:
        return float(summed_share_s(problem, replicas[0], max(held_bytes), count))
    if not untimed(problem, replicas):
        sizes = zip(replicas, held_bytes, strict=True)
        return max(each.time_s(size_bytes) for kind, size_bytes in sizes for each in timed(problem, [kind], count))
    return network.all_reduce_s(max(held_bytes), count)


def timed(problem: GivenProblem, replicas: Sequence[GivenReplicas], count: int) -> list[MeasuredAllReduce]:
    """Return the all-reduces that were timed among so many units, of each of the replicas' types."""
    devices = {each.device for each in replicas}
    return [each for each in problem.all_reduces if each.units == count and each.device in devices]


def untimed(problem: GivenProblem, replicas: Sequence[GivenReplicas]) -> list[str]:
    """Return the types of replicas of which no all-reduce of so many units was timed: with any, none counts."""
    found = timed(problem, replicas, sum(each.count for each in replicas))
    return sorted({each.device for each in replicas} - {each.device for each in found})


def group_network(problem: GivenProblem, group: GivenReplicas) -> Network:
    """Return what connects replicas of one kind; units of a group that stand in one machine share its card."""
    of_unit = network_of(problem.known_pool, group.device)
    return replace(
        of_unit,
        seconds_per_byte=of_unit.seconds_per_byte * _peers(problem, group),
        units_per_machine=max(1, of_unit.units_per_machine // group.tensor_parallel),
    )


def _peers(problem: GivenProblem, group: GivenReplicas) -> int:
    """Return the units of a group that share a machine's card, each with a part of the gradients."""
    return min(group.tensor_parallel, problem.known_pool.device_type(group.device).units_per_machine)


def network_of_replicas(
    problem: GivenProblem, replicas: Sequence[GivenReplicas], held_bytes: Sequence[float]
) -> Network:
    """Return what connects the replicas of a stage, for the gradients of the unit that has most.

    A link between two kinds carries the parts of the one that sends less.

    Args:
        problem: Whose pool counts.
        replicas: Of every kind.
        held_bytes: Gradients of one unit, of every kind.
    """
    most = max(held_bytes)
    parts, at_once = [], []
    for each, size_bytes in zip(replicas, held_bytes, strict=True):
        share = size_bytes / most if most else 1.0
        own = group_network(problem, each)
        parts.append((replace(own, inner_seconds_per_byte=own.inner_seconds_per_byte * share), each.count))
        at_once.append(_peers(problem, each) * share)
    kinds = list(zip(replicas, at_once, strict=True))
    links = [(problem.known_pool.link(a.device, b.device), min(here, there)) for a, here in kinds for b, there in kinds]
    return joined(parts, max(each / link.bytes_per_s for link, each in links), max(link.latency_s for link, _ in links))
