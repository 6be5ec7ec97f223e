"""Choose a set of machines: the cheapest that meets a deadline, or the fastest within a budget.

Every set has a bound on its step that costs nothing, and with it bounds on time and money. Plans are searched for

1. on the sets of one kind that no other of them beats by its likely time and money, which make the front;
2. on those that are likely to be the best, until none is likely to be better than what was found;
3. on the sets of one kind whose bounds may still beat that, and then on those of two as well, the best bound first.

Before the third, sets of one kind that may still win by the bounds that cost nothing are bounded by what their stages
need (``step_bounds.py``). It ends where no bound that is left is below the best value found, and
sooner where the effort is spent. The least bound of all sets, those that were searched too, as a quick search proves
nothing, says how much better a set may be. Where a set may be lost, so may be that of its bound. Nothing depends on a
clock, so that a seed gives the same answer again.

Left out: what is told of it (``machines_words.py``), the plan that is written (``compile``).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from heterps_compile.cluster.pool_file import MAX_UNITS
from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.offers import Catalogue, Offer, assumed
from heterps_compile.offers.as_device import known_gpus
from heterps_compile.progress import check, tell
from heterps_compile.units import counted

from .goal import Goal
from .machine_set import MachineSet
from .nothing_found import nothing_found
from .option import Option, Outlook, front_of, let_in, outlook_of, rank, steady_outlook
from .sets import Candidate, Kind, elsewhere, kinds_of, lowest_pairs, sets_of_one_kind, sets_of_two_kinds, undominated
from .step_bounds import bound_steps
from .step_times import StepTimes

RUNNERS_UP = 3
_GAP = 1e-9  # relative, of values that are equal but for rounding
_OVER = 1 + 1e-6  # a step that is longer than a limit allows by so much breaks it, whatever is rounded


_USUAL_RUNS, _FEWEST = 500, 6  # a chain of 31 layers has so many


@dataclass(frozen=True, slots=True)
class SearchEffort:
    """How many sets plans are searched for.

    Attributes:
        front: Of those that are likely to be on the front.
        likely: Of those that are likely to be better than the best found.
        bound: Of those whose bounds may be, of a model of a usual number of layers.
        ruled_out: Of which it is tried first to prove that none of their plans wins, likewise.
    """

    front: int = 24
    likely: int = 10
    bound: int = 30
    ruled_out: int = 30

    def of_runs(self, runs: int) -> "SearchEffort":
        """Return it for a model with so many runs of layers: with more of them fewer sets are searched for."""
        part = min(1.0, _USUAL_RUNS / max(1, runs))
        bound, ruled_out = (min(each, max(_FEWEST, round(each * part))) for each in (self.bound, self.ruled_out))
        front, likely = (each if part == 1.0 else -(-each // 2) for each in (self.front, self.likely))
        return replace(self, front=front, likely=likely, bound=bound, ruled_out=ruled_out)


EFFORT = SearchEffort()


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The set that is chosen, and what it was chosen from.

    Attributes:
        goal: What was asked.
        best: The set that wins.
        runners_up: The next best that keep all limits.
        failing: A set that does not keep all limits (``option.let_in``); None where none is known.
        elsewhere: The same machines as the best's in other regions, where they keep all limits, the best first.
        front: Sets that no other one found beats in both time and money, the fastest first.
        bound: A value that no set of one or two kinds of these offers is below with plans in the orders of the layers
            that are searched, whose stages have one kind each or which are one stage of both; the best's own where that
            is proven.
        bound_of_one_kind: The same of sets of one kind.
        looked_at: Sets whose bounds are known.
        searched: Sets whose plans were searched for.
        left: Sets whose bounds are better than the best, and whose plans were not searched for.
        kinds: Offers that no other dominates, each way of buying by itself.
        notes: What the user should know, in sentences.
    """

    goal: Goal
    best: Option
    runners_up: tuple[Option, ...]
    failing: Option | None
    elsewhere: tuple[Option, ...]
    front: tuple[Option, ...]
    bound: float
    bound_of_one_kind: float
    looked_at: int
    searched: int
    left: int
    kinds: int
    notes: tuple[str, ...]

    @property
    def gap(self) -> float:
        """Return by which part a set may still be better than the best."""
        return self._gap(self.bound)

    @property
    def gap_of_one_kind(self) -> float:
        """Return by which part a set of one kind may still be."""
        return self._gap(self.bound_of_one_kind)

    def _gap(self, bound: float) -> float:
        value = self.best.outlook.value(self.goal)
        gap = 1 - bound / value if value > 0 else 0.0
        return gap if gap > _GAP else 0.0


