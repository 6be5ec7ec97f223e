"""Plans of small problem files have the best value under the reading requested, of all plans that fit their units."""

from itertools import pairwise, product

import numpy as np
import pytest
from small_problems import plain_time_s

from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Placement
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.place_given import place_given
from heterps_compile.passes.place_given_steps import _steps
from heterps_compile.passes.placement.steps.step_plans import with_units
from heterps_compile.plan.request import ALONE, STEADY, Request
from heterps_compile.prediction.choose_micro_batch import choose_of_rivals, choose_of_steps
from heterps_compile.prediction.predict_step import predict_step
from heterps_compile.problem_file.given_plan import GivenPlan, GivenReplicas, GivenStage
from heterps_compile.problem_file.pose_given import pose_given
from heterps_compile.problem_file.read_problem import FORMAT, make_given
from heterps_compile.schedule.shortest_step import step_under

SEEDS = 4


def drawn(seed, objective):
    """Draw a problem of one to three layers on one or two types with little memory, and a floor."""
    rng = np.random.default_rng(seed)
    count, training, batch = int(rng.integers(1, 4)), bool(rng.random() < 0.75), int(rng.choice([2, 4]))
    kept, weights = 10 ** rng.uniform(2, 6, count), 10 ** rng.uniform(2, 6, count)
    most_bytes = kept.sum() * batch + 4 * weights.sum()
    pool = [
        {"name": name, "kind": "gpu", "price": f"{rng.choice([0.5, 1, 3])} USD/h", "price_source": "x",
         "price_date": "2026", "max_units": int(rng.integers(1, 4)),
         "memory": f"{rng.uniform(0.2, 1.2) * most_bytes:.0f} B",
         "network_bandwidth": f"{10 ** rng.uniform(5, 9):.6g} B/s", "compute_parallel": float(rng.choice([1, 0.95]))}
        for name in "ab"[: rng.integers(1, 3)]
    ]  # fmt: skip

    def times(device):
        forward_s = float(rng.choice([0, 0.01])) + rng.uniform(0.001, 0.02) * np.array([1, 4])
        backward_s = {"backward_s": (2 * forward_s).tolist()} if training else {}
        return {"device": device, "samples": [1, 4], "forward_s": forward_s.tolist(), **backward_s}

    layers = [
        {"name": f"l{i}", "parameter_bytes": int(weights[i]), "activation_bytes_per_sample": int(kept[i]),
         "times": [times(each["name"]) for each in pool]}
        for i in range(count)
    ]  # fmt: skip
    edges = [
        {"from": f"l{i}", "to": [f"l{j}" for j in range(i + 1, count)], "bytes_per_sample": 10 ** rng.uniform(1, 5)}
        for i in range(count - 1)
    ]
    document = {"format": FORMAT, "version": 1, "name": "drawn", "layers": layers, "edges": edges, "batch": batch}
    one_s = sum(layer["times"][0]["forward_s"][0] for layer in layers) * (3 if training else 1)
    floor = 0.0 if objective == "throughput" else rng.uniform(0.1, 1.2) / one_s
    return make_given({**document, "pool": {"device": pool}}, "drawn"), floor


def values_of_all_plans(given, request):
    """Yield the values of all plans that fit their units in some micro-batches and keep the floor."""
    posed = pose_given(given, request)
    problem, count = posed.problem, len(given.layers)
    for cuts in product((False, True), repeat=count - 1):
        runs = list(pairwise([0, *(p for p, is_cut in enumerate(cuts, 1) if is_cut), count]))
        kinds = [(t, k) for t in range(problem.type_count) for k in range(1, int(problem.max_units[t]) + 1)]
        for chosen in product(kinds, repeat=len(runs)):
            if any(sum(k for t, k in chosen if t == one) > problem.max_units[one] for one in range(problem.type_count)):
                continue
            types = tuple(t for (t, _), (first, end) in zip(chosen, runs, strict=True) for _ in range(first, end))
            stages = tuple(
                GivenStage(tuple(range(*run)), (GivenReplicas(posed.groups[t].device, k),))
                for run, (t, k) in zip(runs, chosen, strict=True)
            )
            steps = [
                predict_step(given, GivenPlan(stages, size, given.batch, schedule))
                for size in range(1, given.batch + 1)
                if given.batch % size == 0
                for schedule in (("gpipe", "1f1b") if request.reading == ALONE else ("1f1b",))
            ]
            if not any(step.fits for step in steps):
                continue
            if request.reading == ALONE:
                batch_s = min(step.step_s for step in steps if step.fits)
            else:
                placement = Placement(types, tuple(first for first, _ in runs[1:] if types[first] == types[first - 1]))
                batch_s = max(
                    plain_time_s(problem, placement, *run, k) for run, (_, k) in zip(runs, chosen, strict=True)
                )
            if given.batch / batch_s >= request.min_throughput * (1 - 1e-9):
                price = sum(float(problem.price_per_hour[t]) * k for t, k in chosen)
                paid = OBJECTIVES[request.objective].paid(price, given.batch / batch_s)
                yield batch_s if paid is None else paid


