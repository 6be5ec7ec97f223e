"""What connects the replicas of a stage, and what a ring all-reduce over it takes.

Legend: S bytes of gradients, k replicas. Each replica sends and receives k - 1 parts of S / k while the parts are
summed, and k - 1 while the sums go round (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", JPDC 2009)::

    all-reduce(k) = 2 (k - 1) / k * S / bandwidth + 2 (k - 1) * latency
                    `- share(k) * s -----------'   `- hops ----------'       s = 2 S / bandwidth

Where u units stand in one machine and share its network card, replicas fill machines one after the other. Those of a
machine sum among themselves, each machine's sum goes round all cards, and comes back to its units::

    u' = min(k, u) replicas in a machine, m = k / u machines, rounded up

    all-reduce(k) = 2 (u' - 1) / u' * S / inner bandwidth + 2 (m - 1) / m * S / card's bandwidth
    share(k)      = (u' - 1) / u' * card's bandwidth / inner bandwidth + (m - 1) / m

That is the hierarchical all-reduce of GPU machines, and what a run does where it knows which ranks share a machine
(``runtime/sync/by_machine.py``). Replicas of several device types take the same two rings: the machines of a type hold
that type alone, and each ring waits for its slowest member (:func:`joined`).

Left out: what summing takes the processor; messages in parts, which hide some of the hops.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # which reading a plan does not need
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_WAYS = 2.0  # every gradient is sent about twice: as a part to be summed, and as a part of the sum


@dataclass(frozen=True, slots=True)
class Network:
    """What connects the replicas of a stage.

    Attributes:
        seconds_per_byte: 1 / bandwidth of one machine's card, each way.
        latency_s: Of one message between machines.
        units_per_machine: u.
        inner_seconds_per_byte, inner_latency_s: Inside a machine.
        joined_machines: Machines of replicas of several device types; 0 where replicas fill one after the other.
    """

    seconds_per_byte: float
    latency_s: float = 0.0
    units_per_machine: int = 1
    inner_seconds_per_byte: float = 0.0
    inner_latency_s: float = 0.0
    joined_machines: int = 0

    def inside(self, replicas: int) -> int:
        """Return u', the replicas that share a machine."""
        return min(replicas, self.units_per_machine)

    def machines(self, replicas: int) -> int:
        """Return m, the machines that so many replicas fill."""
        return self.joined_machines or -(-replicas // self.units_per_machine)

    def hops_s(self, replicas: int) -> float:
        """Return what the messages of an all-reduce take that follow one another, however small."""
        inside, machines = self.inside(replicas), self.machines(replicas)
        return _WAYS * ((inside - 1) * self.inner_latency_s + (machines - 1) * self.latency_s)

    def sums_s(self, size_bytes: float, replicas: int) -> float:
        """Return what the bytes of an all-reduce take, without the latency of its messages."""
        between_s = endless_s(size_bytes, self.seconds_per_byte) * ring_share(self.machines(replicas))
        return self.inside_s(size_bytes, replicas) + float(between_s)

    def inside_s(self, size_bytes: float, replicas: int) -> float:
        """Return the part of :meth:`sums_s` inside machines."""
        return float(endless_s(size_bytes, self.inner_seconds_per_byte) * ring_share(self.inside(replicas)))

    def all_reduce_s(self, size_bytes: float, replicas: int) -> float:
        """Return what replicas take to sum gradients of so many bytes; 0 for one, and where nothing is summed."""
        return self.sums_s(size_bytes, replicas) + self.hops_s(replicas) if size_bytes > 0 else 0.0


def joined(parts: "Sequence[tuple[Network, int]]", seconds_per_byte: float, latency_s: float) -> Network:
    """Join replicas of several device types: the slowest member counts in each ring.

    Args:
        parts: Network and replicas of every type, each on machines of its own.
        seconds_per_byte: Of the slowest link between two machines, of one type or two.
        latency_s: The longest of one message between them.

    Returns:
        What connects that many replicas, and no other number.
    """
    members = [(network, network.inside(count)) for network, count in parts]
    slowest, inside = max(
        members, key=lambda of: (of[0].inner_seconds_per_byte * ring_share(of[1]), of[0].inner_latency_s * (of[1] - 1))
    )
    machines = sum(network.machines(count) for network, count in parts)
    return Network(
        seconds_per_byte, latency_s, inside, slowest.inner_seconds_per_byte, slowest.inner_latency_s, machines
    )


def endless_s(size_bytes: float, seconds_per_byte: float) -> float:
    """Return s, what the bytes of an all-reduce take with ever more replicas."""
    return _WAYS * size_bytes * seconds_per_byte


def ring_share(replicas: "Floats | float") -> "Floats | float":
    """Return (k - 1) / k, the part of s that k replicas take where each is a machine of its own."""
    return 1 - 1 / replicas