class _Found:
    """The options that were searched for."""

    def __init__(self, times: StepTimes, goal: Goal) -> None:
        self._times, self._goal = times, goal
        self.options: dict[tuple[MachineSet, int], Option | str] = {}
        self.best = float("inf")
        self._least_s: dict[tuple[MachineSet, int], float] = {}
        self._ruled_out: set[tuple[MachineSet, int]] = set()
        self._outlook_of = cache(outlook_of)

    def search(self, candidate: Candidate) -> None:
        """Search for the plan of a set, unless that was done."""
        key = (candidate.machines, candidate.batch)
        if key in self.options:
            return
        step = self._times.searched(*key)
        if isinstance(step, str):
            self.options[key] = step
            return
        self._least_s[key] = step.least_s
        used, step = step.on_what_it_uses(candidate.machines)
        if used.guesses_network:
            slow = self._times.searched(used.with_slow_networks(), candidate.batch)
            step = step if isinstance(slow, str) else replace(step, slower=max(1.0, slow.step_s / step.step_s))
        try:
            outlook = self.outlook(used, candidate.batch, step.step_s, step.slower)
        except InfeasibleError as error:
            self.options[key] = str(error)
            return
        option = Option(used, candidate.batch, step, outlook, outlook.misses(self._goal))
        self.options[key] = option
        if not option.fails:
            self.best = min(self.best, outlook.value(self._goal))

    def outlook(self, machines: MachineSet, batch: int, step_s: float, slower: float = 1.0) -> Outlook:
        """Return time and money of a set; raise InfeasibleError where its transient machines let no run end."""
        checkpoint_s = self._times.checkpoint_s(machines, batch) if machines.has_spot else 0.0
        return self._outlook_of(machines, step_s, batch, self._goal, checkpoint_s, slower=slower)

    def rules_out(self, candidate: Candidate) -> bool:
        """Return whether it is proven that a set has no better plan, as ``is_slower`` has it."""
        goal, batch = self._goal, candidate.batch
        if self.best == float("inf"):
            return False
        unit = _steady(candidate, 1.0, goal)  # all of these are in proportion to the step
        limits = [self.best / unit.value(goal)]
        limits += [] if goal.deadline_s is None else [goal.deadline_s / unit.most_s * _OVER]
        limits += [] if goal.budget is None else [goal.budget / unit.most_money * _OVER]
        if not self._times.is_slower(candidate.machines, batch, min(limits)):
            return False
        key = (candidate.machines, batch)
        self._ruled_out.add(key)
        self._least_s[key] = max(min(limits), self._least_s.get(key, 0.0))
        return True

    def bound(self, candidate: Candidate) -> float:
        """Return a value that a set cannot be below, by all that is known of it; inf where it breaks a limit."""
        machines, goal = candidate.machines, self._goal
        least_s = max(candidate.least_s, self._least_s.get((machines, candidate.batch), 0.0))
        try:
            outlook = self.outlook(machines, candidate.batch, least_s)
        except InfeasibleError:
            return float("inf")
        return float("inf") if outlook.misses(goal) else outlook.value(goal)

    def least_bound(self, candidates: Iterable[Candidate]) -> float:
        """Return a value that none of some sets is below."""
        least = float("inf")
        for value, candidate in sorted(
            ((_bound(each, self._goal), each) for each in candidates), key=lambda one: one[0]
        ):
            if value >= least:
                break
            least = min(least, self.bound(candidate))
        return least

    def may_win(self, candidate: Candidate) -> bool:
        """Return whether the bound of a set keeps all limits and is better than the best found."""
        return self.bound(candidate) < self.best * (1 - _GAP)

    def is_known(self, candidate: Candidate) -> bool:
        key = (candidate.machines, candidate.batch)
        return key in self.options or key in self._ruled_out

    @property
    def searched(self) -> int:
        """Return of how many sets more than a bound that costs nothing is known."""
        return len(self.options) + len(self._ruled_out)

    @property
    def plans(self) -> list[Option]:
        """Return what was found, of one set with one batch the best."""
        best: dict[tuple[MachineSet, int], Option] = {}
        for option in self.options.values():
            if isinstance(option, Option):
                key = (option.machines, option.batch)
                if key not in best or option.step.step_s < best[key].step.step_s:
                    best[key] = option
        return list(best.values())


