"""The search methods on the model of the training day: AUC over time, as a picture (``bench_tune.py clicks``).

The model and the clicks are those of ``docs/training-day.md``, made smaller: ten fields of 500 ids in place of 5,000,
12,000 clicks to train on, 10,000 to choose a configuration by, 20,000 that no trial sees. A whole trial trains for
nine epochs in this process, on one thread, and goes on from the rung below; its learning rate, batch, optimiser,
weight decay, embedding and layers are searched. Every method gets the samples of so many whole trials, 60 unless told
otherwise; the last one to begin may go beyond. Time is processor time of the trials, so that neither a method's own
arithmetic nor another program on the machine counts.

What is drawn and printed is the best AUC of a trial so far, short ones too, on the 10,000 clicks, and the median of
the seeds where there are several, with p of the two-sided rank test against DEHB; "unseen" is that of the best trial on
the 20,000. ``--kept DIR`` keeps what every method came to with every seed, so that seeds run apart, told together.
"""

import argparse
import copy
import json
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from heterps_compile.report.pictures.curves import Curve, Plot, draw_curves
from heterps_compile.tuning.ask_tell import Fidelity
from heterps_compile.tuning.search_methods import METHODS, make_search
from heterps_compile.tuning.space import Config
from heterps_compile.tuning.space_file import parse_space

