"""Searches that never ran: journals of simulated trials, for what shows them."""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from heterps_compile.tuning.ask_tell import Trial
from heterps_compile.tuning.compute_classes import ComputeClass
from heterps_compile.tuning.journal import Asked, Ended, Event, Failed, Reported, Resumed, Started, Told
from heterps_compile.tuning.search_methods import make_search
from heterps_compile.tuning.search_record import SearchRecord
from heterps_compile.tuning.search_state import SearchState, state_of
from heterps_compile.tuning.space import Config
from heterps_compile.tuning.space_file import space_of_text
from heterps_compile.tuning.subspaces import Subspace, split_space

SPACE = """
[train]
lr = { float = [1e-4, 1e-1], log = true }
batch = { choice = [256, 512, 1024, 2048] }
decay = { float = [0.0, 0.1] }
epochs = 3
[train.optimizer]
exclusive = true
adam = {}
[train.optimizer.sgd]
momentum = { float = [0.0, 0.99] }
[model]
depth = { integer = [1, 6] }
activation = { choice = ["relu", "gelu", "tanh"] }
[plan]
micro_batches = { choice = [1, 2, 4, 8] }
"""
CLASSES = (
    ComputeClass("gpu", 2, 16e9, 2.42, 14e12, 1),
    ComputeClass("cpu-core", 4, 4e9, 0.04, 5e10, 1),
)
RECORD = SearchRecord(
    space_name="space.toml",
    space_text=SPACE,
    method="hyperband",
    metric="auc",
    is_maximised=True,
    least=1.0,
    most=9.0,
    unit="epochs",
    eta=3,
    seed=0,
    trials=60,
    rule="cost",
    classes=CLASSES,
    parts=("train.optimizer = adam", "train.optimizer = sgd"),
    budget=20.0,
    currency="USD",
    time_limit_s=None,
    retries=1,
    engine="local",
    arguments={"train": "train.py", "model": "model.py", "data": "clicks.parquet"},
    started_at="2026-11-24T05:00:00+00:00",
)
HOSTILE = (
    "</style><script>document.title='broken'</script>",
    '"><img src=x onerror="document.title=\'broken\'">',
    "two\nlines\r\x00\x1b[31m",
    "\u202eright to left",
    "{{ 7 * 7 }}{% raw %}",
    "' onfocus='document.title=1' x='",
    "[bold]x[/bold] " + "y" * 1_900,
)


def subspace_of(parts: tuple[Subspace, ...], config: Config) -> int:
    """Return the index of the part that a configuration is of."""
    for index, part in enumerate(parts):
        own = part.space.by_name
        if config.keys() <= own.keys() and all(own[name].accepts(value) for name, value in config.items()):
            return index
    raise AssertionError("the configuration is of no part of the space")


def auc_of(config: Config, fidelity: float) -> float:
    """Return a made-up result: the learning rate tells the most of it, depth a little, the rest nothing."""
    away = math.log10(float(config["train.lr"])) + 2.5 if "train.lr" in config else 0.0
    depth = abs(float(config.get("model.depth", 3)) - 4)
    return 0.85 - 0.03 * away**2 - 0.006 * depth - 0.08 / fidelity