def choose_machines(catalogue: Catalogue, times: StepTimes, goal: Goal, effort: SearchEffort = EFFORT) -> Answer:
    """Return the best set of machines of a catalogue's offers.

    Args:
        catalogue: The offers.
        times: What steps of the model take.
        goal: What is asked.
        effort: How many plans are searched for.

    Raises:
        InfeasibleError: where no set was found that keeps all limits; says what would help.
        InputError: where no offer has a data sheet.
    """
    all_kinds, unknown = kinds_of(catalogue.offers, spot=goal.spot, learned=times.learned)
    if not all_kinds:
        raise InputError(
            f"no data sheet is known of the GPUs of any offer ({len(catalogue.offers):,}); those with one are "
            f"{', '.join(known_gpus())}"
        )
    kinds = undominated(all_kinds)
    tell("bounding sets of machines", fraction=0.0)
    singles = sets_of_one_kind(kinds, times, goal)
    if not singles:
        raise InfeasibleError(f"the model runs on none of the {counted(len(kinds), 'kind')} of machines")
    found = _Found(times, goal)
    effort = effort.of_runs(times.runs(kinds[0].device, goal.batches[0]))
    most = effort.front + effort.likely + effort.bound
    _search_all(found, _spread(_likely_front(singles, goal), effort.front), most)
    _search_likely(found, singles, goal, effort.likely, most)
    pairs = sets_of_two_kinds(all_kinds, times, goal)
    looked_at = len(singles) + sum(each.prices.size for each in pairs)
    target = found.best * (1 - _GAP)
    listed, more, least_more = lowest_pairs(pairs, goal, target, times.learned)
    still_open = [*_bounded(singles, times, goal, target), *listed]
    _search_by_bound(found, still_open, goal, effort, most)
    bound_of_one = found.least_bound(each for each in still_open if len(each.kinds) == 1)
    bound = min(bound_of_one, found.least_bound(each for each in still_open if len(each.kinds) == 2), least_more)
    best = found.best * (1 - _GAP)
    left = sum(_bound(each, goal) < best and not found.is_known(each) for each in still_open)
    if found.best == float("inf"):
        raise nothing_found(found.options, goal)
    return _answer(
        found,
        goal,
        (bound, bound_of_one),
        left=left + more,
        looked_at=looked_at,
        kinds=(all_kinds, len(kinds)),
        notes=(*_few_of(kinds, goal), *_notes(catalogue.offers, unknown, catalogue.notes, times, goal)),
    )


def _search_all(found: _Found, candidates: Iterable[Candidate], most: int) -> None:
    for candidate in candidates:
        found.search(candidate)
        tell(f"searching plans on {candidate.machines.count} machines", fraction=len(found.options) / most)


def _search_likely(found: _Found, singles: Sequence[Candidate], goal: Goal, effort: int, most: int) -> None:
    """Search for the plans of sets in the order of their likely values, until none is likely to be better."""
    keeping = [(value, number) for number, each in enumerate(singles) if (value := _likely(each, goal)) < float("inf")]
    left = effort
    for value, number in sorted(keeping):
        if not left or value >= found.best * (1 - _GAP):
            return
        if not found.is_known(singles[number]):
            left -= 1
            _search_all(found, [singles[number]], most)