FIELDS, ROWS, NUMBERS = 10, 500, 4
SEEN, CHOSEN_BY, UNSEEN = 12_000, 10_000, 20_000
EPOCHS = 9
SPACE = """
[train]
lr = { float = [1e-4, 3e-1], log = true }
batch = { choice = [128, 256, 512, 1024] }
decay = { float = [1e-6, 1e-2], log = true }
[train.optimizer]
exclusive = true
adam = {}
[train.optimizer.sgd]
momentum = { float = [0.0, 0.95] }
[model]
embedding = { integer = [2, 16], log = true }
width = { integer = [16, 128], log = true }
dropout = { float = [0.0, 0.5] }
"""
SHARES = (0.1, 0.25, 0.5, 1.0)
Clicks = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class ClickModel(nn.Module):
    def __init__(self, embedding: int, width: int, dropout: float) -> None:
        super().__init__()
        self.rows = nn.Embedding(FIELDS * ROWS, embedding)
        self.first = nn.Linear(embedding * FIELDS + NUMBERS, width)
        self.dropout = nn.Dropout(dropout)
        self.second = nn.Linear(width, 32)
        self.last = nn.Linear(32, 1)
        self.register_buffer("offset", torch.arange(FIELDS) * ROWS)

    def forward(self, ids: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        rows = self.rows(ids + self.offset).flatten(1)
        hidden = self.dropout(self.first(torch.cat([rows, numbers], 1)).relu())
        return self.last(self.second(hidden).relu()).squeeze(1)


def clicks() -> Iterator[Clicks]:
    """Yield the clicks to train on, to choose by, and unseen ones: drawn as on the training day."""
    chance = np.random.default_rng(7)
    effect = chance.normal(0, 0.45, (FIELDS, ROWS))
    slope = chance.normal(0, 0.5, NUMBERS)
    for samples in (SEEN, CHOSEN_BY, UNSEEN):
        ids = (ROWS * chance.power(0.4, (samples, FIELDS))).astype(np.int64)
        numbers = chance.normal(size=(samples, NUMBERS))
        logit = effect[np.arange(FIELDS), ids].sum(1) + numbers @ slope - 1.2
        label = chance.random(samples) < 1 / (1 + np.exp(-logit))
        yield torch.from_numpy(ids), torch.from_numpy(numbers).float(), torch.from_numpy(label).float()


def auc(scores: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the area under the ROC curve, from mean ranks; 0.5 where a score is no number."""
    if not bool(torch.isfinite(scores).all()):
        return 0.5
    _, group, count = np.unique(scores.numpy(), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[group]
    ones = labels.numpy() > 0
    positive, negative = int(ones.sum()), int((~ones).sum())
    return float((ranks[ones].sum() - positive * (positive + 1) / 2) / (positive * negative))


@dataclass
class Training:
    """A model in training, which a longer trial goes on with."""

    config: Config
    model: ClickModel
    optimizer: torch.optim.Optimizer
    epochs: int = 0

    def go_on(self, epochs: int, seen: Clicks) -> None:
        batch = int(self.config["train.batch"])
        self.model.train()
        for epoch in range(self.epochs, epochs):
            order = torch.randperm(SEEN, generator=torch.Generator().manual_seed(epoch))
            for at in range(0, SEEN, batch):
                ids, numbers, label = (each[order[at : at + batch]] for each in seen)
                self.optimizer.zero_grad()
                functional.binary_cross_entropy_with_logits(self.model(ids, numbers), label).backward()
                self.optimizer.step()
        self.epochs = epochs

    def score(self, held: Clicks) -> float:
        self.model.eval()
        with torch.no_grad():
            return auc(self.model(held[0], held[1]), held[2])


def begin(config: Config) -> Training:
    torch.manual_seed(0)
    model = ClickModel(*(config[f"model.{name}"] for name in ("embedding", "width", "dropout")))
    given = {"lr": config["train.lr"], "weight_decay": config["train.decay"]}
    if config["train.optimizer"] == "sgd":
        momentum = config["train.optimizer.sgd.momentum"]
        return Training(config, model, torch.optim.SGD(model.parameters(), momentum=momentum, **given))
    return Training(config, model, torch.optim.Adam(model.parameters(), **given))


@dataclass
class Search:
    """A search of one method and seed.

    Attributes:
        method: Its name.
        seed: Of it.
        times: Processor time in seconds, samples trained on, and the AUC, whenever there is a better one.
        unseen: The AUC of the last of these on the unseen clicks.
        time_s: Processor time in all.
        trials: How many ended.
    """

    method: str
    seed: int
    times: list[tuple[float, int, float]] = field(default_factory=list)
    unseen: float = 0.5
    time_s: float = 0.0
    trials: int = 0


def search(method: str, seed: int, whole_trials: int, data: Sequence[Clicks]) -> Search:
    seen, chosen_by, unseen = data
    space = parse_space(tomllib.loads(SPACE))
    asked = make_search(method, space, Fidelity(1, EPOCHS, unit="epochs"), seed)
    found, kept, samples, best = Search(method, seed), dict[int, Training](), 0, 0.0
    while samples < whole_trials * EPOCHS * SEEN:
        trial = asked.ask()
        began = time.process_time()
        training = begin(trial.config) if trial.continues is None else copy.deepcopy(kept[trial.continues])
        samples += (round(trial.fidelity) - training.epochs) * SEEN
        training.go_on(round(trial.fidelity), seen)
        reached = training.score(chosen_by)
        found.time_s += time.process_time() - began
        found.trials += 1
        kept[trial.number] = training
        asked.tell(trial.number, -reached)
        if reached > best:
            best = reached
            found.times.append((found.time_s, samples, reached))
            found.unseen = training.score(unseen)
    return found


def at(found: Search, key: int, where: float) -> float:
    """Return the AUC once so much time (key 0) or so many samples (key 1) are spent; 0.5 before there is one."""
    return next((each[2] for each in reversed(found.times) if each[key] <= where), 0.5)


def picture_of(searches: Sequence[Search], whole_trials: int) -> Plot:
    curves, lowest = [], 1.0
    for index, method in reversed(list(enumerate(METHODS))):
        own = [each for each in searches if each.method == method]
        end = max(each.time_s for each in own)
        moments = sorted({time_s for each in own for time_s, _, _ in each.times if time_s <= end} | {end})
        points = [(moment, median(at(each, 0, moment) for each in own)) for moment in moments]
        points = [point for point in points if point[1] > 0.5]
        lowest = min(lowest, median(at(each, 1, SHARES[0] * whole_trials * EPOCHS * SEEN) for each in own))
        last = f"{method}: {median(each.times[-1][2] for each in own):.4f}"
        curves.append(Curve(tuple(points), f"l{index}", last, is_stepped=True))
    best = max(point[1] for curve in curves for point in curve.points)
    seeds = len({each.seed for each in searches})
    told = "one seed" if seeds == 1 else f"medians of {seeds} seeds"
    return Plot(
        "auc-over-time",
        "AUC over time, by method",
        "the best AUC so far over processor time of the trials in seconds",
        tuple(curves),
        up=(lowest, best),
        about=f"the budget of {whole_trials} whole trials of {EPOCHS} epochs, {told}",
        across=(0.0, max(point[0] for curve in curves for point in curve.points)),
    )


def searched(folder: Path | None, method: str, seed: int, whole_trials: int, data: Sequence[Clicks]) -> Search:
    """Return what a method comes to with a seed, out of a folder where it was kept."""
    if folder is None:
        return search(method, seed, whole_trials, data)
    file = folder / f"{method}-{whole_trials}-{seed}.json"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(search(method, seed, whole_trials, data))))
    read = json.loads(file.read_text())
    return Search(**{**read, "times": [tuple(each) for each in read["times"]]})


RankTest = Callable[[tuple[float, ...], tuple[float, ...]], float]
COMPARED_WITH = "dehb"


def compare_clicks(given: argparse.Namespace, rank_test: RankTest) -> bool:
    torch.set_num_threads(1)
    whole_trials, seeds = given.budget or 60, range(given.first_seed, given.first_seed + given.seeds)
    data, searches = tuple(clicks()), list[Search]()
    budget = whole_trials * EPOCHS * SEEN
    heads = "".join(f"{f'{share:.0%}':>9}" for share in SHARES)
    print(
        f"the best AUC after shares of the budget: {whole_trials} whole trials, {budget:,} samples; medians of "
        f"{len(seeds)} seeds, p against {COMPARED_WITH}\n"
        f"{'method':<12}{heads}{'p':>8}{'unseen':>9}{'p':>8}{'trials':>8}{'s':>7}"
    )
    found = {method: [searched(given.kept, method, seed, whole_trials, data) for seed in seeds] for method in METHODS}
    ends = {method: tuple(each.times[-1][2] for each in own) for method, own in found.items()}
    unseen = {method: tuple(each.unseen for each in own) for method, own in found.items()}
    for method, own in found.items():
        searches += own
        reached = "".join(f"{median(at(each, 1, share * budget * 1.01) for each in own):>9.4f}" for share in SHARES)
        p, p_unseen = (rank_test(of[COMPARED_WITH], of[method]) for of in (ends, unseen))
        print(
            f"{method:<12}{reached}{p:>8.3f}{median(unseen[method]):>9.4f}{p_unseen:>8.3f}"
            f"{median(each.trials for each in own):>8.0f}{median(each.time_s for each in own):>7.1f}"
        )
    file = Path(given.picture)
    file.write_text(draw_curves(picture_of(searches, whole_trials)).svg, "utf-8")
    print(f"drawn in {file}")
    return True
