"""Hold what is said of transient machines against measurements: `python tools/bench_transient.py [--only NAME,...]`.

The measurements lie in `../shared/data` beside the repository, or where `--data DIR` says; `--trace FILE` (rows
`ms,add|remove,machine`) and `--lifetimes FILE` (columns `lifetime_h,censored`), `--checkpoints FILE` (columns of
`checkpoint_time_train.csv`) take others of the same kind; `--runs FILE` scores runs that lost machines alone (columns:
`revoked_runs.py`). What is judged was not seen by what is fitted. Prints Markdown: errors are signed, with their
quartiles.
"""

import argparse
import csv
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))

from revoked_runs import print_revoked, read_revoked

from heterps_compile.errors import HeterpsError
from heterps_compile.transient.availability import Seen, Trace, read_trace, seen_by
from heterps_compile.transient.deadline_job import Job, Way, run_job
from heterps_compile.transient.fit_lifetime import Lifespan, fit_lifetime
from heterps_compile.transient.lifetime import Weibull
from heterps_compile.transient.offline_optimum import offline_optimum
from heterps_compile.transient.policies import POLICIES

ROOT = Path(__file__).parents[1]

Floats = NDArray[np.float64]
Measured = tuple[float, float, float]
"""A checkpoint: bytes, tensors, seconds."""

FAMILIES = {"exponential": 1.0, "weibull": None}
"""The shapes of laws; None for a shape that is fitted."""

SPLITS = 200
SPOT_PRICE = 0.3
"""Of p3 instances, in parts of the price on demand."""

CHANGE = 5
"""Steps of a minute that a change takes."""

DEADLINE = 240
WORK_SHARES = (0.4, 0.6, 0.8)
WINDOW_STEP = 30


