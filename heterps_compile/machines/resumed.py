"""A run that goes on: what is left of it, what its machines cost now, and whether it stays, moves or waits.

::

    stay   on the machines that are left, at today's prices
    wait   for others in the place of those that were lost, while those that are left are paid
    move   to the best sets for what is left: a checkpoint and planning, paid on the old machines, then a start-up

Each is priced to its end (``transient/decide.py``), held to deadline and budget in nine of ten runs, and the best
taken.

Left out: prices to come, and that a checkpoint has to be brought to other machines where these stand elsewhere.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.escape import short
from heterps_compile.offers import Catalogue, Offer, Rental
from heterps_compile.offers.offer import CURRENCY
from heterps_compile.transient.decide import (
    Course,
    Decision,
    Remaining,
    course_to_move,
    course_to_stay,
    course_to_wait,
    decide,
)
from heterps_compile.transient.transient_work import Recovery
from heterps_compile.units import counted, format_money

from .chosen_file import Chosen
from .goal import HOUR_S, Goal
from .machine_set import MachineSet
from .option import Option, paid
from .search import EFFORT, Answer, SearchEffort, choose_machines
from .step_times import StepFound, StepTimes

PLANNING_S = 120.0
"""To plan and to start ranks anew, where a run moves."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a run stands.

    Attributes:
        chosen: The machines that it was planned for.
        samples: That it has seen.
        checkpoint: The name of the checkpoint it goes on from.
        spent: US dollars so far.
        lost: Machines by their place in the set.
        wait_s: Until others can be had in their place, which start up then.
        model: SHA-256 of the structure of the plan's model; "" where it is not known.
        notes: What is to be known of checkpoint and plan, in sentences.
    """

    chosen: Chosen
    samples: int
    checkpoint: str
    spent: float = 0.0
    lost: tuple[int, ...] = ()
    wait_s: float = 0.0
    model: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """A course with the machines it ends on.

    Attributes:
        course: As it was priced.
        machines: At today's prices.
        batch: Samples in a step.
        step: The plan on them; None for the plan that runs.
        option: Of the search for machines; None where the run keeps its own.
    """

    course: Course
    machines: MachineSet
    batch: int
    step: StepFound | None = None
    option: Option | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Resumption:
    """What a run is to do.

    Attributes:
        decision: With all courses, the one to take first.
        ways: Of every course of the decision, in its order.
        remaining: What is left, in whole steps.
        goal: What was asked, with the samples that are left.
        standing: How the run stands.
        answer: The choice of machines for what is left; None where no set was found.
        notes: What the user should know, in sentences.
    """

    decision: Decision
    ways: tuple[Way, ...]
    remaining: Remaining
    goal: Goal
    standing: Standing
    answer: Answer | None
    notes: tuple[str, ...]

    @property
    def answer_of_move(self) -> Answer | None:
        """Return the answer whose best set the run is to move to; None where it is to stay or to wait."""
        option = self.ways[0].option
        return None if option is None or self.answer is None else replace(self.answer, best=option)


def lost_of(text: str | None, machines: MachineSet) -> tuple[int, ...]:
    """Return how many machines of every part were lost: of "2", or of "p3.2xlarge=1,g4dn.xlarge=2".

    Raises:
        InputError: where it names none of the set, or more than there are.
    """
    lost = [0] * len(machines.parts)
    names = [rental.offer.instance for rental, _ in machines.parts]
    for each in (text or "").split(",") if text is not None else ():
        name, equals, count = each.rpartition("=")
        known = f"the run has {machines.title}"
        if equals and names.count(name.strip()) != 1:
            raise InputError(f"{short(each)} is no machine of the run: {known}")
        if not equals and len(names) > 1:
            raise InputError(f"{short(each)} does not say of which machines: {known}; give such as {names[0]}=1")
        place = names.index(name.strip()) if equals else 0
        if not (count.strip().isascii() and count.strip().isdigit() and 0 < len(count.strip()) < 6):
            raise InputError(f"{short(count)} is no number of machines that were lost (--lost)")
        lost[place] += int(count)
        if lost[place] > machines.parts[place][1]:
            raise InputError(f"{lost[place]} machines are said to be lost of {machines.parts[place][1]}: {known}")
    return tuple(lost)


def resume(
    catalogue: Catalogue,
    times: StepTimes,
    goal: Goal,
    standing: Standing,
    effort: SearchEffort = EFFORT,
    *,
    prices: Catalogue | None = None,
) -> Resumption:
    """Return what a run is to do.

    Args:
        catalogue: What it may move to today.
        times: Steps of the model.
        goal: All samples of the training, the deadline from now, the budget in all.
        standing: How it stands.
        effort: Of the search for other machines.
        prices: What its own machines cost today; None where the catalogue has all that is offered.

    Raises:
        InputError: where nothing is left to do, or more was spent than the budget.
        InfeasibleError: where no course keeps what was asked.
    """
    left = goal.samples - standing.samples
    if left <= 0:
        raise InputError(
            f"the run has seen {standing.samples:,} samples at {standing.checkpoint}, and {goal.samples:,.0f} "
            "were to be trained on: nothing is left"
        )
    whole_steps = math.ceil(left / standing.chosen.batch) * standing.chosen.batch
    remaining = Remaining(whole_steps, standing.spent, goal.deadline_s, goal.budget, CURRENCY)
    if goal.budget is not None and standing.spent >= goal.budget:
        raise InputError(
            f"{format_money(standing.spent)} {CURRENCY} are spent of a budget of {format_money(goal.budget)}; raise it "
            "(--budget)"
        )
    times, planned_s = _as_learned(times, standing.chosen)
    courses = _Courses(times, goal, standing.chosen.batch)
    today, unpriced = _today(replace(standing.chosen.machines, learned=times.learned), prices or catalogue)
    courses.notes += unpriced
    whole = courses.on(today, standing.chosen.batch / planned_s)
    if not sum(standing.lost):
        before = courses.add(whole, today)
    else:
        kept = _kept(today, standing.lost)
        courses.add(course_to_wait(whole, standing.wait_s, () if kept is None else paid(kept, goal)), today)
        # without machines no checkpoint is written before a move
        gone = replace(whole, machines=(), recovery=replace(whole.recovery, checkpoint_s=0.0))
        before = courses.add_fewer(kept) or (gone if kept is None else replace(whole, machines=paid(kept, goal)))
    answer = courses.add_moves(catalogue, remaining, before, effort)
    decision = decide(remaining, [way.course for way in courses.ways])
    by_course = {id(way.course): way for way in courses.ways}
    ordered = tuple(by_course[id(outcome.course)] for outcome in decision.outcomes)
    rest = replace(goal, samples=left)
    return Resumption(decision, ordered, remaining, rest, standing, answer, (*standing.notes, *courses.notes))


class _Courses:
    """The courses of a run, as they are found."""

    def __init__(self, times: StepTimes, goal: Goal, batch: int) -> None:
        self._times, self._goal, self._batch = times, goal, batch
        self.ways: list[Way] = []
        self.notes: list[str] = []

    def on(self, machines: MachineSet, samples_per_s: float) -> Course:
        """Return the course that goes on with machines that are up."""
        checkpoint_s = self._times.checkpoint_s(machines, self._batch)
        recovery = Recovery(self._goal.transience.start_up_s, checkpoint_s)
        course = course_to_stay(samples_per_s, paid(machines, self._goal), recovery)
        return replace(course, late=machines.late, name=machines.title)

    def add(self, course: Course, machines: MachineSet, step: StepFound | None = None) -> Course:
        """Add a course on machines of the run; return it."""
        self.ways.append(Way(course, machines, self._batch, step))
        return course

    def add_fewer(self, kept: MachineSet | None) -> Course | None:
        """Add the course on the machines that are left, with a plan of their own; return it, None for none."""
        if kept is None:
            self.notes.append("all machines are lost, so that the run cannot stay")
            return None
        step = self._times.searched(kept, self._batch)
        if isinstance(step, str):
            self.notes.append(f"the run cannot stay on {kept.title}: {step}")
            return None
        return self.add(self.on(kept, self._batch / step.step_s), kept, step)

    def add_moves(
        self, catalogue: Catalogue, remaining: Remaining, before: Course, effort: SearchEffort
    ) -> Answer | None:
        """Add the courses to the best sets for what is left, less what comes before they run; return the choice."""
        goal = self._goal
        before_s = before.recovery.checkpoint_s + PLANNING_S
        spent = remaining.spent + sum(kind.count * kind.price_per_hour for kind in before.machines) * before_s / HOUR_S
        deadline_s = None if goal.deadline_s is None else goal.deadline_s - before_s
        budget = None if goal.budget is None else goal.budget - spent
        if (deadline_s is not None and deadline_s <= 0) or (budget is not None and budget <= 0):
            self.notes.append("there is no time or money left to move in")
            return None
        samples = max(1.0, remaining.samples)
        rest = replace(goal, samples=samples, deadline_s=deadline_s, budget=budget, counts_start=True)
        try:
            answer = choose_machines(catalogue, self._times, rest, effort)
        except InfeasibleError as error:
            self.notes.append(f"nothing to move to: {error}")
            return None
        own = {way.machines.parts for way in self.ways}  # to move to these is to stay or to wait
        for option in (answer.best, *answer.runners_up):
            if option.machines.parts not in own:
                on = self.on(option.machines, option.samples_per_s)
                course = course_to_move(before, on, PLANNING_S)
                self.ways.append(Way(course, option.machines, option.batch, option.step, option))
        return answer


def _as_learned(times: StepTimes, chosen: Chosen) -> tuple[StepTimes, float]:
    """Return steps corrected by the newest that was learned, and the step of the plan that runs corrected likewise."""
    before = chosen.machines.learned
    if not times.learned.corrections:
        return times.with_learned(before), chosen.step_s
    gpus = {rental.offer.gpu for rental, _ in chosen.machines.parts}
    return times, chosen.step_s * max(times.learned.most_since(before, gpu) for gpu in gpus)


def _today(machines: MachineSet, catalogue: Catalogue) -> tuple[MachineSet, list[str]]:
    """Return the machines at the prices of a catalogue, and what it does not say."""
    offered = {_key(offer): offer for offer in catalogue.offers}
    parts, notes = [], []
    for rental, count in machines.parts:
        offer = offered.get(_key(rental.offer))
        if offer is None or (rental.spot and offer.spot_per_hour is None):
            how = " as spot" if rental.spot else ""
            notes.append(
                f"{rental.offer.title} is not offered{how} by {catalogue.source}; its price of "
                f"{rental.offer.price_date}, {format_money(rental.price_per_hour)} {CURRENCY}/h, is taken"
            )
            parts.append((rental, count))
            continue
        priced = replace(
            rental.offer,
            price_per_hour=offer.price_per_hour,
            spot_per_hour=offer.spot_per_hour,
            price_date=offer.price_date,
            source=offer.source,
        )
        parts.append((Rental(priced, rental.spot), count))
    return replace(machines, parts=tuple(parts)), notes


def _key(offer: Offer) -> tuple[object, ...]:
    return offer.provider, offer.region, offer.instance, offer.gpu, offer.gpus


def _kept(machines: MachineSet, lost: Sequence[int]) -> MachineSet | None:
    """Return the machines that are left; None where there are none."""
    gone = [*lost, *[0] * (len(machines.parts) - len(lost))]
    parts = tuple(
        (rental, count - less) for (rental, count), less in zip(machines.parts, gone, strict=True) if count > less
    )
    return replace(machines, parts=parts) if parts else None


def price_changes(before: MachineSet, after: MachineSet) -> Mapping[str, tuple[float, float]]:
    """Return the prices of machines that changed, by title: what an hour was, and is."""
    return {
        old.offer.title: (old.price_per_hour, new.price_per_hour)
        for (old, _), (new, _) in zip(before.parts, after.parts, strict=True)
        if old.price_per_hour != new.price_per_hour
    }


def described_loss(standing: Standing) -> str:
    """Say which machines were lost: "2 of 4 x p3.2xlarge"; "" for none."""
    gone = [
        f"{less} of {counted(count, rental.offer.instance + ' machine')}"
        for (rental, count), less in zip(standing.chosen.machines.parts, standing.lost, strict=False)
        if less
    ]
    return " and ".join(gone)
