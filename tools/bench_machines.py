"""What choosing machines is worth: `python tools/bench_machines.py [--all] [--only choice,speed]`.

For the four CTR models of the HeterPS paper and transformers with random weights, the choice of `heterps-compile
machines` over the built-in catalogue stands beside what people take without it, under deadlines and budgets:

    cheapest   the instance of the lowest price an hour that the model runs on
    fastest    the GPU of the highest rate in float32, its cheapest instance
    common     the GPU that most offers have, its cheapest instance

Each baseline gets the number of machines, up to the same limit, that is best for it, and the same search for its plan,
so that the choice of the machine alone is compared. All times are predictions from data sheets, none is measured.

`speed` times the search over 3,000 made-up offers, 16 machines at the most, by a deadline, within a budget, with spot
and with a range of batches, in CPU seconds of this process; their ratios are what counts. Prints Markdown.
"""

import argparse
import random
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from heterps_compile.api import read_model
from heterps_compile.cost.precision import FULL, PRECISIONS
from heterps_compile.errors import InfeasibleError
from heterps_compile.examples import EXAMPLES
from heterps_compile.ir.graph import Graph
from heterps_compile.machines import Goal
from heterps_compile.machines.machine_set import MachineSet
from heterps_compile.machines.option import outlook_of
from heterps_compile.machines.search import EFFORT, Answer, SearchEffort, choose_machines
from heterps_compile.machines.step_times import StepTimes
from heterps_compile.offers import Catalogue, Offer, Rental, read_catalogue
from heterps_compile.offers.as_device import data_sheet
from heterps_compile.plan.request import make_request

MACHINES = 8
SAMPLES = 1e9
DEADLINES = (2.0, 10.0)
"""Times the time of the fastest set that was found."""

BUDGETS = (1.5, 4.0)
"""Times the money of the cheapest set that was found."""

FEW = SearchEffort(front=12, likely=8, bound=6, ruled_out=6)
"""How many sets plans are searched for in a choice of the tables: fewer than the command does."""

BASELINES = ("cheapest", "fastest", "common")
QUICK = ("CTRDNN", "MATCHNET", "2EMB", "NCE", "BERT base", "GPT-2")
OFFERS, REGIONS = 3000, 30


@dataclass(frozen=True)
class Model:
    """A model to train.

    Attributes:
        make: Gives it and what it is called with.
        batch: Samples in a step.
    """

    make: Callable[[], tuple[Any, dict[str, Any]]]
    batch: int


def _example(name: str) -> Callable[[], tuple[Any, dict[str, Any]]]:
    def make() -> tuple[Any, dict[str, Any]]:
        model, inputs = EXAMPLES[name]()
        return model, {"example_inputs": inputs}

    return make


def _transformer(name: str, kind: str = "text", **settings: Any) -> Callable[[], tuple[Any, dict[str, Any]]]:
    """Return what builds a transformer without memory for its weights."""

    def make() -> tuple[Any, dict[str, Any]]:
        import transformers  # noqa: PLC0415 - seconds, and only here

        made: Any = getattr(transformers, name)
        with torch.device("meta"):
            model = made(made.config_class(**settings)).train()
            if kind == "image":
                call = {"pixel_values": torch.ones(8, 3, 224, 224)}
            else:
                call = {"input_ids": torch.ones(8, 128, dtype=torch.long)}
            if kind == "both":
                call["decoder_input_ids"] = torch.ones(8, 128, dtype=torch.long)
        return model, {"example_kwargs": call}

    return make


MODELS = {
    "CTRDNN": Model(_example("ctrdnn"), 4096),
    "MATCHNET": Model(_example("matchnet"), 4096),
    "2EMB": Model(_example("2emb"), 4096),
    "NCE": Model(_example("nce"), 4096),
    "BERT base": Model(_transformer("BertModel"), 256),
    "GPT-2": Model(_transformer("GPT2LMHeadModel", use_cache=False), 256),
    "DistilBERT": Model(_transformer("DistilBertModel"), 256),
    "ViT base": Model(_transformer("ViTModel", "image"), 256),
    "T5 small": Model(_transformer("T5ForConditionalGeneration", "both", d_ff=2048, use_cache=False), 256),
    "Llama, 4 layers of 2048": Model(
        _transformer(
            "LlamaForCausalLM", num_hidden_layers=4, hidden_size=2048, intermediate_size=5632,
            num_attention_heads=32, num_key_value_heads=4, use_cache=False,
        ),
        256,
    ),
}  # fmt: skip


