"""Which sets of machines there are: offers that no other dominates, in every number, alone and in pairs.

An offer is dominated by another that has as many units of the same kind, no less memory, no slower networks, and costs
no more; a machine that stays dominates one that may be taken away, and not the reverse. Nothing is lost by leaving such
an offer out of sets of one kind, as no step depends on where machines stand. Pairs stand in one region of one provider,
where the network between them is known, and are of units that differ; there, dominance is among the region's own.

Left out: sets of three kinds, pairs of different regions, pairs whose units are of one kind.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from heterps_compile.cluster.devices import DeviceType
from heterps_compile.cluster.pool_file import MAX_UNITS
from heterps_compile.cost.problem import Floats
from heterps_compile.errors import UnknownNameError
from heterps_compile.offers import Offer, Rental, device_of
from heterps_compile.progress import check

from .goal import Goal
from .learned import NOTHING, Learned
from .machine_set import MachineSet
from .option import Option, Outlook, rank, steady_outlook
from .step_times import StepTimes

_MOST_LISTED = 2000  # sets of two kinds


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """An offer, how it is bought, and the units it has.

    Attributes:
        rental: What is rented.
        device: Its units as a device type, of one machine, as they were learned to be.
        late: By which part nine of ten runs on it are at most longer than predicted.
    """

    rental: Rental
    device: DeviceType
    late: float

    @property
    def units(self) -> int:
        """Return how many units a machine has."""
        return self.rental.offer.units

    @property
    def most(self) -> int:
        """Return how many machines a pool may have."""
        return MAX_UNITS // self.units

    @property
    def hardware(self) -> tuple[object, ...]:
        """Return what steps on it depend on, and nothing else."""
        device = self.device
        return (*self.unit, self.units, device.network_bytes_per_s, device.inner_bytes_per_s)

    @property
    def unit(self) -> tuple[object, ...]:
        """Return what tells its units from others: the data sheet and the memory."""
        return self.rental.offer.gpu, self.device.memory_bytes

    def dominates(self, other: "Kind") -> bool:
        """Return whether nothing speaks for the other; both have as many units of one kind."""
        mine, others = self.device, other.device
        return (
            (not self.rental.spot or other.rental.spot)  # what may be taken away dominates nothing that stays
            and self.rental.price_per_hour <= other.rental.price_per_hour
            and mine.memory_bytes >= others.memory_bytes
            and (self.rental.offer.network_bytes_per_s > 0 or not other.rental.offer.network_bytes_per_s)  # no guess
            and mine.network_bytes_per_s >= others.network_bytes_per_s
            and mine.inner_bytes_per_s >= others.inner_bytes_per_s
        )


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A set of machines with a batch, and what is known of it before any search.

    Attributes:
        machines: The set.
        batch: Samples in a step.
        least_s: A lower bound on its step.
        likely_s: What its step is likely to be: of one kind the geometric mean of the bound and of what replicas of the
            whole model take, of two kinds the bound.
        kinds: Of its machines.
    """

    machines: MachineSet
    batch: int
    least_s: float
    likely_s: float
    kinds: tuple[Kind, ...]


def kinds_of(offers: Sequence[Offer], *, spot: bool, learned: Learned = NOTHING) -> tuple[list[Kind], int]:
    """Return offers in every way they are bought, and how many have GPUs without a data sheet, which are left out."""
    kinds, unknown = [], 0
    for offer in offers:
        late = learned.late((offer.gpu,))
        try:
            kinds.append(Kind(Rental(offer), learned.corrected(device_of(offer), offer.gpu), late))
        except UnknownNameError:
            unknown += 1
            continue
        if spot and offer.spot_per_hour is not None:
            transient = learned.corrected(device_of(offer, spot=True), offer.gpu)
            kinds.append(Kind(Rental(offer, spot=True), transient, late))
    return kinds, unknown


def undominated(kinds: Sequence[Kind]) -> list[Kind]:
    """Return the kinds that no other dominates, the cheapest first; of equal ones the first."""
    groups: defaultdict[object, list[Kind]] = defaultdict(list)
    for kind in sorted(kinds, key=_by_price):
        group = groups[kind.rental.offer.gpu, kind.units]
        if not any(kept.dominates(kind) for kept in group):
            group.append(kind)
    return sorted((kind for group in groups.values() for kind in group), key=_by_price)


def _by_price(kind: Kind) -> tuple[object, ...]:
    device, rental = kind.device, kind.rental
    better = (-device.network_bytes_per_s, -device.inner_bytes_per_s, -device.memory_bytes)
    return rental.price_per_hour, *better, rental.name, rental.spot


def sets_of_one_kind(kinds: Sequence[Kind], times: StepTimes, goal: Goal) -> list[Candidate]:
    """Return every number of machines of every kind with every batch, those left out on which the model cannot run."""
    found = []
    for batch in goal.batches:
        for kind in kinds:
            counts = np.arange(1, min(goal.most_machines, kind.most) + 1)
            units = (counts * kind.units).astype(np.float64)
            least_s = times.least_s(kind.device, units, batch)
            if not np.isfinite(least_s[0]):
                continue
            # pipelines and overlap avoid some of the all-reduce that replicas of the whole model wait for
            likely_s = np.sqrt(least_s * times.likely_s(kind.device, units, batch))
            found += [
                Candidate(
                    MachineSet(((kind.rental, int(count)),), times.learned), batch, float(least), float(likely), (kind,)
                )
                for count, least, likely in zip(counts, least_s, likely_s, strict=True)
            ]
    return found


