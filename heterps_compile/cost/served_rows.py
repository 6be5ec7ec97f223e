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

Left out: arrays of stages (``row_sums.py``); ``--staleness``, with which pulls do not wait for pushes; rows that
micro-batches share, of which a step pushes one; what servers take to apply gradients, beyond what a request costs.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from .problem import Floats

_Number = TypeVar("_Number", float, "Floats")


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
