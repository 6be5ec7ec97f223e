"""Measure the network between hosts: one process on each, started under the environment contract.

::

    every rank                                       rank 0
    meet, connect                                    refuses several processes on a host
    pairs of hosts in turn: messages to and fro
    the lower rank of a pair: times -> store         fits a line for every pair of device types
    sums of all ranks                                compares them with the cost model
    wait for the verdict                             writes the pool

The line is ``time = latency + bytes / bandwidth`` through the lower quartiles of the rounds, as in ``link.py``. A
message goes the way of a run's messages: over gloo, from and to the memory of the CPU; between two processes of one
host, which a note names, through memory that both map. The pool stores latency and
bandwidth alone; the cost model derives the time of an all-reduce from them (``sync_rules/network.py``).

Not covered: directions that differ; what several pairs reach at the same time; GPUs that talk past the CPU's memory.
"""

import datetime as dt
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from pydantic import ConfigDict, Field
from torch import Tensor

from heterps_compile.cluster.devices import Cluster, Link
from heterps_compile.cluster.load import load_cluster
from heterps_compile.cluster.pool_toml import pool_toml
from heterps_compile.cost.profile import LinkProfile, Timing
from heterps_compile.errors import HeterpsError, InputError, RunError
from heterps_compile.escape import printable
from heterps_compile.packages import __version__
from heterps_compile.plan.whole_file import check_writable, replace_file
from heterps_compile.runtime.launch.addresses import own_address
from heterps_compile.runtime.launch.env_rank import Asked, device_type_here, meet
from heterps_compile.runtime.launch.membership import Membership
from heterps_compile.runtime.launch.preflight import agree
from heterps_compile.runtime.launch.progress import ProgressRecorder
from heterps_compile.runtime.launch.store_values import to_send
from heterps_compile.runtime.launch.watched_ranks import join_group, supervised_by_ranks, watched
from heterps_compile.runtime.pipeline.rank_group import RankGroup
from heterps_compile.runtime.pipeline.transport import Transport
from heterps_compile.runtime.pipeline.world import make_group, world
from heterps_compile.strict_json import STRICT, received
from heterps_compile.sync_rules.network import Network
from heterps_compile.units import counted, format_bytes, format_percent, format_seconds

from .clock import lower_quartile, timing
from .fit import fit_link
from .pair import SIZES_BYTES, Pair, timed_rounds

if TYPE_CHECKING:
    from heterps_compile.runtime.c10d import Store

MOST_OFF = 0.25
"""Share by which a time may be off the line before a note names it."""

_SUMMED_BYTES = (1 << 16, 1 << 20, 1 << 22)
_HANG_AFTER_S = 8.0
_LONGEST_S = 2.0  # of a message; larger ones are left out
_LEAST_SIZES = 3
_MOST_PAIRS = 3  # of hosts, for each pair of device types
_MEETING = "link"


@dataclass(frozen=True, slots=True)
class LinkRequest:
    """The options of ``calibrate --link``.

    Attributes:
        cluster: Name or file of the pool.
        device_type: Of this process; None for the only type of the pool, or the one that the GPU is named after.
        wait_s: Seconds that ranks wait for each other.
        output: The pool to write, on the host of rank 0.
    """

    cluster: str
    device_type: str | None
    wait_s: float
    output: Path


@dataclass(frozen=True, slots=True)
class SizeTime:
    """The time of a message, one way, or of a sum.

    Attributes:
        size_bytes: Of the message.
        time: Median and spread of the rounds.
        fitted_s: Their lower quartile.
        rounds: How many.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    size_bytes: Annotated[int, Field(ge=1, le=2**40)]
    time: Timing
    fitted_s: Annotated[float, Field(gt=0, le=1e6)]
    rounds: Annotated[int, Field(ge=1, le=10_000)]

    @staticmethod
    def of(size_bytes: int, times_s: Sequence[float]) -> "SizeTime":
        """Reduce the rounds to their statistics."""
        return SizeTime(size_bytes, timing(times_s), lower_quartile(times_s), len(times_s))


@dataclass(frozen=True, slots=True)
class PairTimes:
    """The messages between two ranks, by size."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    times: Annotated[tuple[SizeTime, ...], Field(max_length=100)]


@dataclass(frozen=True, slots=True)
class HostLink:
    """The link of two device types.

    Attributes:
        link: As the pool stores it.
        profile: The fitted line with its errors.
        times: Of all pairs of hosts that it was fitted to.
    """

    link: Link
    profile: LinkProfile
    times: tuple[SizeTime, ...]


@dataclass(frozen=True, slots=True)
class HostLinks:
    """The network of a job.

    Attributes:
        links: By pair of device types.
        sums: All-reduces over all hosts, each with the seconds of the cost model.
        pool: With these links.
        notes: On times that are off the model, and on the pool.
    """

    links: tuple[HostLink, ...]
    sums: tuple[tuple[SizeTime, float], ...]
    pool: Cluster
    notes: tuple[str, ...]


