"""On small random workloads the searches for the least largest load agree with trying everything."""

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_workloads import brute_force, plain_loads, workloads

from heterps_compile.cost.workload import Workload
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.max_load import contiguous as line
from heterps_compile.passes.max_load.solve import solve_max_load
from heterps_compile.passes.max_load.split import evaluate_split, faults, to_split_json

SLOW = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


def check(workload: Workload) -> None:
    optimum = brute_force(workload)
    if optimum == math.inf:
        with pytest.raises(InfeasibleError):
            solve_max_load(workload)
        return
    result = solve_max_load(workload)
    assert list(faults(workload, result.assignment)) == []
    assert list(result.loads_ms) == pytest.approx(plain_loads(workload, result.assignment))
    assert result.value_ms == pytest.approx(optimum, rel=1e-12)
    assert result.bound_ms <= optimum * (1 + 1e-12)
    assert result.gap <= 1e-12


@SLOW
@given(workloads())
def test_the_contiguous_optimum_is_brute_force(workload):
    check(workload)


@SLOW
@given(workloads(), st.integers(0, 40))
def test_with_too_many_down_sets_or_loose_blocks_the_bound_still_holds(workload, limit):
    optimum = brute_force(workload)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line, "MAX_DOWN_SETS", limit)
        patch.setattr(line, "_MOST_ROUNDS", 2)
        try:
            result = solve_max_load(workload)
        except InfeasibleError:
            return  # a sample may miss the few splits that fit, and says so
    assert list(faults(workload, result.assignment)) == []
    assert result.bound_ms <= optimum * (1 + 1e-12) <= result.value_ms * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(workloads(), st.data())
def test_any_split_is_evaluated_by_the_definition_and_written_with_every_id_once(workload, data):
    devices = data.draw(
        st.lists(st.integers(0, workload.device_count - 1), min_size=len(workload.nodes), max_size=len(workload.nodes))
    )
    assert list(evaluate_split(workload, devices)) == pytest.approx(plain_loads(workload, devices))
    document = to_split_json(workload, devices)
    entries = [*document["fpgas"], *document["cpus"]]
    assert sorted(i for entry in entries for i in entry["nodes"]) == sorted(node.id for node in workload.nodes)
    assert [entry["load"] for entry in entries] == list(evaluate_split(workload, devices))
