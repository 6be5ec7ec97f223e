"""What the rows of a stage's tables on servers add to a step: a pull before its first forward, a push behind its last.

Servers answer pulls of a step once they have applied all pushes of the step before, and a stage pushes its gradients
once its last backward is over. So the rows of its first micro-batch are there no earlier than a push and a pull after
that; those of the others are pulled one micro-batch ahead, while the one before is computed::

    worker    | pull 0 | F0 B0 | F1 B1 | F2 B2 | push |
    servers   | 0      | 1     | 2     |       | apply

With R one way of the rows that a batch looks up, the longer of what k replicas take over their networks and of what n
servers take, q what a request costs for each of the tables, and M micro-batches of which the busiest replica takes
``r = ceil(M / k)``::

    pull   = k R / M + q                  of one micro-batch, by one replica
    push   = R + q                        of the step: all replicas send what they have summed
    ahead  = (r - 1) / r * pull           beside the computation of a micro-batch, as data movement over the network

The parts are those of the steady state (``served_tables.py``), in which all of them overlap with computation; so no
step is shorter than a batch there.

Left out: ``--staleness``, with which pulls do not wait for pushes; rows that micro-batches share, of which a step
pushes one; what servers take to apply gradients, beyond what a request costs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from .problem import Floats, Problem

_Number = TypeVar("_Number", float, Floats)


def pull_s(rows_s: _Number, requests_s: _Number, replicas: _Number, count: int) -> _Number:
    """Return what the rows of one of so many micro-batches take, numbers or arrays of them; arguments are R, q, k."""
    return replicas * rows_s / count + requests_s


@dataclass(frozen=True, slots=True)
class ServedRows:
    """The rows that a stage looks up on servers, in one direction.

    Attributes:
        network_s: Of a batch, over the networks of its replicas.
        servers_s: Of a batch, through all servers.
        requests_s: Of one message, for all of its tables.
        overlapped_s: The part of the stage's data movement in the steady state that is pulls and pushes.
        is_pushed: Whether there are gradients of them: in training.
    """

    network_s: float
    servers_s: float
    requests_s: float
    overlapped_s: float = 0.0
    is_pushed: bool = True

    @property
    def rows_s(self) -> float:
        """Return R."""
        return max(self.network_s, self.servers_s)

    @property
    def push_s(self) -> float:
        """Return what is behind the last backward of a step; 0 in inference."""
        return self.rows_s + self.requests_s if self.is_pushed else 0.0

    def pull_s(self, replicas: int, count: int) -> float:
        """Return what is before the first forward of a step of so many micro-batches."""
        return pull_s(self.rows_s, self.requests_s, float(replicas), count)

    def ahead_s(self, replicas: int, count: int) -> float:
        """Return what moves beside the computation of a micro-batch, the first of a replica not counted."""
        rounds = -(-count // replicas)
        return (rounds - 1) / rounds * pull_s(self.network_s, self.requests_s, float(replicas), count)


@dataclass(frozen=True, eq=False)
class RowSums:
    """Rows of many stages; arrays of one shape.

    Attributes:
        directions: 2 in training, where gradients are pushed.
        rows_s, serial_rows_s: One way over the network of one unit, and what of it no replicas divide.
        requests_s, serial_requests_s: For all tables, one way; likewise in the steady state, where they are divided.
        one_server_s: One way through one server.
    """

    directions: int
    rows_s: Floats
    serial_rows_s: Floats
    requests_s: Floats
    serial_requests_s: Floats
    one_server_s: Floats

    @classmethod
    def of(cls, problem: Problem, sums: Callable[[Floats], Floats]) -> "RowSums | None":
        """Return the rows of stages; None where no table lies on a server.

        Args:
            problem: The problem.
            sums: Returns the sums of a table [L, T] over the layers of every stage on its type.
        """
        if problem.rows_s is None or problem.requests_s is None or problem.served_s is None:
            return None
        directions, shape = (2 if problem.keeps_activations else 1), problem.rows_s.shape
        requests_s = np.broadcast_to(problem.requests_s[:, None], shape)
        server_s = np.broadcast_to(problem.served_s[:, None] / directions, shape)
        serial = np.broadcast_to(1 - problem.beta, shape)
        tables = (problem.rows_s, problem.rows_s * serial, requests_s, requests_s * serial, server_s)
        return cls(directions, *(sums(table) for table in tables))

    def take(self, index: object) -> "RowSums":
        """Return those of some of the stages."""
        names = ("rows_s", "serial_rows_s", "requests_s", "serial_requests_s", "one_server_s")
        return RowSums(self.directions, *(getattr(self, name)[index] for name in names))

    def network_s(self, units: Floats) -> Floats:
        """Return what the rows of a batch take one way with so many replicas."""
        return _divided(self.rows_s, self.serial_rows_s, units)

    def without(self, data_s: Floats, units: Floats) -> Floats:
        """Return data movement of batches in the steady state without pulls and pushes."""
        moved_s = self.network_s(units) + _divided(self.requests_s, self.serial_requests_s, units)
        return np.asarray(np.maximum(0.0, data_s - self.directions * moved_s), np.float64)

    def shared_without(self, shared_s: Floats) -> Floats:
        """Return what replicas do not divide, without requests."""
        return np.asarray(np.maximum(0.0, shared_s - self.directions * self.requests_s), np.float64)

    def ahead_s(self, units: Floats, count: int) -> Floats:
        """Return what moves beside the computation of one of so many micro-batches."""
        rounds = np.ceil(count / units)
        return np.asarray((rounds - 1) / rounds * pull_s(self.network_s(units), self.requests_s, units, count))


def _divided(whole_s: Floats, serial_s: Floats, units: Floats) -> Floats:
    return np.asarray(serial_s + (whole_s - serial_s) / units, np.float64)