def measure_host_links(
    member: Membership, request: LinkRequest, on_met: Callable[[str], object] = lambda _: None
) -> tuple[str, HostLinks | None]:
    """Measure the links between the hosts of all ranks; rank 0 writes the pool.

    Args:
        member: This process.
        request: The options.
        on_met: Called with the hosts and their device types, in words, before the measurement.

    Returns:
        The host of rank 0, and on rank 0 the links.

    Raises:
        HeterpsError: if a rank refuses, or does not come; the same on every rank. A fault after the ranks have met
            ends this process.
    """
    if member.world_size == 1:
        raise RunError(
            f"WORLD_SIZE is {member.world_size}; expected at least 2. Fix: start the command once on each of two or "
            f"more hosts (torchrun --nnodes 2 --nproc-per-node 1, or srun --nodes 2 --ntasks-per-node 1)"
        )
    torch.set_num_threads(1)
    refusal, pool, device_type = None, None, ""
    try:
        pool = load_cluster(request.cluster)
        device_type = _device_type(pool, request.device_type, member)
        if member.rank == 0:
            check_writable(request.output)
    except HeterpsError as error:
        refusal = error
    joined = meet(member, _checked_ranks, device_type, _MEETING, refusal=refusal, come_s=request.wait_s)
    assert pool is not None  # noqa: S101 - else every rank has refused
    member, supervision = joined.member, supervised_by_ranks(joined, _HANG_AFTER_S)
    with watched(member, joined.connect, ProgressRecorder(), supervision, has_steps=False):
        try:
            store = joined.connect()
            mine = _statement(pool, device_type, member)
            said = agree(store, member.rank, member.world_size, mine, patience_s=request.wait_s)
            on_met(
                ", ".join(f"{printable(str(each['host']))} ({printable(str(each['device_type']))})" for each in said)
            )
            join_group(member, store, said)
            found = _measured(member, store, said, pool)
            if found is not None:
                text = f"{_comment(found)}{pool_toml(found.pool)}"
                replace_file(request.output, lambda aside: Path(aside).write_text(text, "utf-8"))
            return printable(str(said[0]["host"])), found
        except KeyboardInterrupt as error:
            raise RunError("it was interrupted (Ctrl-C)") from error


def _device_type(pool: Cluster, asked: str | None, member: Membership) -> str:
    """Find the device type of this process.

    Raises:
        HeterpsError: if the pool has no such type, or several and nothing names one.
    """
    names = [device.name for device in pool.device_types]
    found = device_type_here(names, asked, member.local_rank) or (names[0] if len(names) == 1 else None)
    if found is None:
        raise InputError(f"--device-type is missing; expected one of {', '.join(names)}. Fix: --device-type NAME")
    return found


def _checked_ranks(asked: Sequence[Asked]) -> Sequence[int]:
    """Check that each host has one process; ranks stay.

    Raises:
        RunError: if one of several hosts has several processes.
    """
    host, count = Counter(each.host for each in asked).most_common(1)[0]
    if count > 1 and len(asked) > 2:
        raise RunError(
            f"the processes on host {printable(host)!r} are {count} of {len(asked)}; expected one on each host. "
            f"Fix: torchrun --nproc-per-node 1, or srun --ntasks-per-node 1"
        )
    return range(len(asked))


def _statement(pool: Cluster, device_type: str, member: Membership) -> dict[str, Any]:
    return {
        "heterps_compile": __version__,
        "options": {"--cluster": [device.name for device in pool.device_types]},
        "device_type": device_type,
        "host": platform.node(),
        "address": own_address(member.address),
    }


def _measured(member: Membership, store: "Store", said: Sequence[Mapping[str, Any]], pool: Cluster) -> HostLinks | None:
    """Measure all pairs and sums; return the links on rank 0."""
    types = [str(each["device_type"]) for each in said]
    pairs, ranks = _pairs(types), range(member.world_size)
    group, transport = make_group(ranks), Transport(member.world_size, member.rank, 2 * len(SIZES_BYTES))
    for low, high in (pair for its in pairs.values() for pair in its[:_MOST_PAIRS]):
        group.sum(torch.zeros(1)).wait()  # the others are quiet meanwhile
        if member.rank in (low, high):
            found = PairTimes(tuple(_times(Pair(transport, member.rank, low + high - member.rank))))
            if member.rank == low:
                store.set(f"times/{low}-{high}", to_send(found))
    sums = tuple(_sums(group, leads=member.rank == 0))
    if member.rank != 0:
        return None
    hosts = [printable(str(each["host"])) for each in said]
    links = tuple(_fitted(store, between, its[:_MOST_PAIRS], hosts) for between, its in pairs.items())
    slowest = Network(max(1 / each.link.bytes_per_s for each in links), max(each.link.latency_s for each in links))
    compared = tuple((each, slowest.all_reduce_s(each.size_bytes, member.world_size)) for each in sums)
    left = [link for link in pool.links if tuple(sorted(link.between)) not in pairs]
    linked = replace(pool, links=(*left, *(each.link for each in links)))
    return HostLinks(links, compared, linked, tuple(_notes(pool, links, compared, pairs, hosts)))


