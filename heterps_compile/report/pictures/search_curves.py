"""A search over time and over training: the best value so far, and how trials learn.

Trials may be so much worse than the rest that nothing else could be seen: values that are more than five times as far
from the best one as the median is stand at the edge, which is said.

Left out: how curves are drawn (``curves.py``).
"""

from collections.abc import Sequence

from heterps_compile.tuning.search_figures import (
    best_over_time,
    chain,
    lengths,
    metric_words,
    ranked,
    spread,
    told_in_order,
)
from heterps_compile.tuning.search_state import FAILED, SearchState, TrialState
from heterps_compile.units import counted

from .curves import Curve, Plot, draw_curves
from .scale import time_unit
from .svg import WIDTH, Picture

MOST_CURVES = 120
_HIGHLIGHTED = 3
_FENCE = 5.0  # times the distance from the best value to the median
_MOST = 1e299  # beyond which differences are no floats


def best_value(state: SearchState, *, width: float = WIDTH) -> Picture | None:
    """Draw every trial's value when it was told, and the best so far; None where no trial was told."""
    record, (second, unit) = state.record, time_unit(state.now_s)
    told = [(at_s, trial, bounded(trial.value)) for at_s, trial in told_in_order(state) if trial.value is not None]
    if not told:
        return None
    low, high, beyond = shown_range(state, [value for _, _, value in told])
    worst, edge = (low, -_MOST) if record.is_maximised else (high, _MOST)
    most = max(trial.fidelity for _, trial, _ in told)
    has_lengths = any(trial.fidelity < most for _, trial, _ in told)
    failed = [trial for trial in state.trials if trial.status == FAILED]
    dots = [(at_s / second, value, "p0" if trial.fidelity >= most else "grid-fill") for at_s, trial, value in told]
    dots += [((trial.attempts[-1].ended_at_s or 0.0) / second, edge, "p1") for trial in failed if trial.attempts]
    curves = [_best(state, second, whole_only=True, classes="l0", name=f"best trial of {lengths(state, most)}")]
    if has_lengths:
        curves.insert(0, _best(state, second, whole_only=False, classes="l3 data", name="best of any length"))
    legend = [("p0", f"dots: trials of {lengths(state, most)}")]
    legend += [("grid-fill", "shorter trials")] if has_lengths else []
    legend += [("p1", f"failed, at the edge: {len(failed)}")] if failed else []
    return draw_curves(
        Plot(
            "best-value",
            "Best value over time",
            f"{record.metric} ({'more' if record.is_maximised else 'less'} is better) over time in {unit}",
            tuple(curves),
            dots=tuple(dots),
            told=tuple(legend),
            below=_beyond_words(beyond, "trial", worst),
            up=(low, high),
            across=(0.0, max(state.now_s / second, 1e-9)),
        ),
        width=width,
    )


def _best(state: SearchState, second: float, *, whole_only: bool, classes: str, name: str) -> Curve:
    points = tuple((at_s / second, bounded(value)) for at_s, value in best_over_time(state, whole_only=whole_only))
    return Curve(points, classes, name, is_stepped=True)


def learning_curves(state: SearchState, *, width: float = WIDTH) -> Picture | None:
    """Draw the metric of configurations over how far they had trained; None where nothing was reported."""
    best = ranked(state)
    known = {trial.number for trial in best} | {trial.continues for trial in state.trials}
    others = [trial for trial in state.trials if trial.number not in known and trial.curve]
    whole = [(trial, points) for trial in [*best, *others] if (points := points_of(state, trial))]
    if not whole:
        return None
    kept = {trial.number for trial in spread([trial for trial, _ in whole], MOST_CURVES)}
    drawn = [(trial, points) for trial, points in whole if trial.number in kept]
    missing = len(whole) - len(drawn)
    values = [value for _, points in drawn for _, value in points]
    low, high, beyond = shown_range(state, values)
    worst = low if state.record.is_maximised else high
    colours = {trial.number: f"l{place}" for place, trial in enumerate(best[:_HIGHLIGHTED])}
    curves = [_learning(trial, points, colours) for trial, points in reversed(drawn)]
    below = [*_beyond_words(beyond, "value", worst)]
    below += [f"{counted(missing, 'more curve')} not drawn, spread evenly"] if missing else []
    told = [("grid-fill", "other configurations")] if len(drawn) > len(colours) else []
    told += [("", "dashed: trials without a result, yet or for good")] if any(t.value is None for t, _ in drawn) else []
    return draw_curves(
        Plot(
            "learning-curves",
            "Learning curves",
            f"{state.record.metric} over {state.record.unit}",
            tuple(curves),
            told=tuple(told),
            below=tuple(below),
            up=(low, high),
        ),
        width=width,
    )


def points_of(state: SearchState, trial: TrialState) -> tuple[tuple[float, float], ...]:
    """Return how far a configuration had trained, and the metric: over all trials that led to this one."""
    points: dict[float, float] = {}
    for each in chain(state, trial):
        points |= {fidelity: bounded(value) for fidelity, value in each.curve}
        if each.value is not None:
            points[each.fidelity] = bounded(each.value)
    return tuple(sorted(points.items()))


def _learning(trial: TrialState, points: tuple[tuple[float, float], ...], colours: dict[int, str]) -> Curve:
    if trial.number in colours and trial.value is not None:
        name = f"trial {trial.number}: {metric_words([trial.value])[0]}"
        return Curve(points, colours[trial.number], name, has_dots=True)
    return Curve(points, "line thin faint" if trial.value is not None else "line thin faint data")


def shown_range(state: SearchState, values: Sequence[float]) -> tuple[float, float, int]:
    """Return the least and the most value to draw, and how many are worse than that."""
    losses = sorted(state.record.loss_of(value) for value in values)
    if not losses:
        return 0.0, 1.0, 0
    best, worst = losses[0], losses[-1]
    median = losses[len(losses) // 2]
    if median > best:
        worst = max(loss for loss in losses if loss <= best + _FENCE * (median - best))
    ends = sorted((state.record.loss_of(best), state.record.loss_of(worst)))  # the sign turned back
    return ends[0], ends[1], sum(loss > worst for loss in losses)


def bounded(value: float) -> float:
    """Return a value that differences can be computed of."""
    return min(max(value, -_MOST), _MOST)


def _beyond_words(beyond: int, thing: str, worst: float) -> tuple[str, ...]:
    verb = "stands" if beyond == 1 else "stand"
    return (f"{counted(beyond, thing)} worse than {worst:.4g} {verb} at the edge",) if beyond else ()
