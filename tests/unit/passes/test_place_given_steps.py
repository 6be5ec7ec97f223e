"""Problem files are planned for their step: held against the predicted steps of every plan there is."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from heterps_compile.cli.main import command
from heterps_compile.cost.evaluate import detail
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Placement
from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.passes.place_given import place_given
from heterps_compile.plan.request import ALONE, Request
from heterps_compile.prediction.choose_micro_batch import choose_of_steps
from heterps_compile.prediction.predict_step import Prediction, predict_step
from heterps_compile.problem_file.given_plan import GivenPlan, GivenReplicas, GivenStage
from heterps_compile.problem_file.given_problem import REPLICA, GivenProblem
from heterps_compile.problem_file.pose_given import pose_given
from heterps_compile.problem_file.read_problem import FORMAT, make_given

UNITS, BATCH = {"fast": 3, "slow": 2}, 4
PRICES = {"fast": 3.0, "slow": 1.0}


def drawn(seed: int) -> dict[str, Any]:
    """Draw a problem of three layers on two types, some with measured messages, machines, skips."""
    rng = np.random.default_rng(seed)
    device = {"kind": "gpu", "price_source": "made up", "price_date": "2026", "memory": "64 GB"}
    pool = [
        {"name": name, **device, "price": f"{PRICES[name]} USD/h", "max_units": UNITS[name],
         "network_bandwidth": f"{rng.uniform(0.2, 2):.3f} GB/s", "network_latency": "1 ms",
         "compute_parallel": float(rng.uniform(0.8, 1))}
        for name in UNITS
    ]  # fmt: skip
    if seed % 3 == 1:
        pool[0] |= {"units_per_machine": 2, "inner_bandwidth": "10 GB/s", "inner_latency": "1 us"}

    def times(name: str, factor: float) -> dict[str, Any]:
        forward = factor * rng.uniform(0.2, 1) * np.array([0.3, 1.0] if seed % 4 < 3 else [0.2, 1.0])
        return {
            "device": name, "samples": [1, BATCH], "forward_s": forward.tolist(),
            "backward_s": (2 * forward).tolist(), "update_s": 0.01,
        }  # fmt: skip

    layers = [
        {"name": name, "parameter_bytes": float(rng.uniform(0, 4e8)), "activation_bytes_per_sample": 100,
         "times": [times("fast", 1.0), times("slow", 2.0)]}
        for name in "abc"
    ]  # fmt: skip
    edges = [
        {"from": a, "to": list(b), "bytes_per_sample": float(rng.uniform(0, 1e8))} for a, b in (("a", "b"), ("b", "c"))
    ]
    if seed % 2:
        edges[0]["to"] = ["b", "c"]
    found = {"format": FORMAT, "version": 1, "name": "drawn", "layers": layers, "edges": edges, "batch": BATCH}
    found["pool"] = {"device": pool}
    if seed % 5 == 2:
        found["transfers"] = [{"between": ["fast", "slow"], "sizes_bytes": [1, 1e9], "times_s": [0.0001, 0.05]}]
    return found


def every_step(given: GivenProblem) -> Iterator[tuple[float, Prediction]]:
    """Yield price per hour and predicted step of every plan that keeps the order."""
    for cuts in product((False, True), repeat=2):
        borders = [0, *(p for p, is_cut in enumerate(cuts, 1) if is_cut), 3]
        runs = [tuple(range(a, b)) for a, b in pairwise(borders)]
        for kinds in product([(name, k) for name, most in UNITS.items() for k in range(1, most + 1)], repeat=len(runs)):
            used = {name: sum(k for own, k in kinds if own == name) for name in UNITS}
            if any(used[name] > UNITS[name] for name in UNITS):
                continue
            stages = tuple(GivenStage(run, (GivenReplicas(*kind),)) for run, kind in zip(runs, kinds, strict=True))
            for micro_batch in (1, 2, 4):
                for schedule in ("gpipe", "1f1b"):
                    plan = GivenPlan(stages, micro_batch, BATCH, schedule)
                    yield sum(PRICES[name] * used[name] for name in UNITS), predict_step(given, plan)


SEEDS = range(3)


def test_the_step_found_is_the_best_of_all_that_can_be_predicted_and_none_is_below_the_bound():
    gaps = []
    for seed in SEEDS:
        given = make_given(drawn(seed), "the problem")
        objective = ("throughput", "cost")[seed % 2]
        request = Request(objective=objective, reading=ALONE, mode="training")
        placed, plan, prediction = choose_of_steps(given, place_given(given, request), request)
        values = []
        for price, each in every_step(given):
            paid = OBJECTIVES[objective].paid(price, each.samples_per_s)
            values.append(each.step_s if paid is None else paid)
        assert predict_step(given, plan).step_s == prediction.step_s
        assert placed.bound <= min(values) * (1 + 1e-9)
        assert placed.value >= min(values) * (1 - 1e-9)
        gaps.append(placed.value / min(values) - 1)
    assert max(gaps) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("seed", "more"), [(0, 1), (5, 20)])
def test_no_predicted_step_is_shorter_than_the_steady_batch(seed: int, more: int) -> None:
    document = drawn(seed)
    for edge in document["edges"]:
        edge["bytes_per_sample"] *= more
    given = make_given(document, "the problem")
    posed = pose_given(given, Request(objective="throughput", mode="training")).problem
    ratios = []
    for _, each in every_step(given):
        stages = [(stage.stage.layers, stage.stage.replicas[0]) for stage in each.stages]
        types = tuple(posed.type_names.index(kind.device) for layers, kind in stages for _ in layers)
        placement = Placement(types, tuple(layers[0] for layers, _ in stages[1:]))
        steady = detail(posed, placement, np.array([kind.count for _, kind in stages], np.float64))
        ratios.append(each.step_s / max(stage.time_s for stage in steady.stages))
    assert 1 - 1e-9 <= min(ratios) < np.inf


def test_a_floor_holds_of_the_step_and_is_refused_with_the_quickest():
    given = make_given(drawn(0), "the problem")
    request = Request(objective="cost", reading=ALONE, mode="training", min_throughput=1.0)
    placed, _, prediction = choose_of_steps(given, place_given(given, request), request)
    assert prediction.samples_per_s >= 1.0
    slow = replace(request, min_throughput=prediction.samples_per_s * 3)
    with pytest.raises(InfeasibleError, match="reach"):
        choose_of_steps(given, place_given(given, slow), slow)
    assert placed.bound <= placed.value


def test_the_command_says_which_reading(tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(drawn(0)))
    asked = [str(path), "--objective", "throughput", "--reading", ALONE]
    document = json.loads(CliRunner().invoke(command, [*asked, "--json"]).output)
    assert document["reading"] == ALONE
    assert document["objective"]["value"] == pytest.approx(document["prediction"]["step_s"])
    shown = CliRunner().invoke(command, asked).output
    assert "samples/s, one batch alone" in shown
    assert "steady state" not in shown


def test_what_is_known_in_the_steady_state_alone_is_refused():
    request = Request(objective="throughput", reading=ALONE, mode="training")
    with pytest.raises(InputError, match="--mixed-stages"):
        place_given(make_given(drawn(0), "the problem"), replace(request, mixed_stages=True))
    with pytest.raises(InputError, match="batches"):
        place_given(replace(make_given(drawn(0), "the problem"), batch_of=REPLICA), request)


@pytest.mark.parametrize(("forward_s", "is_told"), [([1.0, 9.0], True), ([1.0, 4.0], False)])
def test_a_floor_missed_undivided_says_where_few_samples_are_quicker(forward_s: list[float], is_told: bool) -> None:
    """Four samples take 9 s together, and 1 s each one by one: half a sample a second is reached by a step alone."""
    problem = drawn(0)
    times = {"device": "fast", "samples": [1, BATCH], "forward_s": forward_s, "backward_s": forward_s}
    problem |= {"layers": [{"name": "a", "times": [times]}], "edges": []}
    problem["pool"]["device"][0] |= {"max_units": 1}
    asked = Request(mode="training", objective="price", reading=ALONE, min_throughput=0.49 if is_told else 0.6)
    with pytest.raises(InfeasibleError) as told:
        place_given(make_given(problem, "the problem"), asked)
    assert ("micro-batches of few samples are quicker here" in str(told.value)) is is_told