def _pairs(types: Sequence[str]) -> Mapping[tuple[str, str], list[tuple[int, int]]]:
    """Group the pairs of ranks by device types, ascending."""
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for low, high in combinations(range(len(types)), 2):
        first, second = sorted((types[low], types[high]))
        found.setdefault((first, second), []).append((low, high))
    return found


def _times(pair: Pair) -> Iterator[SizeTime]:
    """Measure messages of ascending size until one takes too long."""
    for size_bytes in SIZES_BYTES:
        times_s = pair.to_and_fro(size_bytes, _LONGEST_S)
        if not times_s:
            return
        yield SizeTime.of(size_bytes, times_s)


def _sums(group: RankGroup, *, leads: bool) -> Iterator[SizeTime]:
    """Measure all-reduces of ascending size until one takes too long."""
    for size_bytes in _SUMMED_BYTES:
        one_s = partial(_sum_s, group, torch.zeros(size_bytes // 4))
        times_s = timed_rounds(one_s, range(world().size), _LONGEST_S, leads=leads)
        if not times_s:
            return
        yield SizeTime.of(size_bytes, times_s)


def _sum_s(group: RankGroup, summed: Tensor) -> float:
    group.sum(torch.zeros(1)).wait()
    began_s = time.perf_counter()
    group.sum(summed).wait()
    return time.perf_counter() - began_s


def _fitted(
    store: "Store", between: tuple[str, str], pairs: Sequence[tuple[int, int]], hosts: Sequence[str]
) -> HostLink:
    """Fit the line of two device types to the times of their pairs of hosts.

    Raises:
        RunError: if too few sizes were measured.
    """
    times: list[SizeTime] = []
    for low, high in pairs:
        key = f"times/{low}-{high}"
        found = received(PairTimes, store.get(key), key).times
        if len(found) < _LEAST_SIZES:
            raise RunError(
                f"the time of {format_bytes(SIZES_BYTES[len(found)])} from {hosts[low]!r} to {hosts[high]!r} is over "
                f"{_LONGEST_S:g} s; expected at most {_LONGEST_S:g} s. Fix: a faster network, or a table [[link]] in "
                f"the pool by hand"
            )
        times += found
    names = "; ".join(f"{hosts[low]} and {hosts[high]}" for low, high in pairs)
    profile = fit_link([each.size_bytes for each in times], [each.fitted_s for each in times], names[:1000])
    link = Link(between, float(f"{profile.bytes_per_s:.4g}"), float(f"{profile.latency_s:.4g}"))
    return HostLink(link, profile, tuple(times))


def line_s(link: Link, size_bytes: int) -> float:
    """Evaluate the fitted line for a message, in seconds."""
    return link.latency_s + size_bytes / link.bytes_per_s


def _notes(
    pool: Cluster,
    links: Sequence[HostLink],
    sums: Sequence[tuple[SizeTime, float]],
    pairs: Mapping[tuple[str, str], Sequence[tuple[int, int]]],
    hosts: Sequence[str],
) -> Iterator[str]:
    if len(set(hosts)) == 1:
        yield f"both processes are on the host {hosts[0]!r}: this is the link between its processes, and no network"
    for each in links:
        words = " and ".join(each.link.between)
        for one in each.times:
            yield from _off(f"between {words}", "the line", one, line_s(each.link, one.size_bytes))
        count = len(pairs[each.link.between])
        if count > _MOST_PAIRS:
            yield f"{_MOST_PAIRS} of {count} pairs of hosts were measured for the link between {words}"
    for one, model_s in sums:
        yield from _off("summed over all hosts", "the cost model", one, model_s)
    for name, other in pairs:
        device = pool.device_type(name)
        if name == other and device.units_per_machine == 1 < device.max_units:
            yield (
                f"the pool has no units_per_machine of {name}: its {device.max_units} units count as hosts of their "
                f"own, which this link connects; where a host has several units, add units_per_machine, "
                f"inner_bandwidth and inner_latency"
            )


def _off(what: str, model: str, measured: SizeTime, model_s: float) -> Iterator[str]:
    off = measured.fitted_s / model_s - 1
    if abs(off) > MOST_OFF:
        yield (
            f"{format_bytes(measured.size_bytes)} {what} took {format_seconds(measured.fitted_s)}, "
            f"{format_percent(100 * abs(off))} {'more' if off > 0 else 'less'} than {model}; expected within "
            f"{format_percent(100 * MOST_OFF)}"
        )


def _comment(found: HostLinks) -> str:
    """Word the comment at the top of the pool."""
    lines = [f"network between hosts measured on {dt.datetime.now(dt.UTC).date()} by heterps-compile calibrate --link"]
    for each in found.links:
        profile, rounds = each.profile, sorted(one.rounds for one in each.times)
        lines.append(
            f"{' and '.join(each.link.between)}: {profile.bytes_per_s:.3g} +-{profile.bytes_per_s_error:.2g} B/s, "
            f"{profile.latency_s:.3g} +-{profile.latency_s_error:.2g} s; {counted(len(each.times), 'time')} of "
            f"{rounds[0]} to {rounds[-1]} rounds; hosts {profile.between}"
        )
    return "".join(f"# {line}\n" for line in lines)
