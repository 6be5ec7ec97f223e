"""Servers of tables in the search: a stage of their own, behind the last layer, that no layer may share.

Tables that lie on servers make two numbers: W, the time that all rows which a batch pulls and pushes take through one
server, and N, the fewest servers that hold the tables. With n servers a batch takes W / n at least, and an hour costs n
times the price of one. So for a plan whose batches take tau, n is the least that holds the tables and keeps up::

    n(tau) = max(N, ceil(W / tau))

A search knows stages, and the servers are one: their rows are dealt evenly, so n replicas take W / n. What it does not
know is a least number of replicas. So one problem becomes two without servers, each of which has one layer and one
device type more, and every plan is in one of them at its own price::

    tau >= W / N     N servers, as a single unit at the price of all N that takes W / N: "as many as hold the tables"
    tau <= W / N     n servers with a floor of N / W batches per second: "as many as keep up"

The second is a problem of its own only where the time of a batch is to be chosen (``cost``, ``throughput``). At a floor
(``price``) n follows from it; ``latency`` and ``max-load`` ask for as few servers as hold the tables and keep the
floor. A value is the lower one of both, a proven bound the lower one of both bounds: exact, whatever the method.

Left out: which tables lie on servers (``served_tables.py``), the cores of ``--sync parameter-server``
(``server_cost.py``), whose number follows from replicas.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .all_reduce import Machines
from .problem import Floats, Ints, Placement, Problem

SERVERS = "parameter servers"
"""Name of the layer, and of the device type, that stand for them."""

MOST_SERVERS = 1_000_000

_ROUNDING = 1e-9  # relative, as that of a floor
_CHOOSES_TIME = ("cost", "throughput")


@dataclass(frozen=True, slots=True, eq=False)
class ServedRange:
    """The plans of a problem with servers whose batches are long, or short.

    Attributes:
        problem: Without servers, one layer and one device type more.
        fixed: How many servers its one unit is; 0 where every unit is one.
    """

    problem: Problem
    fixed: int

    def count(self, replicas: int) -> int:
        """Return how many servers so many replicas of the last stage are."""
        return self.fixed or replicas

    def replicas(self, count: int) -> float:
        """Return how many replicas of the last stage so many servers are."""
        return 1.0 if self.fixed else float(count)


def work_s(problem: Problem) -> float:
    """Return W, what the rows of a batch take through one server; 0 where no table is served."""
    return 0.0 if problem.served_s is None else float(problem.served_s.sum())


def servers_at(problem: Problem, batch_s: float) -> int:
    """Return n(tau), the fewest servers that hold the tables and keep up with a batch in so many seconds."""
    needed = work_s(problem) / batch_s if batch_s > 0 else math.inf
    return int(min(MOST_SERVERS, max(problem.least_servers, math.ceil(needed * (1 - _ROUNDING)))))


def served_ranges(problem: Problem, slowest_s: float) -> tuple[ServedRange, ...]:
    """Return the problems without servers that a problem is, that of long batches first.

    Args:
        problem: With tables on servers.
        slowest_s: The longest time of a batch that its floor allows; inf without one.
    """
    whole_s, least = work_s(problem), problem.least_servers
    if problem.objective not in _CHOOSES_TIME:
        return (_fixed(problem, max(least, servers_at(problem, slowest_s))),)
    long_s = whole_s / least
    ranges = [_fixed(problem, least)] if long_s <= slowest_s else []
    if whole_s > 0:
        ranges.append(_free(problem, problem.batch / long_s))
    return tuple(ranges)


def fixed_range(problem: Problem, count: int) -> ServedRange:
    """Return the problem without servers in which there are so many, whatever the time of a batch."""
    return _fixed(problem, count)


def extended(problem: Problem, placement: Placement) -> Placement:
    """Return the placement with the servers behind it."""
    return Placement((*placement.types, problem.type_count), placement.cuts)


def stripped(placement: Placement) -> Placement:
    """Return a placement of a range without the servers."""
    return Placement(placement.types[:-1], tuple(cut for cut in placement.cuts if cut < len(placement.types) - 1))


def extended_types(problem: Problem, types: Ints) -> Ints:
    """Return types [B, L + 1] of placements, each with the servers behind it."""
    return np.concatenate([types, np.full((len(types), 1), problem.type_count, types.dtype)], axis=1)


def _fixed(problem: Problem, count: int) -> ServedRange:
    alone = _Server(count * problem.server_price_per_hour, 1, 0.0, work_s(problem) / count)
    return ServedRange(_with_layer(problem, alone, problem.min_throughput), count)


def _free(problem: Problem, floor: float) -> ServedRange:
    each = _Server(problem.server_price_per_hour, MOST_SERVERS, work_s(problem), 0.0)
    return ServedRange(_with_layer(problem, each, max(problem.min_throughput, floor)), 0)


@dataclass(frozen=True, slots=True)
class _Server:
    price_per_hour: float
    max_units: int
    compute_s: float
    shared_s: float


def _with_layer(problem: Problem, server: _Server, floor: float) -> Problem:
    layers, types = problem.layer_count, problem.type_count
    shared_s = np.zeros((layers, types)) if problem.shared_s is None else problem.shared_s
    has_shared = problem.shared_s is not None or server.shared_s > 0
    machines, together = problem.machines, problem.rented_together
    uncuttable = np.append(problem.uncuttable, False)
    uncuttable[layers] = False
    added: dict[str, Any] = {name: np.append(getattr(problem, name), end) for name, end in _APPENDED.items()}
    return replace(
        problem,
        layer_names=(*problem.layer_names, SERVERS),
        type_names=(*problem.type_names, SERVERS),
        type_kinds=(*problem.type_kinds, "cpu"),
        layer_kinds=(*problem.layer_kinds, "other"),
        compute_s=_cornered(problem.compute_s, np.inf, server.compute_s),
        data_s=_cornered(problem.data_s, 0.0, 0.0),
        sync_s=_cornered(problem.sync_s, 0.0, 0.0),
        allowed=_cornered(problem.allowed, False, True),
        shared_s=_cornered(shared_s, 0.0, server.shared_s) if has_shared else None,
        layer_compute_parallel=_whole(problem.layer_compute_parallel),
        layer_data_parallel=_whole(problem.layer_data_parallel),
        seconds_per_byte=np.append(problem.seconds_per_byte, problem.seconds_per_byte.min()),
        price_per_hour=np.append(problem.price_per_hour, server.price_per_hour),
        max_units=np.append(problem.max_units, server.max_units),
        link_seconds_per_byte=_linked(problem.link_seconds_per_byte),
        link_latency_s=_linked(problem.link_latency_s),
        ring_seconds_per_byte=_linked(problem.ring_seconds_per_byte),
        machines=None if machines is None else Machines(np.append(machines.units, 1.0), np.append(machines.inner, 1.0)),
        rented_together=None if together is None else np.append(together, 1),
        rules=None if problem.rules is None else tuple(each.with_servers() for each in problem.rules),
        uncuttable=uncuttable,
        min_throughput=floor,
        min_stages=problem.min_stages + 1,
        max_stages=problem.max_stages + 1,
        served_s=None,
        rows_s=None,
        requests_s=None,
        server_price_per_hour=0.0,
        least_servers=0,
        **added,
    )


_APPENDED = {
    "compute_parallel": 1.0,
    "data_parallel": 1.0,
    "latency_s": 0.0,
    "memory_bytes": np.inf,
    "weight_bytes": 0.0,
    "activation_bytes": 0.0,
}
"""Arrays with an entry for every layer or type, and what the servers have there."""


def _cornered(table: Any, outside: Any, corner: Any) -> Any:
    """Return [L + 1, T + 1], with a value where servers or their type meet others, and one where they meet."""
    padded = np.pad(table, ((0, 1), (0, 1)), constant_values=outside)
    padded[-1, -1] = corner
    return padded


def _whole(fractions: Floats | None) -> Floats | None:
    """Return [L + 1, T + 1]; servers divide all that they do."""
    return None if fractions is None else _cornered(fractions, 1.0, 1.0)


def _linked(table: Floats | None) -> Floats | None:
    """Return [T + 1, T + 1]; nothing is sent to the servers' stage, whatever it would take."""
    return None if table is None else np.pad(table, (0, 1), mode="edge")
