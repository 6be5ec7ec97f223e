"""Unequal workers as processes of this machine: SHADHO's assignment against plain sharing (``bench_tune.py local``).

One worker has a core, eight share another one: each is stopped for all but a sixteenth of the time, so that what
computes takes sixteen times as long there. Trials are of two parts: those of ``network`` compute, and take what their
depth and width say; those of ``tables`` wait for data at a rate that no core changes. What they take is real and
measured, what they reach is the function of the configuration that the simulation has: the best is a network's.

Rules run by turns, for so many seconds each, in another order every time, and begin anew every time; the rates of
trials are compared turn by turn, so that other programs on the machine, which slow all, do not decide. The best losses
of the turns are compared with those of plain sharing by the two-sided rank test. ``cost`` keeps the mix of the parts
with ``least_share`` 1, and has half of it free with 0.5. A trial that is not over at the end of its turn counts for the
part of its predicted time that it ran.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import numpy as np

from heterps_compile.tuning.ask_tell import Fidelity
from heterps_compile.tuning.assignment import LEAST_SHARE, AssignedSearch, SearchSettings
from heterps_compile.tuning.compute_classes import ComputeClass, TrialCost
from heterps_compile.tuning.space import Config, Space

SLOWED, SLOWER, PERIOD_S = 8, 16, 0.08
WHOLE, PART = "core", "sixteenth of a core"
RULES = (("plain", 1.0), ("cost", 1.0), ("cost", LEAST_SHARE))
COMPUTES_S, WAITS_S = 0.1, 0.2
"""Of a trial in the mean, on a whole core."""

RankTest = Callable[[tuple[float, ...], tuple[float, ...]], float]
LossOf = Callable[[Config, Space, np.random.Generator], float]

_WORKER = """
import json, sys, time
def work(count):
    total = 0
    for i in range(count):
        total += i * i % 7
    return total
