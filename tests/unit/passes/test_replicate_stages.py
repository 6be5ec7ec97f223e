"""Replicas for batches of one replica each: as good as the best of all plans, and of all orders."""

import random
from itertools import product
from pathlib import Path

import pytest

from heterps_compile.cluster.load import make_cluster
from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.passes.free_layers import join_layers
from heterps_compile.passes.replicate_stages import replicate_stages
from heterps_compile.prediction.predict_step import predict_step
from heterps_compile.problem_file.given_plan import GivenPlan, GivenReplicas, GivenStage, faults
from heterps_compile.problem_file.given_problem import REPLICA, GivenEdge, GivenLayer, GivenProblem, GivenTimes
from heterps_compile.problem_file.pipedream_problem import read_pipedream
from heterps_compile.problem_file.read_problem import NEUTRAL_DEVICE


def pool(units: int, memory: str = "1e18 B", latency: str = "1e-3 s") -> object:
    device = {"name": "gpu", "kind": "gpu", "network_bandwidth": "1 B/s", "max_units": units, "memory": memory}
    return make_cluster({"device": [{**NEUTRAL_DEVICE, **device, "network_latency": latency}]}, "pool", "pool")


def drawn(seed: int, layers: int = 5, units: int = 3) -> GivenProblem:
    rng = random.Random(seed)  # noqa: S311 - a test draws problems

    def times() -> GivenTimes:
        is_free = rng.random() < 0.3
        work_s, weight = (0.0, 0.0) if is_free else (rng.randint(1, 9), rng.choice([0.0, 1.0, 3.0]))
        return GivenTimes("gpu", 1, (1,), (work_s,), (2 * work_s,), 0.0, weight, 1.0)

    edges = [
        GivenEdge(f"{i}", readers, rng.choice([0.0, 0.5, 2.0, 6.0]))
        for i in range(layers)
        if (readers := tuple(f"{j}" for j in range(i + 1, layers) if rng.random() < 0.5))
    ]
    listed = tuple(GivenLayer(f"{i}", (times(),)) for i in range(layers))
    return GivenProblem("drawn", listed, tuple(edges), pool(units), {"mode": "training"}, 1, REPLICA)


def brute_s(problem: GivenProblem, units: int) -> float:
    """The least of all stages of all layers with all numbers of replicas."""
    count, best_s = len(problem.layers), float("inf")
    for stage_of in product(range(min(count, units)), repeat=count):
        if set(stage_of) != set(range(max(stage_of) + 1)):
            continue
        stages = max(stage_of) + 1
        members = [tuple(i for i in range(count) if stage_of[i] == s) for s in range(stages)]
        for widths in product(range(1, units + 1), repeat=stages):
            if sum(widths) > units:
                continue
            plan = GivenPlan(
                tuple(GivenStage(m, (GivenReplicas("gpu", k),)) for m, k in zip(members, widths, strict=True)), 1, 1
            )
            if next(faults(problem, plan), None) is None:
                best_s = min(best_s, predict_step(problem, plan).step_s)
    return best_s


@pytest.mark.parametrize("seed", range(12))
def test_as_good_as_the_best_of_all_plans(seed: int) -> None:
    problem = drawn(seed)
    found = replicate_stages(problem)
    assert found.holds_for.startswith("all divisions")
    assert found.value == pytest.approx(brute_s(problem, 3), rel=1e-9)
    assert found.bound == pytest.approx(found.value, rel=1e-9)
    assert predict_step(problem, found.plan).step_s == pytest.approx(found.value, rel=1e-9)


def test_layers_that_cost_nothing_join_others() -> None:
    joined = [join_layers(drawn(seed), "gpu", joins=True) for seed in range(12)]
    assert any(len(each.groups) < 5 for each in joined)
    assert all(sum(map(len, each.groups)) + len(each.first) == 5 for each in joined)
    assert len(join_layers(drawn(0), "gpu", joins=False).groups) == 5


def test_what_fits_no_unit_is_told() -> None:
    problem = drawn(1)
    small = GivenProblem(
        problem.name, problem.layers, problem.edges, pool(3, "2 B"), problem.asked, 1, REPLICA, held_per_parameter=4
    )
    with pytest.raises(InfeasibleError, match=r"'drawn'.*\b3\b.*'gpu'"):
        replicate_stages(small)


_COSTS = "forward_compute_time=1.0, backward_compute_time=2.0, activation_size=8.0, parameter_size=4.0"
GRAPH = f"node1 -- first -- {_COSTS}\nnode2 -- second -- {_COSTS}\n\tnode1 -- node2\n"


def test_a_graph_of_pipedream_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "two.graph.txt"
    path.write_text(GRAPH)
    problem = read_pipedream(path, pool(2))
    assert [layer.name for layer in problem.layers] == ["node1", "node2"]
    assert problem.batch_of == REPLICA
    path.write_text(GRAPH + "\tnode2 -- node1\n")
    with pytest.raises(InputError, match="cycle"):
        read_pipedream(path, pool(2))
    path.write_text(GRAPH + "\tnode2 -- node9\n")
    with pytest.raises(InputError, match="node 9"):
        read_pipedream(path, pool(2))
