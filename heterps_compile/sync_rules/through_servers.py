"""The rule ``servers``: replicas push gradients to parameter servers and pull weights from them.

With S bytes of gradients every replica sends S and receives S in a step, through the card that it may share with the
others of its machine. ``staleness`` is by how many steps a pull may miss pushes; ``none`` is without a limit.

What the servers cost is in the plan: the cores that carry all replicas' gradients in the time of a batch
(``cost/server_cost.py``).
"""

from dataclasses import dataclass
from typing import ClassVar

from heterps_compile.errors import InputError

from .rule import ANY, BOUNDED, EXACT, NOTHING, Exactness, Exchange, SyncGroup, SyncRule


@dataclass(frozen=True, slots=True)
class Servers(SyncRule):
    """Push to and pull from servers.

    Attributes:
        staleness: Steps by which pulls may miss pushes; None without a limit.
    """

    staleness: int | None = 0

    name: ClassVar[str] = "servers"
    example: ClassVar[str] = "servers(staleness=4)"
    source: ClassVar[str] = "HeterPS, arXiv 2111.10635"

    def __post_init__(self) -> None:
        """Refuse a staleness below 0.

        Raises:
            InputError: where it is.
        """
        if self.staleness is not None and self.staleness < 0:
            raise InputError(
                f"the staleness of servers is {self.staleness}; it must be 0 steps or more, or none, such as "
                f"{self.example}"
            )

    @property
    def exactness(self) -> Exactness:
        """Return what the staleness is: none, within a limit, without one."""
        if self.staleness is None:
            return ANY
        return BOUNDED if self.staleness else EXACT

    def exchange(self, group: SyncGroup) -> Exchange:
        """Return a push and a pull of every replica; both ways of a card are used one after the other."""
        if not group.agrees:
            return NOTHING
        size_bytes, network = group.gradient_bytes, group.network
        card_bytes = float(group.inside * size_bytes)
        bytes_s = 2 * card_bytes * network.seconds_per_byte
        return Exchange(2 * group.replicas * size_bytes, card_bytes, bytes_s, 2 * network.latency_s)