print("ready", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["wait_s"]:
        time.sleep(asked["wait_s"])
    work(asked["loops"])
    print(json.dumps({"number": asked["number"]}), flush=True)
"""


@dataclass(frozen=True)
class Worker:
    """A process that runs trials, and the class it is of."""

    process: subprocess.Popen[str]
    class_name: str

    def hear(self) -> str:
        if self.process.stdout is None:
            raise RuntimeError("the worker has no pipe")
        return self.process.stdout.readline()

    def send(self, number: int, loops: int, wait_s: float) -> None:
        if self.process.stdin is None:
            raise RuntimeError("the worker has no pipe")
        self.process.stdin.write(json.dumps({"number": number, "loops": loops, "wait_s": wait_s}) + "\n")
        self.process.stdin.flush()


@contextmanager
def workers() -> Iterator[list[Worker]]:
    """Start one worker on a core, and the slowed ones on another."""
    cores = sorted(os.sched_getaffinity(0))
    started, ends = [], threading.Event()
    for name in (WHOLE, *[PART] * SLOWED):
        process = subprocess.Popen(
            [sys.executable, "-c", _WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        os.sched_setaffinity(process.pid, {cores[0] if name == WHOLE else cores[-1]})
        started.append(Worker(process, name))
    for each in started:
        each.hear()
    slow = threading.Thread(target=_slow, args=([each.process for each in started[1:]], ends))
    slow.start()
    try:
        yield started
    finally:
        ends.set()
        slow.join()
        for each in started:
            each.process.kill()
            each.process.communicate()


def _slow(processes: list[subprocess.Popen[str]], ends: threading.Event) -> None:
    """Let one of the processes after another run for its part of every period."""
    for each in processes:
        each.send_signal(signal.SIGSTOP)
    while not ends.is_set():
        for each in processes:
            each.send_signal(signal.SIGCONT)
            time.sleep(PERIOD_S / SLOWER)
            each.send_signal(signal.SIGSTOP)
        time.sleep(PERIOD_S * (1 - len(processes) / SLOWER))
    for each in processes:
        each.send_signal(signal.SIGCONT)


def amount_s(config: Config) -> tuple[float, float]:
    """Return what a trial computes on a whole core, and what it waits, in seconds."""
    if config["model.kind"] == "tables":
        return 0.0, WAITS_S * (0.5 + float(config["model.kind.tables.rows"]))
    depth, width = (float(config[f"model.kind.network.{name}"]) for name in ("depth", "width"))
    return COMPUTES_S * (0.5 + depth) * (0.5 + width), 0.0


def predicted(config: Config, fidelity: float, of: ComputeClass) -> TrialCost:
    computes_s, waits_s = amount_s(config)
    return TrialCost(waits_s + computes_s * (1 if of.name == WHOLE else SLOWER))


def turn(
    rule: str,
    least_share: float,
    seed: int,
    seconds: float,
    space: Space,
    loss_of: LossOf,
    loops_a_s: float,
) -> tuple[float, float, float]:
    """Return trials a second, the best loss, and the share of the trials that compute."""
    classes = (ComputeClass(WHOLE, 1, 1e9, 0.0, float(SLOWER)), ComputeClass(PART, SLOWED, 1e9, 0.0, 1.0))
    search = AssignedSearch(
        SearchSettings(space, "random", Fidelity(1, 1), seed, rule, least_share), classes, predicted
    )
    noise, ended, kinds = np.random.default_rng([seed, 2]), 0.0, list[str]()
    with workers() as started, selectors.DefaultSelector() as ready:
        began_s = {}

        def start(worker: Worker) -> None:
            assigned = search.ask(worker.class_name)
            if assigned is None:
                raise RuntimeError("there is no budget")
            computes_s, waits_s = amount_s(assigned.config)
            began_s[assigned.number] = time.monotonic()
            worker.send(assigned.number, round(computes_s * loops_a_s), waits_s)

        for worker in started:
            ready.register(worker.process.stdout, selectors.EVENT_READ, worker)
        begin_s = time.monotonic()
        for worker in started:
            start(worker)
        while (left_s := begin_s + seconds - time.monotonic()) > 0:
            for key, _ in ready.select(left_s):
                number = json.loads(key.data.hear())["number"]
                assigned, took_s = search.open[number], time.monotonic() - began_s[number]
                search.tell(number, loss_of(assigned.config, space, noise), took_s)
                ended += 1
                kinds.append(str(assigned.config["model.kind"]))
                start(key.data)
        now_s = time.monotonic()
        ended += sum(min(1.0, (now_s - began_s[n]) / each.predicted_s) for n, each in search.open.items())
    if search.best is None:
        raise SystemExit(f"no trial ended in a turn of {seconds:g} s; give --turn more")
    return ended / seconds, search.best[1], kinds.count("network") / len(kinds)


def loops_of_a_second() -> float:
    """Return how much of its work a core does in a second of its own time."""
    total, began_s, loops = 0, time.process_time(), 2_000_000
    for i in range(loops):
        total += i * i % 7
    return loops / (time.process_time() - began_s)


def compare_local(seeds: range, seconds: float, space: Space, loss_of: LossOf, rank_test: RankTest) -> bool:
    loops_a_s, found = loops_of_a_second(), dict[tuple[str, float], list[tuple[float, float, float]]]()
    for seed in seeds:
        for at in range(len(RULES)):
            rule = RULES[(seed + at) % len(RULES)]
            found.setdefault(rule, []).append(turn(*rule, seed, seconds, space, loss_of, loops_a_s))
    print(
        f"{len(seeds)} turns of {seconds:g} s\n"
        f"{'rule':<8}{'least_share':>12}{'trials/h':>10}{'network':>9}{'best':>10}{'p':>7}{'over plain':>12}: "
        "least, most"
    )
    plain, is_worse, over = found[RULES[0]], False, 0.0
    for rule, least in RULES:
        results = found[rule, least]
        ratios = sorted(each[0] / of[0] for of, each in zip(plain, results, strict=True))
        rate, best, networks = (median(column) for column in zip(*results, strict=True))
        over, p = median(ratios), rank_test(tuple(each[1] for each in results), tuple(each[1] for each in plain))
        is_worse = p < 0.05 and best > median(each[1] for each in plain)
        print(
            f"{rule:<8}{least:>12}{rate * 3600:>10.0f}{networks:>9.2f}{best:>10.5f}{p:>7.3f}{over:>12.2f}: "
            f"{ratios[0]:.2f}, {ratios[-1]:.2f}"
        )
    told = "by default at least 1.5 times plain sharing's trials end, and no rank test finds their best losses worse"
    holds = over >= 1.5 and not is_worse
    print(told if holds else f"NOT SO: {told}")
    return holds
