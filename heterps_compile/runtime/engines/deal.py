"""The widths of a run where the machines are too few for those that were requested.

Where the widths asked for do not fit, every stage begins with one replica, and the slowest is widened for as long as
there is room: no other widths that fit are faster by the times of the plan, and none as fast take fewer processes.

Left out: which machines there are, and what is done about it (``driver.py``); how fast a machine is.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from heterps_compile.errors import HeterpsError, RunError
from heterps_compile.plan.plan import Plan
from heterps_compile.runtime.launch.prepare import Prepared, prepare
from heterps_compile.runtime.launch.run_options import RunOptions
from heterps_compile.runtime.pipeline.layout import Layout

Deal = tuple[tuple[str, int], ...]
"""Machines in the order of the ranks, with the processes of each."""


@dataclass(frozen=True, slots=True)
class Host:
    """A machine that may run processes of a run.

    Attributes:
        address: Its name.
        slots: Processes that it takes at most.
    """

    address: str
    slots: int


Fill = Callable[[Prepared, Sequence[Host]], Deal]
"""Distributes the processes of a run over machines; raises RunError where they do not take them."""


@dataclass(frozen=True, slots=True)
class Dealt:
    """A run on the machines that there are.

    Attributes:
        options: Of the run, with the widths that fit.
        prepared: What was worked out of them.
        deal: Of its processes.
    """

    options: RunOptions
    prepared: Prepared
    deal: Deal

    @property
    def widths(self) -> tuple[int, ...]:
        """Return the replicas of every position."""
        return self.prepared.layout.widths


def widest(
    wanted: Sequence[int], time_s: Callable[[int, int], float], fits: Callable[[tuple[int, ...]], bool]
) -> tuple[int, ...] | None:
    """Return the widths asked for where they fit, else the fastest that do, with the fewest processes; None for none.

    Args:
        wanted: Replicas of every position; none gets more.
        time_s: Of a step, by position and replicas of it; no longer with more.
        fits: Whether there is room; there is for fewer where there is for more.
    """
    if fits(tuple(wanted)):
        return tuple(wanted)
    widths = (1,) * len(wanted)
    if not fits(widths):
        return None
    best = widths
    while True:
        times = [time_s(position, width) for position, width in enumerate(widths)]
        if max(times) < max(time_s(position, width) for position, width in enumerate(best)):
            best = widths
        slowest = times.index(max(times))
        widths = (*widths[:slowest], widths[slowest] + 1, *widths[slowest + 1 :])
        if widths[slowest] > wanted[slowest] or not fits(widths):
            return best


def step_time_s(plan: Plan, layout: Layout) -> Callable[[int, int], float]:
    """Return what a position's replicas take for a step, by the plan's times of a micro-batch.

    A plan without these is taken to be balanced: a position takes the time of its planned replicas.
    """
    positions, count = len(layout.widths), plan.schedule.micro_batches
    alone = [
        sum(stage.micro_batch(count).whole_s for stage in plan.stages[position::positions])
        for position in range(positions)
    ]
    if not all(alone):
        alone = [float(plan.stages[position].replicas) for position in range(positions)]
    return lambda position, width: alone[position] * -(-layout.micro_batches // width)


def deal_widths(wanted: Prepared, options: RunOptions, hosts: Sequence[Host], fill: Fill) -> Dealt | None:
    """Return a run with the widths asked for, or with fewer where the machines do not take them; None where none fit.

    Args:
        wanted: The run as asked for.
        options: Its options.
        hosts: The machines that there are.
        fill: Deals processes to them.
    """
    tried: dict[tuple[int, ...], Dealt] = {}

    def fits(widths: tuple[int, ...]) -> bool:
        run = with_widths(wanted, options, widths)
        if run is not None:
            with suppress(RunError):
                tried[widths] = Dealt(*run, fill(run[1], hosts))
        return widths in tried

    widths = widest(wanted.layout.widths, step_time_s(wanted.plan, wanted.layout), fits)
    return None if widths is None else tried[widths]


def with_widths(wanted: Prepared, options: RunOptions, widths: tuple[int, ...]) -> tuple[RunOptions, Prepared] | None:
    """Return a run with other widths; None where the plan does not run with them."""
    if widths == wanted.layout.widths:
        return options, wanted
    try:
        changed = replace(options, replicas=widths)
        return changed, prepare(changed, checked_sha256=wanted.plan_sha256)
    except HeterpsError:
        return None
