"""How long replicas take to sum their gradients, for arrays of placements: the part of an endless ring that k take.

The formula stands in ``sync_rules/network.py``; here is its share(k) where units share machines. Rules other than
``all-reduce`` are counted when replicas are known (``sync_rules/``).

Left out: sums through parameter servers (``server_cost.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_compile.sync_rules.network import Network

from .stage_law import ring_part

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Machines:
    """How many units stand in one machine, and how much faster they talk inside; arrays of one shape.

    Attributes:
        units: u, 1 where every unit is a machine of its own.
        inner: Bandwidth of a machine's card over the bandwidth between two units inside, above 0.
    """

    units: Floats
    inner: Floats

    @staticmethod
    def of_networks(networks: "Sequence[Network]") -> "Machines | None":
        """Return in which machines the units of every type are; None where each is one."""
        if all(network.units_per_machine == 1 for network in networks):
            return None
        inner = [network.inner_seconds_per_byte / network.seconds_per_byte for network in networks]
        return Machines(np.array([float(network.units_per_machine) for network in networks]), np.array(inner))

    def take(self, index: Any) -> "Machines":
        """Return some of them."""
        return Machines(self.units[index], self.inner[index])

    @staticmethod
    def join(parts: "Sequence[Machines]") -> "Machines":
        """Put lists of them one after the other."""
        return Machines(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("units", "inner")))

    def broadcast(self, shape: tuple[int, ...]) -> "Machines":
        """Return them for every element of a shape."""
        return Machines(np.broadcast_to(self.units, shape), np.broadcast_to(self.inner, shape))

    def share(self, replicas: Floats) -> Floats:
        """Return the part of s that k replicas take; it never falls with k."""
        return np.asarray(ring_part(replicas, self.units, self.inner))