def times_of(model: Model) -> StepTimes:
    """Return steps of a model, which is built and read once a batch."""
    made, call = model.make()

    def read(batch: int) -> Graph:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a library that we only read
            return read_model(made, batch=batch, **call)

    return StepTimes(read, make_request("USD", mode="training"))


@dataclass(frozen=True)
class Run:
    """Time and money of a run, in the median and in nine of ten."""

    time_s: float
    money: float
    most_s: float
    most_money: float


def runs_on(offer: Offer, times: StepTimes, batch: int) -> list[Run]:
    """Return what every number of machines of an offer comes to; those left out on which no plan was found."""
    goal = Goal(SAMPLES, (batch,), deadline_s=1e12, most_machines=MACHINES)
    found = []
    for count in range(1, MACHINES + 1):
        machines = MachineSet(((Rental(offer), count),))
        step = times.searched(machines, batch)
        if not isinstance(step, str):
            used, step = step.on_what_it_uses(machines)
            look = outlook_of(used, step.step_s, batch, goal)
            found.append(Run(look.median_s, look.median_money, look.most_s, look.most_money))
    return found


def baselines(catalogue: Catalogue, times: StepTimes, batch: int) -> dict[str, tuple[Offer, list[Run]]]:
    """Return what people take without a search, with what each number of these machines comes to."""

    def first_that_runs(offers: Sequence[Offer]) -> tuple[Offer, list[Run]]:
        for offer in sorted(offers, key=lambda each: each.price_per_hour):
            if runs := runs_on(offer, times, batch):
                return offer, runs
        raise SystemExit("the model runs on none of the offers")

    with_gpu = [offer for offer in catalogue.offers if offer.gpu]
    rate = {offer.gpu: data_sheet(offer.gpu).flops_per_s(PRECISIONS[FULL]) for offer in with_gpu}
    fastest = max(rate, key=lambda gpu: (rate[gpu], gpu))
    common = Counter(offer.gpu for offer in with_gpu).most_common(1)[0][0]
    return {
        "cheapest": first_that_runs(catalogue.offers),
        "fastest": first_that_runs([offer for offer in with_gpu if offer.gpu == fastest]),
        "common": first_that_runs([offer for offer in with_gpu if offer.gpu == common]),
    }


def print_choice(names: Sequence[str]) -> Iterator[str]:
    """Yield the tables."""
    catalogue = read_catalogue()
    costs: dict[str, list[float]] = {name: [] for name in BASELINES}
    rates: dict[str, list[float]] = {name: [] for name in BASELINES}
    missed: Counter[str] = Counter()
    asked = Counter[str]()
    yield "| model | limit | chosen | " + " | ".join(f"{name}: cost or time" for name in BASELINES) + " |"
    yield "|---|---|---|" + "---|" * len(BASELINES)
    for name in names:
        model = MODELS[name]
        times = times_of(model)
        others = baselines(catalogue, times, model.batch)
        loose = Goal(SAMPLES, (model.batch,), deadline_s=1e12, most_machines=MACHINES)
        front = choose_machines(catalogue, times, loose, FEW).front
        quickest_s, least = front[0].outlook.most_s, front[-1].outlook.most_money
        goals = [("deadline", replace(loose, deadline_s=quickest_s * part)) for part in DEADLINES]
        goals += [("budget", replace(loose, deadline_s=None, budget=least * part)) for part in BUDGETS]
        for kind, goal in goals:
            best = choose_machines(catalogue, times, goal, FEW).best
            cells, by_money = [], goal.minimises_money
            for other, (_, runs) in others.items():
                kept = [
                    run.money if by_money else run.time_s
                    for run in runs
                    if (run.most_s <= (goal.deadline_s or 1e300)) and (run.most_money <= (goal.budget or 1e300))
                ]
                asked[other] += 1
                missed[other] += not kept
                ratio = min(kept) / best.outlook.value(goal) if kept else None
                if ratio is not None:
                    (costs if by_money else rates)[other].append(ratio)
                cells.append("misses it" if ratio is None else f"{ratio:.2f}")
            part = goal.deadline_s / quickest_s if goal.deadline_s else (goal.budget or 0.0) / least
            chosen = " + ".join(f"{count} x {rental.offer.instance}" for rental, count in best.machines.parts)
            yield f"| {name} | {kind} {part:.3g} x the least | {chosen} | " + " | ".join(cells) + " |"
    yield ""
    yield "| baseline | its cost over the choice's: mean, worst | its time over the choice's: mean, worst | misses |"
    yield "|---|---|---|---|"
    for other in BASELINES:
        told = [
            f"{statistics.fmean(ratios):.2f}, {max(ratios):.2f}" if ratios else "-"
            for ratios in (costs[other], rates[other])
        ]
        yield f"| {other} | {told[0]} | {told[1]} | {missed[other]} of {asked[other]} |"


