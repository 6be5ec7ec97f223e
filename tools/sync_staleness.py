"""Trainings with gradients of weights that are some steps old, at rates of their own: `bench_sync.py --staleness`.

Staleness is simulated with all replicas alike: every gradient is of weights from which as many steps are missing as the
rule allows, the most that ``servers(staleness=S)`` lets happen. The rate of Adam is chosen from a grid, for every
staleness by itself, by the held-back loss in the end.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import isfinite

from sync_laws import Line
from sync_runs import TARGET, Ended, train
from sync_tasks import Task

from heterps_compile.sync_rules.through_servers import Servers

STALENESSES = (0, 1, 4, 16)
PARTS = (2.0, 1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16)
"""Of the rate of the dense training."""


def staleness(tasks: Sequence[Task]) -> Iterator[str | Line]:
    """Yield a table a training, of losses by staleness at every rate, and whether a rate of its own mends them."""
    lines: list[Line] = []
    for task in tasks:
        table = {s: {part: train(_at(task, part), Servers(s)) for part in PARTS} for s in STALENESSES}
        best = {s: min(row.items(), key=lambda item: _loss(item[1])) for s, row in table.items()}
        fresh = best[0][1]
        target = TARGET * fresh.loss
        yield ""
        yield (
            f"{task.name}: held-back loss after {task.steps} steps of Adam with gradients of weights S steps old, by "
            f"its rate in parts of {task.rate:g}; steps to {target:.4f}, which is {TARGET:g} of the best one without"
        )
        yield ""
        heads = " | ".join(f"x {part:g}" for part in PARTS)
        yield f"| S | {heads} | best | of S = 0 | at rate x 1, of S = 0 | steps |"
        yield "|---" * (len(PARTS) + 5) + "|"
        for s, row in table.items():
            part, ended = best[s]
            steps = ended.steps_to(target)
            told = " | ".join(f"**{_told(one)}**" if p == part else _told(one) for p, one in row.items())
            yield (
                f"| {s} | {told} | x {part:g} | {_over(ended, fresh)} | {_over(row[1.0], fresh)} | "
                f"{'-' if steps is None else steps} |"
            )
        lines += _lines(task, best, {s: row[1.0] for s, row in table.items()})
    yield ""
    yield from lines


def _at(task: Task, part: float) -> Task:
    return replace(task, rate=part * task.rate)


def _lines(task: Task, best: dict[int, tuple[float, Ended]], plain: dict[int, Ended]) -> Iterator[Line]:
    parts = [best[s][0] for s in STALENESSES]
    falls = all(later <= earlier for earlier, later in pairwise(parts))
    said = ", ".join(f"{part:g}" for part in parts)
    why = "stale gradients want smaller steps, as on the quadratic"
    yield Line.fact("servers", f"{task.name}: the best rate does not rise with staleness", falls, said, why)
    for s in STALENESSES[2:]:
        mended = _loss(best[s][1]) / best[0][1].loss - 1
        before = _loss(plain[s]) / best[0][1].loss - 1
        measured = f"{100 * mended:+.1f} % for {100 * before:+.1f} %"
        what = f"{task.name}: loss at staleness {s}, rate of its own, over none"
        yield Line("servers", what, "less than at the dense rate", measured, mended < before, "chosen from a grid")


def _loss(ended: Ended) -> float:
    return ended.loss if isfinite(ended.loss) else float("inf")


def _told(ended: Ended) -> str:
    loss = _loss(ended)
    return f"{loss:.4f}" if loss < 100 else "-"


def _over(ended: Ended, fresh: Ended) -> str:
    over = _loss(ended) / fresh.loss - 1
    return f"{100 * over:+.1f} %" if over < 10 else "does not train"
