"""The machines that are chosen in other regions: where else the same can be rented, and what a run costs there.

A step does not depend on where its machines stand, so that the plan is the same and price is arithmetic.

Left out: machines of other names with the same hardware, sets over several regions.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

from heterps_compile.offers import Rental

from .goal import Goal
from .machine_set import MachineSet
from .option import Option, Outlook, rank
from .sets import Kind


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