@dataclass(frozen=True, slots=True, eq=False)
class PairSets:
    """Sets of two kinds of units with a batch: O pairs of offers whose steps are alike, each in C numbers.

    Attributes:
        offers: Of every pair.
        batch: Samples in a step.
        machines: [C, 2], of each kind.
        prices: [O, C], an hour.
        least_s: [C], bounds on steps.
    """

    offers: tuple[tuple[Kind, Kind], ...]
    batch: int
    machines: Floats
    prices: Floats
    least_s: Floats

    @property
    def late(self) -> float:
        """Return by which part nine of ten runs are at most longer than predicted, as of all of these kinds."""
        return max(max(kind.late, other.late) for kind, other in self.offers)

    def values(self, goal: Goal) -> Floats:
        """Return [O, C], what sets cannot be better than; inf where their bounds break a limit."""
        return _values(self.prices, self.least_s, self.batch, goal, self.late)

    def candidate(self, pair: int, place: int, learned: Learned) -> Candidate:
        """Return one of the sets."""
        counts = self.machines[place].astype(int).tolist()
        parts = tuple((kind.rental, count) for kind, count in zip(self.offers[pair], counts, strict=True))
        least_s = float(self.least_s[place])
        return Candidate(MachineSet(parts, learned), self.batch, least_s, least_s, self.offers[pair])


def sets_of_two_kinds(kinds: Sequence[Kind], times: StepTimes, goal: Goal) -> list[PairSets]:
    """Return the sets of two kinds of one region whose units differ, with the bounds that cost nothing."""
    regions: defaultdict[object, list[Kind]] = defaultdict(list)
    for kind in kinds:
        regions[kind.rental.offer.provider, kind.rental.offer.region].append(kind)
    pairs = [(n, m) for n in range(1, goal.most_machines) for m in range(1, goal.most_machines - n + 1)]
    if not pairs:
        return []
    machines, found = np.array(pairs, np.float64), list[PairSets]()
    groups: defaultdict[object, list[tuple[Kind, Kind]]] = defaultdict(list)
    for region in regions.values():
        check()
        for kind, other in combinations(undominated(region), 2):
            if kind.unit[0] != other.unit[0]:
                both = sorted((kind, other), key=lambda each: repr(each.hardware))
                groups[both[0].hardware, both[1].hardware].append((both[0], both[1]))
    for offers in groups.values():
        check()
        first, second = offers[0]
        allowed = machines[(machines <= (first.most, second.most)).all(axis=1)]
        prices = np.array([[kind.rental.price_per_hour for kind in pair] for pair in offers]) @ allowed.T
        for batch in goal.batches:
            units = allowed * (first.units, second.units)
            least_s = times.least_of_two_s(first.device, units[:, 0], second.device, units[:, 1], batch)
            found.append(PairSets(tuple(offers), batch, allowed, prices, least_s))
    return found


def lowest_pairs(
    pairs: Sequence[PairSets], goal: Goal, best: float, learned: Learned
) -> tuple[list[Candidate], int, float]:
    """Select the sets of two kinds with the lowest bounds, of those that may be better than a value.

    Returns:
        The sets, the number of others, and a value that none of these is below.
    """
    values = [each.values(goal) for each in pairs]
    places = [(group, *place) for group, each in enumerate(values) for place in np.argwhere(each < best).tolist()]
    of_places = np.array([values[group][pair, place] for group, pair, place in places])
    order = np.argsort(of_places, kind="stable")
    chosen = [places[number] for number in order[:_MOST_LISTED].tolist()]
    more = order[_MOST_LISTED:]
    found = [pairs[group].candidate(pair, place, learned) for group, pair, place in chosen]
    return found, len(more), float(of_places[more[0]]) if len(more) else float("inf")


def _values(price: Floats, least_s: Floats, batch: int, goal: Goal, late: float) -> Floats:
    """Return [O, C], what sets cannot be better than by their bounds; inf where these break a limit."""
    unit = steady_outlook(1.0, 1.0, batch, goal, late)  # all of these are in proportion to price and step
    money = unit.median_money * price * least_s
    value = money if goal.minimises_money else unit.median_s * np.broadcast_to(least_s, price.shape)
    over = unit.most_s * least_s > (np.inf if goal.deadline_s is None else goal.deadline_s)
    dear = unit.most_money * price * least_s > (np.inf if goal.budget is None else goal.budget)
    return np.asarray(np.where(over | dear, np.inf, value), np.float64)


def elsewhere(
    best: Option, kinds: Sequence[Kind], goal: Goal, outlook: Callable[[MachineSet], Outlook]
) -> tuple[Option, ...]:
    """Return the machines of a set in other regions that have all of them, where they keep all limits; the best first.

    Args:
        best: The set.
        kinds: All offers.
        goal: What is asked.
        outlook: Returns time and money on the same number of the same machines.
    """
    here = {rental.offer.region for rental, _ in best.machines.parts}
    wanted = [_same(next(kind for kind in kinds if kind.rental == rental)) for rental, _ in best.machines.parts]
    regions: defaultdict[str, dict[object, Rental]] = defaultdict(dict)
    for kind in sorted(kinds, key=lambda each: each.rental.price_per_hour):
        if kind.rental.offer.region not in here and _same(kind) in wanted:
            regions[kind.rental.offer.region].setdefault(_same(kind), kind.rental)
    found = []
    for region in regions.values():
        if len(region) == len(wanted):
            parts = tuple((region[each], count) for each, (_, count) in zip(wanted, best.machines.parts, strict=True))
            machines = MachineSet(parts, best.machines.learned)
            there = outlook(machines)
            found.append(Option(machines, best.batch, best.step, there, there.misses(goal)))
    return tuple(sorted((each for each in found if not each.fails), key=lambda each: rank(each, goal)))


def _same(kind: Kind) -> tuple[object, ...]:
    """Return what is alike of one machine in all regions."""
    offer = kind.rental.offer
    return offer.provider, offer.instance, kind.rental.spot, kind.hardware
