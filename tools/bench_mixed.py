"""What the search over problem files finds beside published plans: `python tools/bench_mixed.py [--data DIR]`.

Sailor's measured plans of OPT-350 on GH200 (`../shared/data/sailor`, converted by `tools/truth/sailor.py`): the units
of each are given to the search, with the throughput of training as the objective, and the predicted step of its plan is
held against that of the listed one. Then inference of the same model on a few V100 and A100, with stages of one device
type and of several (`--mixed-stages`). It prints Markdown tables; some minutes.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from truth.sailor import Sailor

from heterps_compile.passes.place_given import place_given
from heterps_compile.passes.rivals_of_given import PlacedGiven
from heterps_compile.plan.request import make_request
from heterps_compile.prediction.choose_micro_batch import choose_of_rivals
from heterps_compile.prediction.predict_step import Prediction, predict_step
from heterps_compile.problem_file.given_plan import GivenPlan, make_given_plan
from heterps_compile.problem_file.read_problem import FORMAT, make_given

ROOT = Path(__file__).parents[1]
NODE = ("GH-96", 4, "us-central1-a", 4)
MODEL, BATCH = "OPT-350", 16
UNITS = ((2, 5), (3, 2), (4, 4))


def planned(
    document: dict[str, Any], mode: str, *, mixed_stages: bool = False
) -> tuple[PlacedGiven, GivenPlan, Prediction]:
    asked: dict[str, Any] = {"mode": mode, "objective": "throughput"}
    given = make_given({**document, "request": asked}, "the problem")
    placed = place_given(given, make_request("USD", **asked, mixed_stages=mixed_stages))
    return choose_of_rivals(given, placed, "throughput")


def print_listed(data: Sailor) -> None:
    print("| listed plan | its step, s | step of the plan found, s | stages | bound below it by |")
    print("|---|---|---|---|---|")
    for name, document, plan, _ in data.trials(waits=False):
        given = make_given(document, "the problem")
        listed = make_given_plan(plan, given, "the plan")
        step_s = predict_step(given, listed).step_s
        [device] = document["pool"]["device"]
        units = sum(each.units for stage in listed.stages for each in stage.replicas)
        device |= {"max_units": units, "network_bandwidth": f"{data.rate(NODE, NODE, 1e8)} B/s"}
        tables = [data.all_reduce(NODE, [NODE], count) for count in range(2, units // NODE[3] + 1)]
        placed, found, prediction = planned({**document, "all_reduces": tables}, "training")
        gap = f"{100 * (1 - placed.bound / placed.value):.2f} %"
        print(f"| {name} | {step_s:.4f} | {prediction.step_s:.4f} | {len(found.stages)} | {gap} |", flush=True)


def print_mixed(data: Sailor) -> None:
    kinds = [("V100-16", 1, "zone", 1), ("A100-40", 1, "zone", 1)]
    print("| units | stages of | a batch every, s | step, s | with several types | bound below it by |")
    print("|---|---|---|---|---|---|")
    for counts in UNITS:
        pool = [
            {"name": data.device(kind), "kind": "gpu", "network_bandwidth": "2 GB/s", "max_units": count}
            for kind, count in zip(kinds, counts, strict=True)
        ]
        document = {
            "format": FORMAT,
            "version": 1,
            "name": MODEL,
            "layers": [data.layer(MODEL, i, dict.fromkeys(kinds)) for i in range(len(data.info[MODEL]["1"]))],
            "edges": data.edges(MODEL, 1),
            "pool": {"device": pool},
            "batch": BATCH,
        }
        for mixed_stages in (False, True):
            placed, found, prediction = planned(document, "inference", mixed_stages=mixed_stages)
            several = sum(len(stage.replicas) > 1 for stage in found.stages)
            print(
                f"| {counts[0]} V100, {counts[1]} A100 | {'several types' if mixed_stages else 'one type'} | "
                f"{placed.value:.4f} | {prediction.step_s:.4f} | {several} of {len(found.stages)} | "
                f"{100 * (1 - placed.bound / placed.value):.2f} % |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    folder = parser.parse_args().data / "sailor"
    if not folder.is_dir():
        raise SystemExit(f"{folder} is not there")
    data = Sailor(folder)
    print_listed(data)
    print()
    print_mixed(data)


if __name__ == "__main__":
    main()
