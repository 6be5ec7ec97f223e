"""The rows of tables on servers of many stages, in arrays.

Left out: what they add to a step (``served_rows.py``).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .problem import Floats, Problem
from .served_rows import pull_s
from .stage_law import divided


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
        return np.asarray(divided(self.serial_rows_s, self.rows_s - self.serial_rows_s, units), np.float64)

    def without(self, data_s: Floats, units: Floats) -> Floats:
        """Return data movement of batches in the steady state without pulls and pushes."""
        moved_s = self.network_s(units) + divided(
            self.serial_requests_s, self.requests_s - self.serial_requests_s, units
        )
        return np.asarray(np.maximum(0.0, data_s - self.directions * moved_s), np.float64)

    def shared_without(self, shared_s: Floats) -> Floats:
        """Return what replicas do not divide, without requests."""
        return np.asarray(np.maximum(0.0, shared_s - self.directions * self.requests_s), np.float64)

    def ahead_s(self, units: Floats, count: int) -> Floats:
        """Return what moves beside the computation of one of so many micro-batches."""
        rounds = np.ceil(count / units)
        return np.asarray((rounds - 1) / rounds * pull_s(self.network_s(units), self.requests_s, units, count))
