"""Synchronisation beside the training and in its foreground, with processes of the runtime: `bench_sync.py --beside`.

Two processes hold the runtime's own rules, `local(steps=5)` in the foreground and `shadow(every=N, rule=average)`, with
shared memory between them. A step is a sleep of 10 ms, as one that computes elsewhere; what passes through the link
that weights take arrives 40 ms later. So the times hang little on what else the machine does, and the rules do all they
do in a run.
"""

import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from clock_ranks import first
from sync_laws import Line

STEP_S, SYNC_S, EVERY, STEPS, ELEMENTS = 0.010, 0.040, 5, 200, 100_000
PERIOD = 20
TIMEOUT_S = 120.0
RULES = (f"local(steps={EVERY})", *(f"shadow(every={every}, rule=average)" for every in (20, EVERY, 2, 1)))


@dataclass(frozen=True, slots=True)
class Trained:
    """What the slower of both processes took.

    Attributes:
        step_s: Of a step, in the mean over 20 that follow one another, of all such the median.
        syncs: Whose weights were averaged, in all.
    """

    step_s: float
    syncs: int


class LateLink:
    """The ranks of a group, whose sums arrive late; it counts them."""

    def __init__(self, group: Any, late_s: float) -> None:
        self._group, self._late_s = group, late_s
        self.sums = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def sum(self, tensor: Any) -> "LateWork":
        self.sums += 1
        return LateWork(self._group.sum(tensor), time.perf_counter() + self._late_s)


@dataclass(frozen=True, slots=True)
class LateWork:
    """A sum that is on its way."""

    work: Any
    arrives_s: float

    def wait(self) -> None:
        self.work.wait()
        time.sleep(max(0.0, self.arrives_s - time.perf_counter()))


def beside(*, realtime: bool = False) -> Iterator[str | Line]:
    """Yield a table of what steps take, and the ratios that are wanted of them."""
    with first(realtime):
        found = {rule: _both(rule) for rule in RULES}
    base = found[RULES[0]]
    yield (
        f"two processes, steps of {1e3 * STEP_S:g} ms, sums of weights that take {1e3 * SYNC_S:g} ms, {STEPS} steps of "
        "every rule"
    )
    yield ""
    yield "| rule | step | foreground over it | averages |"
    yield "|---|---|---|---|"
    for rule, one in found.items():
        yield f"| `{rule}` | {1e3 * one.step_s:.2f} ms | {base.step_s / one.step_s:.3f} | {one.syncs} |"
    yield ""
    shadows = {rule: found[rule] for rule in RULES[1:]}
    usual = shadows[f"shadow(every={EVERY}, rule=average)"]
    wanted = 1 + SYNC_S / (EVERY * STEP_S)
    what = f"foreground over shadow, {1e3 * STEP_S:g} ms, {1e3 * SYNC_S:g} ms, every {EVERY}, in processes"
    yield Line.near("shadow", what, wanted, base.step_s / usual.step_s, 0.05 * wanted, "1 + t_s / (k t_c)")
    seldom, always = (shadows[f"shadow(every={every}, rule=average)"].step_s for every in (20, 1))
    ratio, what = always / seldom, "step at every 1 over every 20, in processes"
    yield Line("shadow", what, "<= 1.05", f"{ratio:.3f}", ratio <= 1.05, "training waits for no average")


def _both(rule: str) -> Trained:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        queue = context.Queue()
        processes = [context.Process(target=_train, args=(rank, folder, rule, queue)) for rank in range(2)]
        for process in processes:
            process.start()
        try:
            told = [queue.get(timeout=TIMEOUT_S) for _ in processes]
        finally:
            for process in processes:
                process.join(5)
                process.kill()
                process.join()
    return Trained(max(step_s for step_s, _ in told), max(syncs for _, syncs in told))


def _train(rank: int, folder: str, rule: str, queue: Any) -> None:
    import torch  # noqa: PLC0415 - in the ranks alone

    from heterps_compile.runtime.launch.run_store import folder_store  # noqa: PLC0415
    from heterps_compile.runtime.pipeline.world import join_world, leave_world, make_group  # noqa: PLC0415
    from heterps_compile.runtime.sync.contract import Shared  # noqa: PLC0415
    from heterps_compile.runtime.sync.local_steps import LocalSteps  # noqa: PLC0415
    from heterps_compile.runtime.sync.shadow import Shadow  # noqa: PLC0415
    from heterps_compile.sync_rules.assignment import parse_rule  # noqa: PLC0415

    torch.set_num_threads(1)
    join_world(folder_store(Path(folder)), rank, 2)
    weights, ready = LateLink(make_group((0, 1), has_thread=True), SYNC_S), make_group((0, 1), has_thread=True)
    parameters = {"w": torch.nn.Parameter(torch.zeros(ELEMENTS))}
    shared = Shared(weights, rank, parameters, 0.5, more_groups=lambda: (weights, ready))
    asked = parse_rule(rule)
    agreeing = Shadow(shared, asked) if asked.name == "shadow" else LocalSteps(shared, asked)
    ready.sum(torch.zeros(1)).wait()
    times_s = [time.perf_counter()]
    for step in range(STEPS):
        time.sleep(STEP_S)
        agreeing.before_step(step)
        with torch.no_grad():
            parameters["w"].add_(0.01 * (rank + 1))
        agreeing.after_step(step, is_skipped=False)
        times_s.append(time.perf_counter())
    step_s = median(times_s[at + PERIOD] - times_s[at] for at in range(STEPS - PERIOD + 1)) / PERIOD
    agreeing.close()
    queue.put((step_s, weights.sums))
    queue.close()
    queue.join_thread()
    leave_world()
