"""What minimising the step gains: the step of the steady state's plan over that of the plan found for steps.

``python tools/bench_step.py [MODEL ...]`` plans the example models, a ResNet-50 and a GPT-2 of four blocks for training
in both readings and prints a table of ratios: of the step's value, by the objective, and of the processor's time that
the two searches took. A ratio above 1 says how many times dearer, or slower, the steady state's plan is with one batch
alone. Beside it stands what is proven: the bound of the steady state, and that of the step, over the value. The last
line has the median gaps of both, of the plans that the steady state leaves open.

Left out: running the plans.
"""

import argparse
from statistics import median
from time import process_time
from typing import Any

import torch
from bench_backends import gpt2, resnet50

from heterps_compile.api import open_draft
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.examples import EXAMPLES
from heterps_compile.passes.drafts import Posed, Scheduled
from heterps_compile.passes.pipeline import run_to
from heterps_compile.plan.request import READINGS

SMALL, LARGE = (4096, 65536), (64, 256)
ASKED: dict[str, dict[str, Any]] = {"cost": {}, "throughput": {"budget": "20 USD/h"}}
CLOSED = 1e-6  # a gap that is none
FLOOR = 1000.0  # samples/s, for the cost of the large models
MODELS = (*EXAMPLES, "resnet50", "gpt2")


def asked_of(name: str) -> dict[str, dict[str, Any]]:
    """Return what is asked of a model, by words."""
    return ASKED if name in EXAMPLES else ASKED | {"cost at a floor": {"objective": "cost", "min_throughput": FLOOR}}


def made(name: str, batch: int) -> tuple[Any, Any]:
    """Return a model and inputs of a batch, or of any where the batch is named when it is read."""
    if name in EXAMPLES:
        return EXAMPLES[name](batch=batch)
    torch.manual_seed(0)
    model, inputs, _ = {"resnet50": resnet50, "gpt2": gpt2}[name]()
    return model, inputs


def planned(name: str, batch: int, words: str, reading: str) -> tuple[Scheduled, float]:
    """Return the plan of a model in a reading, and the seconds of the processor that its search took."""
    model, inputs = made(name, batch)
    asked = {"objective": words, "mode": "training", "reading": reading, "batch": batch} | asked_of(name)[words]
    posed = run_to(open_draft(model, inputs, **asked), Posed)
    began_s = process_time()
    return run_to(posed, Scheduled), process_time() - began_s


def value_of_step(draft: Scheduled) -> float:
    """Return the objective with the simulated step in the place of the steady state's batch."""
    paid, step_s = sum(stage.price_per_hour for stage in draft.stages), draft.schedule.step_s
    value = OBJECTIVES[draft.problem.objective].paid(paid, draft.graph.batch / step_s)
    return step_s if value is None else value


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}")
    wanted = parser.parse_args().models or MODELS
    print(
        "| model | batch | objective | steady state's plan over the step's | steady state's bound over value | "
        "bound over value | search's processor time, ratio |"
    )
    print("|---|---:|---|---:|---:|---:|---:|")
    gaps: list[tuple[float, float]] = []
    for name in wanted:
        for batch in SMALL if name in EXAMPLES else LARGE:
            for words in asked_of(name):
                found = {reading: planned(name, batch, words, reading) for reading in READINGS}
                (steady, steady_s), (step, step_s) = (found[reading] for reading in READINGS)
                value = value_of_step(step)
                ratio, of_steady, own = (
                    each / value for each in (value_of_step(steady), step.search.steady_bound, step.search.bound)
                )
                took, floor = step_s / steady_s, steady.problem.min_throughput
                gain = "misses the floor" if steady.graph.batch / steady.schedule.step_s < floor else f"{ratio:.2f}"
                gaps.append((max(0.0, 1 - of_steady), max(0.0, 1 - own)))
                print(
                    f"| {name} | {batch:,} | {words} | {gain} | {of_steady:.3f} | {own:.3f} | {took:.1f} |",
                    flush=True,
                )
    still = [gap for gap in gaps if gap[0] > CLOSED]
    if still:
        before, after = (median(each) for each in zip(*still, strict=True))
        shown = f"median gap {before:.1%}, by the step's bound {after:.1%}"
        print(f"{len(still)} plans that the steady state leaves open: {shown}")


if __name__ == "__main__":
    main()
