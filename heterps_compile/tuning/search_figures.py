"""What is told of a search: the best configurations, rungs, failures, the machines' use, and when it may end.

All of it is a pure function of a ``SearchState``.

When it may end is estimated from the trials that ended last, 20 at the most, in the process that runs: those still to
end are taken to end at that rate, and the budget to be spent at the rate of the money of those. Nothing is estimated
before two have ended, or after the search did.

Left out: how it looks (``board.py``, ``report/tuning_page.py``), how much parameters matter (``importance.py``).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from heterps_compile.escape import one_line
from heterps_compile.units import counted, format_duration, format_money

from .search_state import FAILED, RUNNING, TOLD, WAITING, Attempt, SearchState, TrialState

BEST = "best value"
"""What the best value of the metric is called."""

FINISHED = "finished"
"""What a trial with a result is called."""

LAST = 20
"""Trials that the end of a search is estimated from."""

_LEAST = 2


@dataclass(frozen=True, slots=True)
class WorkerUse:
    """What a worker did.

    Attributes:
        worker: Its name.
        class_name: Of its class.
        attempts: With their trials, in the order they began.
        running: The trial it runs.
    """

    worker: str
    class_name: str
    attempts: tuple[tuple[TrialState, Attempt], ...]
    running: TrialState | None


@dataclass(frozen=True, slots=True)
class ClassUse:
    """What the workers of a class did, all together.

    Attributes:
        name: Of the class.
        workers: How many it has.
        used: Those that ran something.
        busy: The part of their time that they ran something, from 0 to 1.
        told: Trials with a result.
        failed: Attempts that failed.
        running: Trials that run.
        money: What its trials cost.
    """

    name: str
    workers: int
    used: tuple[WorkerUse, ...]
    busy: float
    told: int
    failed: int
    running: tuple[TrialState, ...]
    money: float


@dataclass(frozen=True, slots=True)
class Failure:
    """Attempts that failed for one reason.

    Attributes:
        reason: Why, as it was told.
        attempts: How many.
        trials: Numbers of their trials.
        left: Numbers of those that were left for good.
    """

    reason: str
    attempts: int
    trials: tuple[int, ...]
    left: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Outlook:
    """When a search may end.

    Attributes:
        left_s: In so many seconds.
        why: What ends it then, and how that is estimated.
    """

    left_s: float
    why: str


def ranked(state: SearchState, trials: Sequence[TrialState] | None = None) -> list[TrialState]:
    """Rank the trials with a result: longer ones before shorter ones, as in ``SearchState.best``.

    Args:
        state: The search.
        trials: Some of its trials; None for all. Of trials of one configuration, the longest stands for all.
    """
    trials = state.trials if trials is None else trials
    further = {trial.continues for trial in trials if trial.value is not None}
    told = [trial for trial in trials if trial.value is not None and trial.number not in further]
    return sorted(told, key=lambda trial: (-trial.fidelity, _loss(state, trial)))


def better_but_shorter(state: SearchState) -> TrialState | None:
    """Return the shorter trial with the best value, where that is better than the one of the best trial."""
    best = min((t for t in state.trials if t.value is not None), key=lambda t: _loss(state, t), default=None)
    if best is None or state.best is None or _loss(state, best) >= _loss(state, state.best):
        return None
    return best


def spread(trials: Sequence[TrialState], most: int) -> list[TrialState]:
    """Return so many of ordered trials at the most: the first quarter of them, and others evenly from the rest."""
    if len(trials) <= most:
        return list(trials)
    first = most // 4
    rest, others = trials[first:], most - first
    return [*trials[:first], *(rest[index * len(rest) // others] for index in range(others))]


def best_over_time(state: SearchState, *, whole_only: bool) -> tuple[tuple[float, float], ...]:
    """Return when there was a better value, and the value; the last one holds until ``state.now_s``.

    Args:
        state: The search.
        whole_only: Whether only the longest trials that were told count.
    """
    most = max((trial.fidelity for trial in state.trials if trial.value is not None), default=0.0)
    points: list[tuple[float, float]] = []
    for at_s, trial in told_in_order(state):
        value = trial.value
        if value is None or (whole_only and trial.fidelity < most):
            continue
        if not points or state.record.is_better(value, points[-1][1]):
            points.append((at_s, value))
    return (*points, (state.now_s, points[-1][1])) if points else ()


def told_in_order(state: SearchState) -> list[tuple[float, TrialState]]:
    """Return the trials that were told with when they were, in that order."""
    return sorted(
        ((_ended_at_s(trial), trial) for trial in state.trials if trial.value is not None),
        key=lambda one: (one[0], one[1].number),
    )


def chain(state: SearchState, trial: TrialState) -> list[TrialState]:
    """Return the trials of one configuration, each going on from the one before, up to this one."""
    found = [trial]
    while found[0].continues is not None:
        found.insert(0, state.trials[found[0].continues])
    return found


def class_uses(state: SearchState) -> list[ClassUse]:
    """Return what the workers of every class did, in the order of the classes."""
    by_worker: dict[tuple[str, str], list[tuple[TrialState, Attempt]]] = {}
    for trial in state.trials:
        for attempt in trial.attempts:
            by_worker.setdefault((trial.class_name, attempt.worker), []).append((trial, attempt))
    found = []
    for of in state.record.classes:
        workers = sorted((worker for name, worker in by_worker if name == of.name), key=_slot)
        used = tuple(_worker_use(worker, of.name, by_worker[of.name, worker]) for worker in workers)
        own = [trial for trial in state.trials if trial.class_name == of.name]
        found.append(
            ClassUse(
                of.name,
                of.workers,
                used,
                _busy(state, used) / of.workers,
                sum(trial.status == TOLD for trial in own),
                sum(bool(attempt.reason) for trial in own for attempt in trial.attempts),
                tuple(trial for trial in own if trial.status == RUNNING),
                sum(trial.money for trial in own),
            )
        )
    return found


def failures(state: SearchState) -> list[Failure]:
    """Return why attempts failed, the reason first that the most of them had."""
    found: dict[str, list[TrialState]] = {}
    for trial in state.trials:
        for attempt in trial.attempts:
            if attempt.reason:
                found.setdefault(one_line(attempt.reason), []).append(trial)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    return [
        Failure(
            reason,
            len(trials),
            tuple(dict.fromkeys(trial.number for trial in trials)),
            tuple(dict.fromkeys(t.number for t in trials if t.status == FAILED and one_line(t.reason) == reason)),
        )
        for reason, trials in ordered
    ]


def counts_words(state: SearchState) -> str:
    """Return how many trials are finished, of how many, and the others: "12 of 60 finished, 3 running, 1 failed"."""
    words = [f"{state.count(TOLD):,} of {state.wanted:,} {FINISHED}"]
    for status, word in ((RUNNING, "running"), (WAITING, "waiting"), (FAILED, "failed")):
        count = state.count(status)
        words += [f"{count:,} {word}"] if count else []
    unasked = state.wanted - len(state.trials)
    return ", ".join([*words, *([f"{unasked:,} not yet chosen"] if unasked > 0 else [])])


def money_words(state: SearchState) -> str:
    """Return what was spent, of what: "1.20 of 20 USD"."""
    spent = format_money(state.money)
    if state.record.budget is None:
        return f"{spent} {state.record.currency}, without a budget"
    return f"{spent} of {format_money(state.record.budget)} {state.record.currency}"


def outlook(state: SearchState) -> Outlook | None:
    """Return when the search may end; None where nothing tells it."""
    if state.ended_why is not None:
        return None
    since_s = max(state.resumed_at_s, default=0.0)
    ended = sorted(
        (_ended_at_s(t), t.money) for t in state.trials if t.status in (TOLD, FAILED) and _ended_at_s(t) >= since_s
    )
    left = state.wanted - state.count(TOLD) - state.count(FAILED)
    last = ended[-LAST:]
    began_s = ended[-LAST - 1][0] if len(ended) > LAST else since_s
    took_s = state.now_s - began_s
    if len(ended) < _LEAST or took_s <= 0 or left <= 0:
        return None
    how = f"at the rate of the {len(last)} that ended last, in {format_duration(took_s)}"
    left_s, paid = left * took_s / len(last), sum(money for _, money in last)
    if state.record.budget is not None and paid > 0:
        lasts_s = max(0.0, state.record.budget - state.money) * took_s / paid
        if lasts_s < left_s:
            return Outlook(lasts_s, f"then the budget is spent, {how}")
    return Outlook(left_s, f"{counted(left, 'more trial')} {how}")


def outlook_words(state: SearchState) -> str:
    """Return how the search stands in one sentence: why it ended, or when it may."""
    if state.ended_why is not None:
        return f"ended after {format_duration(state.now_s)}: {one_line(state.ended_why)}"
    found = outlook(state)
    if found is None:
        return f"{format_duration(state.now_s)} so far; what is left is estimated once {_LEAST} trials have ended"
    return f"{format_duration(state.now_s)} so far, about {format_duration(found.left_s)} left: {found.why}"


def lengths(state: SearchState, fidelity: float) -> str:
    """Return a length of trials in words: "27 epochs"."""
    unit = state.record.unit
    return f"{fidelity:g} {unit.removesuffix('s') if fidelity == 1 else unit}"


def config_words(trial: TrialState) -> Iterator[tuple[str, str]]:
    """Yield name and value of every parameter of a configuration, in their order; numbers shortly."""
    for name, value in trial.config.items():
        yield name, value_words(value)


def value_words(value: object) -> str:
    """Return a value of a parameter as it is read."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def metric_words(values: Sequence[float]) -> list[str]:
    """Return values of a metric that stand side by side, with digits enough to compare them."""
    return [f"{value:.5g}" for value in values]