@pytest.mark.parametrize(
    ("objective", "reading"),
    [
        *((objective, STEADY) for objective in ("cost", "price", "throughput")),
        *(("cost", ALONE), pytest.param("price", ALONE, marks=pytest.mark.slow)),
        pytest.param("throughput", ALONE, marks=pytest.mark.slow),
    ],
)
def test_the_value_is_the_best_of_all_plans_and_only_if_there_is_none_a_problem_is_refused(objective, reading):
    refused = 0
    for seed in range(SEEDS):
        given, floor = drawn(seed, objective)
        mode = "training" if given.training else "inference"
        request = Request(objective=objective, reading=reading, mode=mode, min_throughput=floor)
        values = list(values_of_all_plans(given, request))
        choose = choose_of_steps if reading == ALONE else choose_of_rivals
        try:
            placed = place_given(given, request)
            placed, _, step = choose(given, placed, request if reading == ALONE else objective)
        except InfeasibleError:
            assert not values, (seed, min(values))
            refused += 1
            continue
        assert step.fits
        assert placed.value == pytest.approx(min(values), rel=1e-9), seed
        assert placed.bound <= min(values) * (1 + 1e-9)
    assert refused < SEEDS / 2


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_step_that_is_searched_is_the_predicted_one(seed):
    """One stage a layer, whose values skip over the others' cuts, with all units, which may divide a part of one."""
    given, _ = drawn(seed, "throughput")
    mode, places = "training" if given.training else "inference", range(len(given.layers))
    posed = pose_given(given, Request(objective="throughput", reading=ALONE, mode=mode))
    of = _steps(given, posed)
    problem = of.problem
    for types in product(range(problem.type_count), repeat=len(places)):
        units = [int(problem.max_units[t]) // types.count(t) for t in types]
        if 0 in units:
            continue
        placement = Placement(types, tuple(i for i in places[1:] if types[i] == types[i - 1]))
        [plan] = with_units(of, placement, units, [given.batch])
        replicas = [GivenReplicas(posed.groups[t].device, k) for t, k in zip(types, units, strict=True)]
        stages = tuple(GivenStage((i,), (replicas[i],)) for i in places)
        predicted_s = predict_step(given, GivenPlan(stages, 1, given.batch, "gpipe")).step_s
        found_s = step_under("gpipe", plan.loads, given.batch, training=given.training).step_s
        assert found_s == pytest.approx(predicted_s, rel=1e-9)


DEVICE = {
    "name": "g", "kind": "gpu", "price": "1 USD/h", "price_source": "x", "price_date": "2026", "max_units": 2,
    "network_bandwidth": "1 MB/s",
}  # fmt: skip


@pytest.mark.parametrize("count", [2, 12])
def test_a_stage_that_holds_one_micro_batch_is_found_if_stages_that_hold_two_have_no_room(count):
    """Twelve layers have more plans than are looked at one by one."""
    slow = {"device": "g", "samples": [1], "forward_s": [0.02 / count], "backward_s": [0.04 / count]}
    layers = [
        {"name": f"l{i}", "parameter_bytes": 10, "activation_bytes_per_sample": 1 if i else 1000, "times": [slow]}
        for i in range(count)
    ]
    document = {"format": FORMAT, "version": 1, "name": "tight", "batch": 4, "layers": layers}
    edges = [{"from": "l0", "to": ["l1"], "bytes_per_sample": 1}]
    pool = {"device": [{**DEVICE, "memory": "1900 B", "compute_parallel": 0.95}]}
    given = make_given({**document, "edges": edges, "pool": pool}, "tight")
    request = Request(objective="cost", mode="training", min_throughput=28.0)
    relaxed = place_given(given, request)
    placed, plan, _ = choose_of_rivals(given, relaxed, "cost")
    assert (len(relaxed.plan.stages), [stage.width for stage in plan.stages]) == (2, [2])
    assert placed.value == pytest.approx(17.5)
    assert placed.bound == (placed.value if count == 2 else relaxed.bound)


def test_micro_batches_that_fit_and_miss_the_floor_are_given_to_more_replicas():
    """One replica makes 4 / 0.24 s undivided and holds 4.4 kB; one by one it makes 6.7 samples a second."""
    quick = {"device": "g", "samples": [1, 4], "forward_s": [0.05, 0.08], "backward_s": [0.1, 0.16]}
    layer = {"name": "a", "parameter_bytes": 100, "activation_bytes_per_sample": 1000, "times": [quick]}
    document = {"format": FORMAT, "version": 1, "name": "tight", "batch": 4, "layers": [layer], "edges": []}
    given = make_given({**document, "pool": {"device": [{**DEVICE, "memory": "2000 B"}]}}, "tight")
    request = Request(objective="price", mode="training", reading=ALONE, min_throughput=10.0)
    placed, plan, step = choose_of_steps(given, place_given(given, request), request)
    assert (placed.value, plan.micro_batch, step.step_s) == (pytest.approx(2.0), 1, pytest.approx(0.3, rel=1e-3))
