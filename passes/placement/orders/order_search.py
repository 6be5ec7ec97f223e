"""Search for the stages of a model in every order of its layers, and bound the plans of all orders.

Where the down-sets of the layers are few, every order is searched and what comes out is proven: a cheapest path over
the segments between down-sets (``lattice.py``), with the branch and bound of ``proof/`` over the time of a batch. That
holds for all objectives, limits on units, budgets and numbers of stages. Links of pairs of types and whole machines in
the price are left out of it, so that its bound holds with them too; the best plan without them gives the order in which
plans with them are searched.

Where they are too many, families of down-sets are searched that way, round after round: those of the best plan known,
those that go on with layers of one device type as long as any is ready, and those of drawn orders that pass through
some down-sets of the best plan. Each round searches all orders at once that its family can express. The bound is then
that of ``forest_bound.py``.

Left out: the search on one order (``proof/``, ``local/``, ``learned/``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from heterps_compile.cost.evaluate import evaluate_one, ranges_of
from heterps_compile.cost.layer_orders import LayerOrders
from heterps_compile.cost.problem import Placement, Problem
from heterps_compile.cost.table_servers import extended, stripped
from heterps_compile.cost.whole_machines import by_unit
from heterps_compile.passes.deadline import Deadline, TimeUpError
from heterps_compile.passes.partial_orders import enumerate_down_sets, sample_down_sets
from heterps_compile.passes.placement.lattice import Lattice, OrderedPlacement
from heterps_compile.passes.placement.proof.time_search import search_type
from heterps_compile.passes.placement.proof.trivial_bounds import GAP, trivial_bound
from heterps_compile.passes.placement.served_ranges import orders_with_servers
from heterps_compile.progress import tell

from .atoms import Atoms, atoms_of
from .forest_bound import forest_bound


@dataclass(frozen=True, slots=True)
class OrderEffort:
    """How much effort goes into orders; whatever it is, a bound is a bound.

    Attributes:
        most_down_sets, most_segments: Up to which every order is searched.
        many_segments: From which on it is not where the bound that is cheap leaves no more than ``gap`` open.
        sampled_segments: About how many segments there are in a family, where there are more.
        rounds, idle_rounds: Families at most, and at most so many one after the other without a better plan.
        gap: Relative; how far from the best plan of its family a round may stop.
    """

    most_down_sets: int = 20_000
    most_segments: int = 2_500_000
    many_segments: int = 1_000_000
    sampled_segments: int = 150_000
    rounds: int = 8
    idle_rounds: int = 3
    gap: float = 1e-4


ORDER_EFFORT = OrderEffort()


@dataclass(frozen=True, slots=True)
class AllOrders:
    """What is known of the plans of all orders.

    Attributes:
        placement: The best one that the search came upon, in an order of its own; None where there was none.
        value: Its value; inf without one. As if pairs of types had no links, and every unit was rented by itself.
        bound: A lower bound on the value of every plan; inf where it is proven that none is feasible.
        evaluations: Placements evaluated.
    """

    placement: Placement | None
    value: float
    bound: float
    evaluations: int

    @property
    def order(self) -> tuple[int, ...]:
        """Return the order of the placement; () for the problem's own."""
        return self.placement.order if isinstance(self.placement, OrderedPlacement) else ()


def search_orders(
    problem: Problem,
    orders: LayerOrders,
    starts: Sequence[Placement],
    deadline: Deadline,
    effort: OrderEffort = ORDER_EFFORT,
    *,
    seed: int = 0,
) -> AllOrders:
    """Search the orders of a problem's layers from some placements, to the proof or to the deadline.

    Args:
        problem: What to place, in one of its orders.
        orders: Its orders.
        starts: Placements in the order of the problem.
        deadline: When to stop.
        effort: How hard to try.
        seed: Of the orders that are drawn.
    """
    problem = by_unit(problem)
    if problem.link_seconds_per_byte is not None:
        problem = replace(problem, link_seconds_per_byte=None, link_latency_s=None)
    if problem.served_s is not None:
        return _with_servers(problem, orders, starts, deadline, effort, seed=seed)
    bound = trivial_bound(problem)
    try:
        deadline.check()
        atoms = atoms_of(problem, orders)
        if problem.min_stages > len(atoms.members):
            return AllOrders(None, np.inf, np.inf, 0)
        family = enumerate_down_sets(atoms, effort.most_down_sets, deadline)
        lattice = None if family is None else Lattice(problem, orders, atoms.members, family, deadline)
        if lattice is not None and lattice.segment_count <= effort.many_segments:
            return search_lattice(lattice, starts, deadline)
        bound = forest_bound(problem)
        known = min((evaluate_one(problem, start) for start in starts), default=np.inf)
        if known <= bound * (1 + effort.gap):
            return AllOrders(None, np.inf, bound, len(starts))
        if lattice is not None and lattice.segment_count <= effort.most_segments:
            found = search_lattice(lattice, starts, deadline)
            return replace(found, bound=max(found.bound, min(bound, found.value)))
        found = _sampled(Sampling(problem, orders, atoms, effort, np.random.default_rng(seed)), starts, deadline)
    except TimeUpError:
        return AllOrders(None, np.inf, bound, 0)
    return replace(found, bound=min(bound, found.value))