def _bounded(singles: Sequence[Candidate], times: StepTimes, goal: Goal, best: float) -> Iterator[Candidate]:
    """Yield the sets whose bounds keep all limits, with closer bounds where one of their hardware may be better."""
    groups: defaultdict[object, list[Candidate]] = defaultdict(list)
    for each in singles:
        if _bound(each, goal, keeps=True) < best:
            groups[each.kinds[0].hardware, each.batch].append(each)
    for group in groups.values():
        check()
        kind, batch = group[0].kinds[0], group[0].batch
        known = {each.machines.count: each.least_s for each in group}
        counts = np.array(sorted(known))
        low_s = np.array([known[count] for count in counts.tolist()])
        closer = bound_steps(times, kind, batch, counts, low_s)
        least_s = dict(zip(counts.tolist(), closer.tolist(), strict=True))
        bounded = (replace(each, least_s=least_s[each.machines.count]) for each in group)
        yield from (each for each in bounded if _bound(each, goal, keeps=True) < float("inf"))


def _search_by_bound(
    found: _Found, candidates: Sequence[Candidate], goal: Goal, effort: SearchEffort, most: int
) -> None:
    """Search for the plans of sets in the order of their bounds.

    The bounds of pairs are the looser ones: half of the effort is for sets of one kind, which go first.
    """
    order = sorted((_bound(each, goal), each.machines.count, number) for number, each in enumerate(candidates))
    alone = [each for each in order if len(candidates[each[-1]].machines.parts) == 1]
    left, ruled_out = effort.bound // 2, effort.ruled_out
    for these in (alone, order):
        for value, _, number in these:
            if not left or value >= found.best * (1 - _GAP):
                break
            candidate = candidates[number]
            if found.is_known(candidate) or not found.may_win(candidate):
                continue
            if ruled_out:
                ruled_out -= 1
                if found.rules_out(candidate):
                    continue
            left -= 1
            _search_all(found, [candidate], most)
        left += effort.bound - effort.bound // 2


def _steady(candidate: Candidate, step_s: float, goal: Goal) -> Outlook:
    """Return the outlook of a set with a step as if its machines all stayed."""
    machines = candidate.machines
    return steady_outlook(machines.price_per_hour, step_s, candidate.batch, goal, machines.late)


def _likely_outlook(candidate: Candidate, goal: Goal) -> Outlook:
    """Return the outlook of a set with its likely step, with what all machines take to start."""
    steady = _steady(candidate, candidate.likely_s, goal)
    return steady.later(goal.first_start_s, candidate.machines.price_per_hour)


def _likely(candidate: Candidate, goal: Goal) -> float:
    """Return the value that a set is likely to have; inf where it is likely to break a limit."""
    outlook = _likely_outlook(candidate, goal)
    return float("inf") if outlook.misses(goal) else outlook.value(goal)


def _bound(candidate: Candidate, goal: Goal, *, keeps: bool = False) -> float:
    """Return a value that a set cannot be below; inf where its bounds break a limit and it has to keep them."""
    outlook = _steady(candidate, candidate.least_s, goal)
    return float("inf") if keeps and outlook.misses(goal) else outlook.value(goal)


def _likely_front(singles: Sequence[Candidate], goal: Goal) -> list[Candidate]:
    """Return the sets that no other is likely to beat in both time and money, the best first."""
    told = [(_likely_outlook(each, goal), each) for each in singles]
    ordered = sorted(enumerate(told), key=lambda one: (one[1][0].median_s, one[1][0].median_money, one[0]))
    front: list[Candidate] = []
    cheapest = float("inf")
    for _, (outlook, each) in ordered:
        if outlook.median_money < cheapest * (1 - 1e-6):
            cheapest = outlook.median_money
            front.append(each)
    return sorted(front, key=lambda each: (_likely(each, goal), each.machines.count))


