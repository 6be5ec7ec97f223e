"""Placements by a rule, and the greedy sweep."""

import numpy as np
import pytest
from small_problems import letters, plain_problem
from synthetic import Recipe, synthetic_problem

from heterps_compile.cost.problem import Placement, Problem
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.placement.baselines.fixed import CpuOnly, GpuOnly, Heuristic
from heterps_compile.passes.placement.baselines.greedy import Greedy
from heterps_compile.passes.placement.method import PlacementMethod
from heterps_compile.passes.placement.proof.exact import Exact

# three layers on (cpu, gpu, npu, gpu); the second gpu is the better one
PROBLEM = plain_problem([[4.0, 2.0, 1.0, 1.0], [4.0, 2.0, 1.0, 1.0], [4.0, 2.0, 1.0, 1.0]], [1.0, 3.0, 9.0, 4.0])


def chosen(problem: Problem, method: PlacementMethod, **options: object) -> str:
    return letters(problem, method(problem, **options).placement)  # type: ignore[arg-type] # the options of the contract


def test_all_layers_go_to_the_cheapest_type_of_the_kind() -> None:
    assert chosen(PROBLEM, CpuOnly()) == "ccc"
    assert chosen(PROBLEM, GpuOnly()) == "ttt"


def test_embeddings_go_to_the_cpu_and_the_rest_to_an_accelerator() -> None:
    problem = plain_problem([[4.0, 2.0], [4.0, 2.0], [4.0, 2.0]], [1.0, 3.0], layer_kinds=("embedding", "gemm", "gemm"))
    assert chosen(problem, Heuristic()) == "c|gg"


def test_a_layer_that_reads_more_than_it_computes_goes_to_the_cpu() -> None:
    problem = plain_problem([[4.0, 2.0]] * 3, [1.0, 3.0], data_s=np.array([[0.0, 0.0], [9.0, 9.0], [0.0, 0.0]]))
    assert chosen(problem, Heuristic()) == "g|c|g"


def test_a_layer_the_type_may_not_run_goes_elsewhere_and_is_named() -> None:
    problem = plain_problem([[4.0, 2.0], [np.inf, 2.0], [4.0, 2.0]], [1.0, 3.0])
    found = CpuOnly()(problem)
    assert found.placement.types == (0, 1, 0)
    assert found.notes == ("cpu-only could not place layer1 where its rule says; they go where they are cheapest",)


def test_layers_that_stay_together_go_elsewhere_together() -> None:
    uncuttable = np.array([False, True, False, False])
    problem = plain_problem([[4.0, 2.0], [np.inf, 2.0], [4.0, 2.0]], [1.0, 3.0], uncuttable=uncuttable)
    assert chosen(problem, CpuOnly()) == "gg|c"


def test_a_rule_keeps_to_the_least_number_of_stages() -> None:
    problem = plain_problem([[1.0], [1.0], [8.0]], [1.0], min_stages=2, max_units=np.array([2]))
    assert chosen(problem, CpuOnly()) == "cc|c"


def test_a_pool_without_the_kind_is_named() -> None:
    with pytest.raises(InfeasibleError):
        GpuOnly()(plain_problem([[1.0]], [1.0]))


def test_a_rule_that_cannot_be_kept_says_what_breaks() -> None:
    problem = plain_problem([[4.0, 1.0]], [1.0, 1.0], max_units=np.array([1, 1]), min_throughput=3600.0)
    with pytest.raises(InfeasibleError, match="placement"):
        CpuOnly()(problem)
    assert chosen(problem, GpuOnly()) == "g"


@pytest.mark.parametrize("method", [CpuOnly(), GpuOnly(), Heuristic(), Greedy()])
def test_a_better_warm_start_is_kept(method: PlacementMethod) -> None:
    problem = synthetic_problem(Recipe(seed=3, layers=12, types=4))
    best = Exact()(problem)
    assert method(problem, warm_start=best.placement).value == pytest.approx(best.value)


def test_greedy_improves_on_the_best_single_type() -> None:
    problem = plain_problem([[1.0, 9.0], [9.0, 1.0], [9.0, 1.0], [1.0, 9.0]], [1.0, 1.0])
    assert chosen(problem, Greedy()) == "c|gg|c"


def test_greedy_cuts_a_run_where_that_pays() -> None:
    problem = plain_problem([[1.0], [1.0]], [1.0], compute_parallel=np.zeros(1), min_throughput=3600.0)
    assert chosen(problem, Greedy()) == "c|c"


def test_greedy_without_time_gives_what_it_began_with() -> None:
    problem = plain_problem([[1.0, 9.0], [9.0, 1.0], [9.0, 1.0], [1.0, 9.0]], [1.0, 1.0])
    assert Greedy()(problem, time_limit_s=0.0, warm_start=Placement((0, 0, 0, 0))).evaluations <= 4 + 4


def test_stages_that_do_not_fit_are_divided_where_it_costs_least() -> None:
    # three layers of 6 bytes on units of 12: with a unit a stage, halves of 4 s beat 6 s beside 2 s
    memory = {"weight_bytes": np.array([6.0, 6.0, 6.0]), "memory_bytes": np.array([12.0])}
    problem = plain_problem([[4.0], [2.0], [2.0]], [1.0], compute_parallel=np.zeros(1), **memory)
    assert chosen(problem, CpuOnly()) == "c|cc"
