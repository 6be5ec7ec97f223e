"""What policies under the deadline would have cost on a trace of transient machines, with the set that was chosen.

Windows as long as the deadline begin at even distances in the trace. In each the work of the set, at its speed, is run
by every policy (``transient/policies.py``), and by who knows the future. Ways to buy the machines are the set as
transient ones, the same with a quarter of the machines on demand (from four machines on), and all on demand. A change
or a loss costs the start-up and no work: checkpoints are taken to be written meanwhile.

Left out: sets of two kinds, since a trace does not say of which kind a machine is; prices that change.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.escape import printable
from heterps_compile.transient.availability import Trace, read_trace, seen_by
from heterps_compile.transient.deadline_job import Job, Way, run_job
from heterps_compile.transient.offline_optimum import offline_optimum
from heterps_compile.transient.policies import POLICIES
from heterps_compile.units import counted, format_duration, format_money, format_percent

from .goal import HOUR_S, Goal
from .option import Option

WINDOWS = 12
STEPS = 240
"""Of a window: how finely what policies do is told."""

_MIXED_FROM = 4
_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class PolicyCost:
    """What a policy came to over all windows.

    Attributes:
        name: Of the policy.
        money: US dollars of a window, in the mean.
        missed: Windows whose deadline was not kept.
        over: By which part all windows together cost more than who knows the future pays.
    """

    name: str
    money: float
    missed: int
    over: float


@dataclass(frozen=True, slots=True)
class Compared:
    """Policies on a trace.

    Attributes:
        trace: The name of its file.
        windows: How many there were.
        machines: Of the set.
        most_there: Machines in the trace at once.
        step_s: Seconds of a step of a window.
        optimum: US dollars of a window of who knows the future, in the mean.
        policies: The cheapest first.
        note: Why nothing was compared; "" where it was.
    """

    trace: str
    windows: int
    machines: int
    most_there: int
    step_s: float
    optimum: float
    policies: tuple[PolicyCost, ...]
    note: str = ""


def read_trace_for(path: str | Path, goal: Goal) -> Trace:
    """Read a trace in steps that suit a deadline.

    Raises:
        InputError: where it cannot be read, is none, or is shorter than the deadline.
    """
    step_s = _deadline_s(goal) / STEPS
    file = Path(path)
    try:
        size = file.stat().st_size
    except (OSError, ValueError):
        size = 0  # who reads it says why it cannot be read
    if size > _MOST_BYTES:
        raise InputError(
            f"{printable(repr(str(path)))} has {size >> 20:,} MiB, and a trace at most {_MOST_BYTES >> 20}; keep the "
            "part that is like what is to come"
        )
    trace = read_trace(file, step_s)
    if len(trace.machines) < STEPS:
        raise InputError(
            f"{printable(repr(str(path)))} is {format_duration((len(trace.machines) - 1) * step_s)} long, and the "
            f"deadline is {format_duration(_deadline_s(goal))}: there is no window in it; take a longer trace (--trace)"
        )
    return trace


def compare_policies(trace: Trace, name: str, option: Option, goal: Goal) -> Compared:
    """Return what policies cost on a trace, with a set of machines."""
    machines = option.machines.count
    most = max(len(names) for names in trace.machines)
    nothing = Compared(name, 0, machines, most, trace.step_s, 0.0, ())
    rentals = [rental for rental, _ in option.machines.parts]
    if len(rentals) > 1:
        return replace(
            nothing, note=f"the set {option.machines.title} has two kinds, and a trace does not say which is there"
        )
    spot, stays = rentals[0].offer.spot_per_hour, rentals[0].offer.price_per_hour
    if spot is None:
        return replace(nothing, note=f"{rentals[0].offer.title} is not sold as a transient machine")
    work = math.ceil(goal.steps(option.batch) * option.step.step_s / trace.step_s)
    change = math.ceil(goal.transience.start_up_s / trace.step_s)
    try:
        jobs = list(_jobs(trace, machines, (spot, stays), work, change))
    except InfeasibleError:
        ends_s = (work + change) * trace.step_s
        return replace(
            nothing,
            note=f"with its start-up of {format_duration(change * trace.step_s)} the set ends within "
            f"{format_duration(ends_s)} even on demand, so that no policy keeps the deadline",
        )
    best = [offline_optimum(job) for job in jobs]
    names = [each for each in POLICIES if each != "spot and floor" or len(jobs[0].ways) > 2]
    found = []
    for policy in names:
        runs = [run_job(job, POLICIES[policy]()) for job in jobs]
        money = sum(run.money for run in runs)
        found.append(
            PolicyCost(policy, money / len(jobs), sum(not run.met for run in runs), money / max(sum(best), 1e-12) - 1)
        )
    found.sort(key=lambda each: (each.missed, each.money, each.name))
    return Compared(name, len(jobs), machines, most, trace.step_s, sum(best) / len(jobs), tuple(found))


def _jobs(trace: Trace, machines: int, prices: tuple[float, float], work: int, change: int) -> Iterator[Job]:
    """Yield the windows of a trace as jobs; prices are of a machine an hour, transient and on demand."""
    per_step = machines * trace.step_s / HOUR_S
    spot, stays = (price * per_step for price in prices)
    quarter = machines // _MIXED_FROM
    all_spot, mix = seen_by(trace, machines), seen_by(trace, machines - quarter)
    share = quarter / machines
    last = len(trace.machines) - STEPS
    for first in sorted({round(number * last / max(WINDOWS - 1, 1)) for number in range(WINDOWS)}):
        ways = [Way("spot", spot, all_spot.window(first, STEPS))]
        if quarter:
            ways.append(Way("mix", (1 - share) * spot + share * stays, mix.window(first, STEPS)))
        yield Job(work, STEPS, change, (*ways, Way("stay", stays)))


def told(compared: Compared) -> Iterator[str]:
    """Yield what was compared, in sentences."""
    name = printable(compared.trace)
    if compared.note:
        yield f"policies on {name}: not compared, since {compared.note}"
        return
    yield (
        f"policies on {name}: {counted(compared.windows, 'window')} as long as the deadline, in steps of "
        f"{format_duration(compared.step_s)}; {counted(compared.machines, 'machine')} wanted, and at most "
        f"{compared.most_there} there at once; who knows the future pays {format_money(compared.optimum)} USD in the "
        "mean"
    )
    best = compared.policies[0]
    yield (
        f"{best.name} is the cheapest: {format_money(best.money)} USD in the mean, {format_percent(100 * best.over)} "
        "more than that"
    )


def document(compared: Compared) -> dict[str, Any]:
    """Return what was compared as part of a JSON document; money in US dollars of a window, in the mean."""
    return {
        "trace": compared.trace,
        "windows": compared.windows,
        "step_s": compared.step_s,
        "machines": compared.machines,
        "most_there": compared.most_there,
        "optimum_usd": compared.optimum,
        "policies": [
            {"name": each.name, "usd": each.money, "missed": each.missed, "over_optimum": each.over}
            for each in compared.policies
        ],
        "told": list(told(compared)),
    }


def _deadline_s(goal: Goal) -> float:
    if goal.deadline_s is None:
        raise InputError("policies are compared under a deadline; give --deadline, or leave --trace out")
    return goal.deadline_s