def spread(values: Sequence[float], percent: bool = True) -> str:
    """Return median and quartiles."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    if not percent:
        return f"{middle:.3f} ({low:.3f} to {high:.3f})"
    return f"{100 * middle:+.1f} % ({100 * low:+.1f} to {100 * high:+.1f})"


def fit_checkpoint_time(measured: Sequence[Measured]) -> Floats:
    """Fit start, seconds a byte and seconds a tensor, none below 0, by least squares of relative errors."""
    times = np.array([time_s for *_, time_s in measured])
    parts = np.array([[1.0, size_bytes, tensors] for size_bytes, tensors, _ in measured]) / times[:, None]
    scales = np.maximum(np.abs(parts).max(axis=0), 1e-300)
    found = np.zeros(3)
    best = math.inf
    # eight subsets: the least squares that are not negative, exactly
    for chosen in range(1, 8):
        columns = [column for column in range(3) if chosen >> column & 1]
        solution = np.linalg.lstsq(parts[:, columns] / scales[columns], np.ones(len(times)), rcond=None)[0]
        error = float(np.mean((parts[:, columns] / scales[columns] @ solution - 1) ** 2))
        if (solution >= 0).all() and error < best - 1e-12:
            best = error
            found = np.zeros(3)
            found[columns] = solution / scales[columns]
    return found


def checkpoint_s(parts: Floats, of: Measured) -> float:
    return float(parts @ [1.0, of[0], of[1]])


def print_checkpoints(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    # an entry of the index is a tensor: 62 tensors, 6.71; 326, 34.36
    measured = [
        (
            row["model"],
            (1e6 * float(row["checkpoint_mb"]), 9.4 * float(row["index_file"]), float(row["duration_s"])),
        )
        for row in rows
    ]
    errors, means = [], []
    for left_out in dict.fromkeys(model for model, _ in measured):
        form = fit_checkpoint_time([one for model, one in measured if model != left_out])
        of_model = [one for model, one in measured if model == left_out]
        errors += [checkpoint_s(form, one) / one[2] - 1 for one in of_model]
        mean_s = sum(one[2] for one in of_model) / len(of_model)
        means.append(checkpoint_s(form, of_model[0]) / mean_s - 1)
    yield "Checkpoint time, one model of 16 left out; `start + bytes / rate + tensors x per_tensor`."
    yield ""
    yield "| error | published | wanted | found | signed: median (quartiles) |"
    yield "|---|---|---|---|---|"
    yield f"| of each checkpoint | 5.4-8.0 % | 6 % | {100 * np.abs(errors).mean():.1f} % | {spread(errors)} |"
    yield f"| of a model's mean | - | - | {100 * np.abs(means).mean():.1f} % | {spread(means)} |"
    own = [one[2] for _, one in measured]
    noise = [
        float(time_s / np.mean([one[2] for other, one in measured if other == model])) - 1
        for (model, _), time_s in zip(measured, own, strict=True)
    ]
    own_error = 100 * np.abs(noise).mean()
    yield f"| of each from its own model's mean (the noise) | - | - | {own_error:.1f} % | {spread(noise)} |"


def spans_of(path: Path) -> list[Lifespan]:
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [
        Lifespan.alive(float(row["lifetime_h"])) if row["censored"] == "1" else Lifespan.died(float(row["lifetime_h"]))
        for row in rows
    ]


def hourly(path: Path) -> dict[str, list[Lifespan]]:
    """Return the servers of every GPU, one by one, with the hour in which each was lost; the group is the region."""
    found: dict[str, list[Lifespan]] = {}
    last: dict[tuple[str, str], int] = {}
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key, hour, gone = (row["gpu"], row["region"]), int(row["within_h"]), int(row["revoked_servers"])
            spans = found.setdefault(row["gpu"], [])
            spans += [Lifespan(hour - 1.0, float(hour), group=row["region"])] * (gone - last.get(key, 0))
            last[key] = gone
            if hour == 24:
                spans += [Lifespan(24.0, math.inf, group=row["region"])] * (int(row["servers"]) - gone)
    return found


def distances(spans: list[Lifespan], splits: int) -> dict[str, list[float]]:
    """Return, by law, the distances of random quarters from the law of the rest, and from the rest itself."""
    rng = np.random.default_rng(0)
    found: dict[str, list[float]] = {name: [] for name in (*FAMILIES, "the rest itself")}
    for _ in range(splits):
        order = rng.permutation(len(spans))
        quarter = [spans[place] for place in order[: len(spans) // 4]]
        rest = [spans[place] for place in order[len(spans) // 4 :]]
        if not any(span.by_hours < math.inf for span in quarter):
            continue
        for name, shape in FAMILIES.items():
            found[name].append(distance_of(fit_lifetime(rest, shape).law, quarter))
        found["the rest itself"].append(gap_of_shares(rest, quarter))
    return found


def lost_shares(seen: Iterable[Lifespan]) -> tuple[Floats, Floats]:
    """Return ages in hours at which machines were lost, ascending, and the share that is gone at each (Kaplan, Meier).

    A death between two ages is counted at the later one.
    """
    spans = tuple(seen)
    ages = np.array(sorted({span.by_hours for span in spans if span.by_hours < math.inf}))
    by = np.array([span.by_hours for span in spans])
    last = np.array([span.by_hours if span.by_hours < math.inf else span.after_hours for span in spans])
    counts = np.array([span.count for span in spans])
    at_risk = np.array([counts[last >= age].sum() for age in ages])
    died = np.array([counts[by == age].sum() for age in ages])
    return ages, 1 - np.cumprod(1 - died / at_risk) if len(ages) else np.zeros(0)


def distance_of(law: Weibull, seen: Iterable[Lifespan]) -> float:
    """Return the distance of Kolmogorov and Smirnov between a law and what was seen, where anything was seen.

    Some machine was seen to die.
    """
    spans = tuple(seen)
    ages, shares = lost_shares(spans)
    before = np.concatenate([[0.0], shares[:-1]])
    # a death in an interval has an empirical share at its ends alone, an exact one just before it too
    starts = {span.by_hours: span.after_hours for span in spans if span.by_hours < math.inf}
    starts_h = np.array([starts[age] for age in ages])
    known = np.searchsorted(ages, starts_h, side="right")
    at_start = np.where(starts_h == ages, before, np.concatenate([[0.0], shares])[known])
    last_h = max(span.after_hours for span in spans)
    ends = np.array([last_h]) if last_h > ages[-1] else np.zeros(0)
    gaps = [
        np.abs(1 - law.survival(ages) - shares),
        np.abs(1 - law.survival(starts_h) - at_start),
        np.abs(1 - law.survival(ends) - shares[-1]),
    ]
    return float(np.max(np.concatenate(gaps)))


def gap_of_shares(first: list[Lifespan], second: list[Lifespan]) -> float:
    (ages, shares), (others, other_shares) = lost_shares(first), lost_shares(second)
    at = np.union1d(ages, others)
    of_first = np.concatenate([[0.0], shares])[np.searchsorted(ages, at, side="right")]
    of_second = np.concatenate([[0.0], other_shares])[np.searchsorted(others, at, side="right")]
    return float(np.abs(of_first - of_second).max())


def print_lifetimes(own: Path, folder: Path, splits: int) -> Iterator[str]:
    spans = spans_of(own)
    yield f"Lifetimes: distance of Kolmogorov and Smirnov; {splits} random quarters kept apart."
    yield "Published: exponential 0.093; wanted: 0.055."
    yield ""
    yield "| servers | law | all, fitted to all | quarter kept apart: median (quartiles) | lost in 1 h: law (seen) |"
    yield "|---|---|---|---|---|"
    sets = {f"{len(spans)} of {own.name}": spans}
    if (folder / "lifetime_cdf.csv").is_file():
        sets |= {f"{len(each)} {gpu}, hourly": each for gpu, each in hourly(folder / "lifetime_cdf.csv").items()}
    for what, each in sets.items():
        apart = distances(each, splits)
        seen = sum(span.by_hours <= 1 for span in each) / len(each)
        for name, shape in FAMILIES.items():
            law = fit_lifetime(each, shape).law
            yield (
                f"| {what} | {name} | {distance_of(law, each):.3f} | {spread(apart[name], percent=False)} | "
                f"{100 * law.lost_within(1.0):.1f} % ({100 * seen:.1f} %) |"
            )
        rest = spread(apart["the rest itself"], percent=False)
        yield f"| {what} | shares of the other three quarters | 0 | {rest} | - |"


def windows_of(trace: Trace, *, spares: bool) -> Iterator[tuple[int, Job]]:
    """Yield windows of a trace as jobs of sets of half to all of the machines, with the step where each begins."""
    for machines in set_sizes(trace):
        seen = both_seen(trace, machines, spares=spares)
        for first in range(0, len(trace.machines) - DEADLINE + 1, WINDOW_STEP):
            for share in WORK_SHARES:
                yield first, job_of(share, *(each.window(first, DEADLINE) for each in seen))


def set_sizes(trace: Trace) -> range:
    most = max(len(names) for names in trace.machines)
    return range(max(most // 2, 1), most + 1, max(most // 8, 1))


def both_seen(trace: Trace, machines: int, *, spares: bool) -> tuple[Seen, Seen]:
    """Return what a set of transient machines sees, and one of which a quarter stays."""
    return seen_by(trace, machines, spares=spares), seen_by(trace, machines - machines // 4, spares=spares)


def job_of(share: float, spot: Seen, mix: Seen) -> Job:
    ways = (Way("spot", SPOT_PRICE, spot), Way("mix", 0.75 * SPOT_PRICE + 0.25, mix), Way("stay", 1.0))
    return Job(round(share * DEADLINE), DEADLINE, CHANGE, ways)


def print_deadlines(path: Path, *, spares: bool) -> Iterator[str]:
    trace = read_trace(path)
    windows = list(windows_of(trace, spares=spares))
    jobs = [job for _, job in windows]
    best = np.array([offline_optimum(job) for job in jobs])
    half = len(trace.machines) // 2
    halves = [
        np.array([first + DEADLINE <= half for first, _ in windows]),
        np.array([first >= half for first, _ in windows]),
    ]
    works = ", ".join(f"{100 * share:.0f} %" for share in WORK_SHARES)
    yield (
        f"Deadline policies on {path.name}: {len(jobs)} windows of {DEADLINE} min, sets of half to all machines, "
        f"work of {works} of a window, {CHANGE} min a change, spot at {SPOT_PRICE:g} of on demand. "
        + ("A spare takes a lost one's place at once." if spares else "Every loss stops the set for a change.")
        + f" {halves[0].sum()} windows lie in the first half of the trace, {halves[1].sum()} in the second."
    )
    yield ""
    yield (
        "| policy | missed | over the optimum in all | of a window: median (quartiles) | gap / that of all spot "
        "| first half | second half |"
    )
    yield "|---|---|---|---|---|---|---|"
    greedy: list[float] = []
    for name in sorted(POLICIES, key=lambda name: name != "all spot"):
        runs = [run_job(job, POLICIES[name]()) for job in jobs]
        money = np.array([run.money for run in runs])
        gaps = [float((money - best)[which].sum()) for which in (np.ones(len(jobs), bool), *halves)]
        greedy = greedy or gaps
        missed = sum(not run.met for run in runs)
        over = spread((money / best - 1).tolist())
        parts = " | ".join(f"{gap / base:.2f}" if base > 0 else "-" for gap, base in zip(gaps, greedy, strict=True))
        yield f"| {name} | {missed} | {100 * gaps[0] / best.sum():+.1f} % | {over} | {parts} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--lifetimes", type=Path)
    parser.add_argument("--checkpoints", type=Path)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--only", default="checkpoints,lifetimes,deadlines,losses")
    given = parser.parse_args()
    folder = given.data / "cm-dare"
    trace = given.trace or given.data / "bamboo" / "p3-trace.csv"
    parts = {
        "checkpoints": lambda: print_checkpoints(given.checkpoints or folder / "checkpoint_time_train.csv"),
        "lifetimes": lambda: print_lifetimes(given.lifetimes or folder / "lifetimes.csv", folder, given.splits),
        "deadlines": lambda: print_deadlines(trace, spares=True),
        "losses": lambda: print_deadlines(trace, spares=False),
    }
    if given.runs is not None:
        for line in print_revoked(list(read_revoked(given.runs))):
            print(line, flush=True)
        return
    for name in given.only.split(","):
        for line in parts[name]():
            print(line, flush=True)
        print()


if __name__ == "__main__":
    try:
        main()
    except HeterpsError as error:
        sys.exit(f"Error: {error}")