def _busy(state: SearchState, used: Sequence[WorkerUse]) -> float:
    """Return how many workers were busy in the mean; shares are summed, for times may be too long to be."""
    if state.now_s <= 0:
        return 0.0
    return sum(length_s(state, attempt) / state.now_s for use in used for _, attempt in use.attempts)


def _worker_use(worker: str, class_name: str, attempts: Sequence[tuple[TrialState, Attempt]]) -> WorkerUse:
    ordered = tuple(sorted(attempts, key=lambda one: (one[1].started_at_s, one[0].number)))
    running = next((trial for trial, attempt in ordered if attempt.ended_at_s is None), None)
    return WorkerUse(worker, class_name, ordered, running)


def length_s(state: SearchState, attempt: Attempt) -> float:
    """Return how long an attempt took, or has taken so far."""
    return (state.now_s if attempt.ended_at_s is None else attempt.ended_at_s) - attempt.started_at_s


def _slot(worker: str) -> tuple[int, str]:
    slot = worker.rpartition("-")[2]
    return int(slot) if slot.isdecimal() else 0, worker


def _ended_at_s(trial: TrialState) -> float:
    ended_s = trial.attempts[-1].ended_at_s if trial.attempts else None
    return trial.at_s if ended_s is None else ended_s


def _loss(state: SearchState, trial: TrialState) -> float:
    return float("inf") if trial.value is None else state.record.loss_of(trial.value)
