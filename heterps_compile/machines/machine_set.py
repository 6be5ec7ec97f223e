"""A set of machines: so many of one offer, or of two, each bought on demand or as transient machines.

Left out: what a set takes for a step (``step_times.py``), which sets are looked at (``sets.py``).
"""

from dataclasses import dataclass, replace

from heterps_compile.cluster.devices import Cluster
from heterps_compile.offers import Rental, pool_of
from heterps_compile.offers.as_device import GUESS_OVER, guessed_network_bytes_per_s, names_of

from .learned import NOTHING, Correction, Learned


@dataclass(frozen=True, slots=True)
class MachineSet:
    """Machines that are rented together.

    Attributes:
        parts: What is rented and how many of it, each offer once.
        learned: What measurements say of their kinds.
    """

    parts: tuple[tuple[Rental, int], ...]
    learned: Learned = NOTHING

    @property
    def count(self) -> int:
        """Return how many machines there are."""
        return sum(count for _, count in self.parts)

    @property
    def price_per_hour(self) -> float:
        """Return what all machines cost an hour, used or not."""
        return sum(rental.price_per_hour * count for rental, count in self.parts)

    @property
    def corrections(self) -> tuple[Correction, ...]:
        """Return what was learned of the kinds of these machines."""
        found = (self.learned.of(rental.offer.gpu) for rental, _ in self.parts)
        return tuple(dict.fromkeys(each for each in found if each is not None))

    @property
    def late(self) -> float:
        """Return by which part nine of ten runs on them are at most longer than predicted."""
        return self.learned.late(rental.offer.gpu for rental, _ in self.parts)

    @property
    def guesses_network(self) -> bool:
        """Tell whether the step depends on a network that no catalogue states."""
        return self.count > 1 and any(not rental.offer.network_bytes_per_s for rental, _ in self.parts)

    def with_slow_networks(self) -> "MachineSet":
        """Replace guessed networks by rates that nine of ten guesses exceed."""
        parts = []
        for rental, count in self.parts:
            slow = rental.offer.network_bytes_per_s or guessed_network_bytes_per_s(rental.offer) / GUESS_OVER
            parts.append((replace(rental, offer=replace(rental.offer, network_bytes_per_s=slow)), count))
        return replace(self, parts=tuple(parts))

    @property
    def has_spot(self) -> bool:
        """Return whether some machines may be taken away."""
        return any(rental.spot for rental, _ in self.parts)

    @property
    def names(self) -> tuple[str, ...]:
        """Return what their pool calls the units of every part."""
        return names_of([rental for rental, _ in self.parts])

    @property
    def title(self) -> str:
        """Return what messages call it: "4 x aws p3.8xlarge in us-east-1 (v100 x 4)"."""
        return " + ".join(f"{count} x {title_of(rental)}" for rental, count in self.parts)

    def pool(self, name: str = "machines") -> Cluster:
        """Return the machines as a pool, each unit as it was learned to be."""
        pool = pool_of(dict(self.parts), name)
        types = tuple(
            self.learned.corrected(device, rental.offer.gpu)
            for device, (rental, _) in zip(pool.device_types, self.parts, strict=True)
        )
        described = "; ".join((pool.description, *(each.words for each in self.corrections)))
        return replace(pool, device_types=types, description=described)


def title_of(rental: Rental) -> str:
    """Return what messages call a machine: provider, name, region, its GPUs and whether it is transient."""
    offer = rental.offer
    units = f"{offer.gpu} x {offer.gpus}" if offer.gpu else f"{offer.cores} cores"
    return f"{offer.title} ({units}{', spot' if rental.spot else ''})"