@dataclass
class Simulated:
    """A search whose trials take made-up times and reach made-up values.

    Attributes:
        record: The search.
        value: The metric of a configuration at a length.
        fails: Why an attempt at a trial fails; "" where it does not.
        seed: Of times and configurations.
    """

    record: SearchRecord = RECORD
    value: Callable[[Config, float], float] = auc_of
    fails: Callable[[int, int], str] = lambda _trial, _attempt: ""
    seed: int = 0
    events: list[Event] = field(default_factory=list)
    now_s: float = 0.0
    ended: int = 0

    def __post_init__(self) -> None:
        space = space_of_text(self.record.space_name, self.record.space_text)
        self.parts = split_space(space)
        self.method = make_search(self.record.method, space, self.record.fidelity, self.seed)
        self.random = np.random.default_rng(self.seed)
        self.free = [(of, worker) for of in self.record.classes for worker in of.worker_names]
        self.running: list[tuple[float, int, int, float, ComputeClass, str]] = []
        self.trials: dict[int, Trial] = {}

    def ask(self) -> None:
        """Ask for trials as long as there are free workers."""
        while self.free and len(self.trials) < self.record.trials:
            of, worker = self.free.pop(0)
            trial = self.method.ask()
            self.trials[trial.number] = trial
            asked = Asked(
                at_s=self.now_s,
                trial=trial.number,
                part=subspace_of(self.parts, trial.config),
                class_name=of.name,
                config=dict(trial.config),
                fidelity=trial.fidelity,
                continues=trial.continues,
                predicted_s=30.0,
            )
            self.events.append(asked)
            self.start(trial.number, 0, of, worker)

    def start(self, number: int, attempt: int, of: ComputeClass, worker: str) -> None:
        """Begin an attempt; a worker of the first class is five times as fast as others."""
        self.events.append(Started(at_s=self.now_s, trial=number, attempt=attempt, worker=worker))
        speed = 10.0 if of is self.record.classes[0] else 2.0
        own = self.trials[number].fidelity - self.before(number)
        took = own * 60.0 / speed * float(np.exp(0.2 * self.random.normal()))
        heapq.heappush(self.running, (self.now_s + took, number, attempt, took, of, worker))

    def before(self, number: int) -> float:
        """Return how far a trial had trained when it began."""
        continues = self.trials[number].continues
        return 0.0 if continues is None else self.trials[continues].fidelity

    def end_one(self) -> None:
        """Let the attempt end that ends first; one that fails is tried again, as often as the search retries."""
        self.now_s, number, attempt, _, of, worker = heapq.heappop(self.running)
        reason = self.fails(number, attempt)
        if reason:
            is_left = attempt >= self.record.retries
            self.events.append(Failed(at_s=self.now_s, trial=number, reason=reason, is_left=is_left))
            if not is_left:
                self.start(number, attempt + 1, of, worker)
                return
            self.method.tell_failed(number)
        else:
            trial = self.trials[number]
            for to in np.arange(self.before(number) + 1, trial.fidelity).tolist():
                reached = self.value(trial.config, to)
                self.events.append(Reported(at_s=self.now_s, trial=number, fidelity=to, value=reached))
            reached = self.value(trial.config, trial.fidelity)
            self.events.append(
                Told(at_s=self.now_s, trial=number, value=reached, checkpoint=f"trials/{number}/checkpoint")
            )
            self.method.tell(number, self.record.loss_of(reached))
        self.free.append((of, worker))
        self.ended += 1

    def resume(self) -> None:
        """Let the process of the search die; another one starts again what ran."""
        self.events.append(Resumed(at_s=self.now_s, trials=self.record.trials))
        cut, self.running = self.running, []
        for _, number, attempt, _, of, worker in cut:
            self.start(number, attempt + 1, of, worker)

    def run(self, *, stop_after: int | None = None, resumes_at: int | None = None, ends: str | None = None) -> None:
        """Run all trials.

        Args:
            stop_after: The journal breaks off once so many trials ended, while others run.
            resumes_at: The process dies once so many trials ended.
            ends: Why the search ended; None for one that is not over.
        """
        self.ask()
        while self.running and self.ended != stop_after:
            before = self.ended
            self.end_one()
            if self.ended == resumes_at and before != self.ended:
                self.resume()
            if self.ended != stop_after:
                self.ask()
        if ends is not None:
            self.events.append(Ended(at_s=self.now_s, why=ends))


def searched_state(record: SearchRecord = RECORD, **how: Any) -> SearchState:
    """Return how such a search stands; ``how`` are attributes of ``Simulated`` and arguments of its ``run``."""
    run = {name: how.pop(name) for name in ("stop_after", "resumes_at", "ends") if name in how}
    simulated = Simulated(record, **how)
    simulated.run(**run)
    return state_of(record, simulated.events, folder="RUN")


def first_trial_runs(record: SearchRecord = RECORD) -> SearchState:
    """Return a search whose first trial has just begun."""
    simulated = Simulated(record)
    simulated.ask()
    return state_of(record, simulated.events[:2], folder="RUN")