def many_offers() -> Catalogue:
    """Return 3,000 offers: those of the built-in catalogue in made-up regions at made-up prices, all as spot too."""
    built_in, draw, found = read_catalogue().offers, random.Random(0), []  # noqa: S311 - prices, no secrets
    for number in range(OFFERS):
        offer = built_in[number % len(built_in)]
        price = offer.price_per_hour * draw.uniform(0.8, 1.3)
        found.append(
            replace(
                offer, region=f"r{number % REGIONS}", instance=f"{offer.instance}-{number}", price_per_hour=price,
                spot_per_hour=price * draw.uniform(0.25, 0.7),
            )
        )  # fmt: skip
    return Catalogue(tuple(found), "made-up offers")


def _met(catalogue: Catalogue, times: StepTimes, goal: Goal) -> tuple[Goal, Answer, float]:
    """Return a goal with its deadline four times as long until it is met, the answer, and its CPU seconds."""
    while True:
        before = time.process_time()
        try:
            answer = choose_machines(catalogue, times, goal, EFFORT)
        except InfeasibleError:
            goal = replace(goal, deadline_s=4 * (goal.deadline_s or 1.0))
            continue
        return goal, answer, time.process_time() - before


def print_speed(names: Sequence[str]) -> Iterator[str]:
    """Yield what the search over many offers takes, each time with a model that was only read."""
    catalogue = many_offers()
    yield "| model | asked | CPU s | over the first | sets | searched or ruled out | gap | of one kind |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in names:
        model = MODELS[name]
        batch, first_s = (model.batch,), 0.0
        deadline = Goal(SAMPLES, batch, deadline_s=86400.0, most_machines=16)
        times = times_of(model)
        times.is_divisible(model.batch)  # reads the model
        deadline, answer, taken_s = _met(catalogue, times, deadline)
        budget = replace(deadline, deadline_s=None, budget=2 * answer.best.outlook.most_money)
        cases = {
            "deadline": deadline,
            "deadline, spot": replace(deadline, spot=True),
            "budget": budget,
            "budget, spot": replace(budget, spot=True),
            "deadline, 3 batches": replace(deadline, batches=(model.batch // 2, model.batch, 2 * model.batch)),
        }
        for asked, goal in cases.items():
            if goal is not deadline:
                times = times_of(model)
                for each in goal.batches:
                    times.is_divisible(each)
                _, answer, taken_s = _met(catalogue, times, goal)
            first_s = first_s or taken_s
            told = f"{answer.looked_at:,} | {answer.searched} | {answer.gap:.1%} | {answer.gap_of_one_kind:.1%}"
            yield f"| {name} | {asked} | {taken_s:.1f} | {taken_s / first_s:.1f} | {told} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--all", action="store_true", help="all models")
    parser.add_argument("--only", default="choice,speed", help="choice, speed, or both with a comma")
    parser.add_argument("--models", default="", help="names with semicolons, in place of the quick ones")
    given = parser.parse_args()
    names = tuple(MODELS) if given.all else QUICK
    if given.models:
        names = tuple(name for name in MODELS if name in given.models.split(";"))
    if "choice" in given.only.split(","):
        for line in print_choice(names):
            print(line, flush=True)
    if "speed" in given.only.split(","):
        print()
        for line in print_speed(names if given.models else ("CTRDNN", "BERT base")):
            print(line, flush=True)


if __name__ == "__main__":
    main()