def _spread(front: Sequence[Candidate], most: int) -> list[Candidate]:
    """Return so many at the most: half of these are the best ones, the others stand evenly in the rest, to its end."""
    if len(front) <= most:
        return list(front)
    best = most // 2
    rest, others = front[best:], most - best
    return [*front[:best], *(rest[-(-(place + 1) * len(rest) // others) - 1] for place in range(others))]


def _answer(
    found: _Found,
    goal: Goal,
    bounds: tuple[float, float],
    *,
    left: int,
    looked_at: int,
    kinds: tuple[Sequence[Kind], int],
    notes: tuple[str, ...],
) -> Answer:
    """Return the answer.

    Args:
        found: The sets that were searched.
        goal: What is asked.
        bounds: Values that no set is below, and no set of one kind.
        left: Sets that may be better and were not searched.
        looked_at: Sets.
        kinds: All of them, and how many no other dominates.
        notes: What the user should know.
    """
    ranked = sorted(found.plans, key=lambda option: rank(option, goal))
    keeping = [option for option in ranked if not option.fails]
    best = keeping[0]
    value, others = best.outlook.value(goal), _unlike(best, keeping[1:])
    rentals = [rental for option in (best, *others[:RUNNERS_UP]) for rental, _ in option.machines.parts]
    taken = dict.fromkeys(words for rental in rentals for words in assumed(rental.offer))
    step = best.step
    there = elsewhere(best, kinds[0], goal, lambda each: found.outlook(each, best.batch, step.step_s, step.slower))
    return Answer(
        goal, best, tuple(others[:RUNNERS_UP]), let_in(ranked, best, goal), there, tuple(front_of(found.plans)),
        min(bounds[0], value), min(bounds[1], value), looked_at, found.searched, left, kinds[1],
        (*taken, *notes),
    )  # fmt: skip


def _unlike(best: Option, others: Sequence[Option]) -> list[Option]:
    """Return options that differ from each other and from the best in more than the region of a machine."""
    seen, found = {_looks(best)}, []
    for option in others:
        if _looks(option) not in seen:
            seen.add(_looks(option))
            found.append(option)
    return found


def _looks(option: Option) -> tuple[object, ...]:
    parts = tuple(
        (r.offer.provider, r.offer.instance, r.offer.gpu, r.spot, count) for r, count in option.machines.parts
    )
    return parts, option.batch


def _few_of(kinds: Sequence[Kind], goal: Goal) -> tuple[str, ...]:
    """Return a note where machines have so many units that a pool cannot have as many of them as may be rented."""
    few = [kind for kind in kinds if kind.most < goal.most_machines]
    if not few:
        return ()
    most = max(few, key=lambda kind: kind.units)
    return (
        f"of {counted(len(few), 'offer')} fewer than {goal.most_machines} machines are looked at, such as "
        f"{most.most} of {most.rental.offer.title} with {most.units:,} units each: a pool has {MAX_UNITS:,} units of a "
        "kind at most",
    )


def _notes(offers: Sequence[Offer], unknown: int, told: Sequence[str], times: StepTimes, goal: Goal) -> tuple[str, ...]:
    """Return what the user should know of the offers and of the times."""
    notes = [*told, *times.learned.notes]
    if unknown:
        notes.append(f"{counted(unknown, 'offer')} of the catalogue have GPUs without a data sheet and are left out")
    if goal.spot:
        notes += goal.transience.notes
    fixed = [batch for batch in goal.batches if not times.is_divisible(batch)]
    if fixed:
        notes.append(
            f"the model fixes its batch at {fixed[0]}: replicas cannot share it, and more machines hardly help"
        )
    if not all(times.is_fixed_order(batch) for batch in goal.batches):
        notes.append(
            "the bound is of plans that take the layers in the order in which they are read, or branch after branch; "
            "the model allows other orders, which are looked at too for the plan that is written (-o)"
        )
    return tuple(notes)