@dataclass(frozen=True, slots=True)
class Sampling:
    """Families of down-sets, where there are too many to take all.

    Attributes:
        problem: Whose they are.
        orders: Of its layers.
        atoms: Its atoms.
        effort: How large families are.
        chance: By which orders are drawn.
    """

    problem: Problem
    orders: LayerOrders
    atoms: Atoms
    effort: OrderEffort
    chance: np.random.Generator

    def lattice(self, best: Placement | None, deadline: Deadline) -> Lattice:
        """Return the next family around the best plan known.

        Raises:
            TimeUpError: where the deadline comes first.
        """
        atoms, count = self.atoms, len(self.atoms.members)
        most = max(4, int((2 * self.effort.sampled_segments / self.problem.type_count) ** 0.5))
        own = list(accumulate((1 << atom for atom in range(count)), initial=0))
        family = {0, own[-1]}
        if best is not None:
            through = self._prefixes(best)
            family.update(through)
            for first in range(self.problem.type_count):
                family.update(thinned(self._by_type(best, first), most // (4 * self.problem.type_count)))
        else:
            through = own
        family.update(thinned(own, most // 4))
        while len(family) < most:
            before = len(family)
            drawn = sorted(sample_down_sets(atoms, 3, self.chance, through), key=lambda mask: (mask.bit_count(), mask))
            room = most - before
            picked = self.chance.permutation(len(drawn))[:room] if len(drawn) > room else range(len(drawn))
            family.update(drawn[i] for i in picked)
            if len(family) == before:
                break
        return Lattice(self.problem, self.orders, atoms.members, family, deadline)

    def _prefixes(self, placement: Placement) -> list[int]:
        """Return the down-sets along the stages of a placement."""
        home = {layer: atom for atom, layers in enumerate(self.atoms.members) for layer in layers}
        order = getattr(placement, "order", ()) or range(self.problem.layer_count)
        masks, mask = [0], 0
        ends = (*placement.starts()[1:], len(placement.types))
        for begin, end in pairwise((0, *ends)):
            for layer in order[begin:end]:
                mask |= 1 << home[layer]
            masks.append(mask)
        return [mask for mask in masks if self._is_down_set(mask)]

    def _is_down_set(self, mask: int) -> bool:
        """Whether all that comes before an atom is there with it: interchangeable layers may stand otherwise."""
        held = (atom for atom in range(len(self.atoms.members)) if mask >> atom & 1)
        return all(mask >> other & 1 for atom in held for other in self.atoms.before[atom])

    def _by_type(self, placement: Placement, first: int) -> list[int]:
        """Return the down-sets of the order that goes on with one device type while an atom placed on it is ready."""
        order = getattr(placement, "order", ()) or range(self.problem.layer_count)
        type_of = dict(zip(order, placement.types, strict=True))
        types = [type_of[layers[0]] for layers in self.atoms.members]
        waiting = [len(before) for before in self.atoms.before]
        ready = [atom for atom, count in enumerate(waiting) if count == 0]
        masks, mask, now = [0], 0, first
        while ready:
            atom = next((atom for atom in ready if types[atom] == now), ready[0])
            now = types[atom]
            ready.remove(atom)
            mask |= 1 << atom
            masks.append(mask)
            for later in self.atoms.after[atom]:
                waiting[later] -= 1
                if waiting[later] == 0:
                    ready.append(later)
        return masks


def thinned(masks: Sequence[int], most: int) -> list[int]:
    """Return so many of some down-sets, evenly spaced, with both ends."""
    places = np.unique(np.linspace(0, len(masks) - 1, max(2, min(most, len(masks)))).astype(int))
    return [masks[i] for i in places.tolist()]


def _with_servers(
    problem: Problem,
    orders: LayerOrders,
    starts: Sequence[Placement],
    deadline: Deadline,
    effort: OrderEffort,
    *,
    seed: int,
) -> AllOrders:
    """Search the orders of each of the problems without servers that one with tables on servers is."""
    ranges, orders = ranges_of(problem), orders_with_servers(orders)
    whole = AllOrders(None, np.inf, np.inf, 0)
    for left, each in zip(range(len(ranges), 0, -1), ranges, strict=True):
        known = [extended(problem, start) for start in starts]
        own = deadline.within(max(0.0, deadline.left_s()) / left)
        found = search_orders(each.problem, orders, known, own, effort, seed=seed)
        best = found if found.value < whole.value else whole
        bound, evaluations = min(whole.bound, found.bound), whole.evaluations + found.evaluations
        whole = replace(best, bound=bound, evaluations=evaluations)
    if whole.placement is None:
        return whole
    placement = stripped(whole.placement)
    return replace(whole, placement=OrderedPlacement(placement.types, placement.cuts, whole.order[:-1]))


def _sampled(sampling: Sampling, starts: Sequence[Placement], deadline: Deadline) -> AllOrders:
    """Search families of down-sets until some bring nothing better; the bound is not of all orders."""
    effort = sampling.effort
    best, evaluations, idle = AllOrders(None, np.inf, 0.0, 0), 0, 0
    known: list[Placement] = list(starts)
    for number in range(effort.rounds):
        if idle >= effort.idle_rounds or deadline.is_over:
            break
        tell(fraction=number / effort.rounds)
        try:
            lattice = sampling.lattice(best.placement or (known[0] if known else None), deadline)
        except TimeUpError:
            break
        found = search_lattice(lattice, known, deadline, effort.gap)
        evaluations += found.evaluations
        idle += 1
        if found.placement is not None and found.value < best.value * (1 - effort.gap):
            idle = 0 if number else idle
            best, known = found, [found.placement]
    return replace(best, evaluations=evaluations)


def search_lattice(lattice: Lattice, starts: Sequence[Placement], deadline: Deadline, gap: float = GAP) -> AllOrders:
    """Search the plans whose stages lie between down-sets of a lattice; the bound is of those."""
    gap = gap if lattice.problem.objective == "cost" else GAP
    search = search_type(lattice.problem)(lattice, deadline, starts, gap)
    search.run()
    return AllOrders(search.placement, search.best, search.bound, search.evaluations)
