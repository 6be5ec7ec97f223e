"""Replicas of two device types sum by one law: alike, as one type; in a search, as in a prediction."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruled_problems import ruled
from small_problems import plain_problem

from heterps_compile.cost.all_reduce import Machines
from heterps_compile.cost.mixed_units import MixedPlacement, detail_of, worth_of
from heterps_compile.plan.request import make_request
from heterps_compile.prediction.predict_step import predict_step
from heterps_compile.problem_file.given_plan import FORMAT as PLAN_FORMAT
from heterps_compile.problem_file.given_plan import make_given_plan
from heterps_compile.problem_file.pose_given import pose_given
from heterps_compile.problem_file.read_problem import FORMAT, make_given

SIZES = st.floats(1e3, 1e11)
RATES = st.integers(1, 400)


def all_reduce_s(problem: dict[str, Any], replicas: list[tuple[str, int, int]], sync: str) -> float:
    read = make_given(problem, "the problem")
    kinds = [{"device": device, "count": count, "tensor_parallel": degree} for device, count, degree in replicas]
    stage = {"layers": ["layer"], "replicas": kinds, "sync": sync}
    plan = make_given_plan({"format": PLAN_FORMAT, "version": 1, "micro_batch": 1, "stages": [stage]}, read, "the plan")
    return predict_step(read, plan).stages[0].all_reduce_s


def problem_of(devices: dict[str, dict[str, Any]], sizes: dict[tuple[str, int], float]) -> dict[str, Any]:
    times = [
        {"device": device, "tensor_parallel": degree, "samples": [1], "forward_s": [0.1], "backward_s": [0.2],
         "parameter_bytes": size}
        for (device, degree), size in sizes.items()
    ]  # fmt: skip
    pool = [{"name": name, "kind": "gpu", "max_units": 512, **of} for name, of in devices.items()]
    return {
        "format": FORMAT, "version": 1, "name": "x", "batch": 64, "layers": [{"name": "layer", "times": times}],
        "pool": {"device": pool},
    }  # fmt: skip


def machines_of(units: int, outer: int, inner: int) -> dict[str, Any]:
    """Build a device type of machines of so many units, with Gbit/s of their network and inside."""
    inside = {"units_per_machine": units, "inner_bandwidth": f"{inner} Gbit/s", "inner_latency": "3 us"}
    return {"network_bandwidth": f"{outer} Gbit/s", **(inside if units > 1 else {})}


@settings(deadline=None)
@given(
    st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8, 16]), st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(SIZES, RATES, RATES), st.sampled_from(["all-reduce", "topk(density=0.01)", "local(steps=4)"]),
)  # fmt: skip
def test_types_that_are_alike_are_one(
    of_machine: int, degree: int, machines: tuple[int, int], sizes: tuple[float, int, int], sync: str
) -> None:
    """Both types fill whole machines, so that no machine is shared by them."""
    size, outer, inner = sizes
    one = machines_of(of_machine, outer, inner)
    problem = problem_of({"a": one, "b": one}, {("a", degree): size, ("b", degree): size})
    a, b = (count * max(1, of_machine // degree) for count in machines)
    alone = all_reduce_s(problem, [("a", a + b, degree)], sync)
    assert all_reduce_s(problem, [("a", a, degree), ("b", b, degree)], sync) == alone
    assert all_reduce_s(problem, [("b", b, degree), ("a", a, degree)], sync) == alone


def test_two_types_in_machines_of_their_own_never_sum_inside_one() -> None:
    """One unit each in machines of 4: the sum goes over the cards, at the slower of both."""
    fast = {
        "network_bandwidth": "16 Gbit/s",
        "units_per_machine": 4,
        "inner_bandwidth": "800 Gbit/s",
        "inner_latency": "1 us",
    }
    slow = machines_of(4, 8, 800)
    problem = problem_of({"a": fast, "b": slow}, {("a", 1): 1e9, ("b", 1): 1e9})
    assert all_reduce_s(problem, [("a", 1, 1), ("b", 1, 1)], "all-reduce") == pytest.approx(1.0, rel=1e-4)


def test_the_slowest_member_counts_inside_machines_and_between_them() -> None:
    """Four units of a sum at 1 GB/s inside, two of b at 4; both cards have 2 GB/s."""
    a = {
        "network_bandwidth": "16 Gbit/s",
        "units_per_machine": 4,
        "inner_bandwidth": "8 Gbit/s",
        "inner_latency": "1 us",
    }
    b = {
        "network_bandwidth": "16 Gbit/s",
        "units_per_machine": 2,
        "inner_bandwidth": "32 Gbit/s",
        "inner_latency": "1 us",
    }
    problem = problem_of({"a": a, "b": b}, {("a", 1): 1e9, ("b", 1): 1e9})
    expected_s = 2 * (3 / 4) * 1.0 + 2 * (2 / 3) * 0.5  # a's ring, then that of three machines
    assert all_reduce_s(problem, [("a", 4, 1), ("b", 4, 1)], "all-reduce") == pytest.approx(expected_s, rel=1e-4)


def test_units_of_other_degrees_reduce_their_own_parts() -> None:
    """Four peers of a machine with a quarter each send as much over its card as two with a half."""
    one = {
        "network_bandwidth": "8 Gbit/s",
        "units_per_machine": 4,
        "inner_bandwidth": "800 Gbit/s",
        "inner_latency": "1 us",
    }
    problem = problem_of({"a": one, "b": one}, {("a", 4): 0.25e9, ("a", 2): 0.5e9, ("b", 4): 0.25e9})
    alike = all_reduce_s(problem, [("a", 1, 4), ("b", 1, 4)], "all-reduce")
    assert alike == pytest.approx(1.0, rel=1e-4)
    assert all_reduce_s(problem, [("a", 1, 2), ("b", 1, 4)], "all-reduce") == pytest.approx(alike)


@settings(deadline=None, max_examples=30)
@given(
    st.tuples(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4])), st.tuples(RATES, RATES),
    st.tuples(RATES, RATES), st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2])),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
)  # fmt: skip
def test_a_search_and_a_prediction_have_one_law(
    units: tuple[int, int],
    outer: tuple[int, int],
    inner: tuple[int, int],
    degrees: tuple[int, int],
    counts: tuple[int, int],
) -> None:
    """Machines partly filled, other degrees, other networks: the steady state has the bytes that a step waits for."""
    devices = {name: machines_of(*of) for name, *of in zip("ab", units, outer, inner, strict=True)}
    problem = problem_of(devices, {pair: 1e9 / pair[1] for pair in zip("ab", degrees, strict=True)})
    posed = pose_given(make_given(problem, "it"), make_request("USD", mode="training", objective="throughput"))
    [stage] = detail_of(posed.problem, MixedPlacement((0,), (counts,)))
    replicas = list(zip("ab", counts, degrees, strict=True))
    assert stage.sync_s == pytest.approx(all_reduce_s(problem, replicas, "all-reduce"), rel=2e-3)  # but for messages


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 300), st.integers(1, 3), st.integers(1, 3), st.sampled_from([1.0, 2.0, 4.0]), st.booleans())
def test_a_search_prices_them_alike(seed: int, first: int, second: int, of_machine: float, has_rules: bool) -> None:
    problem = plain_problem(
        [[1e-3, 1e-3]], [1.0, 1.0], sync_s=np.array([[2.0, 2.0]]), compute_parallel=np.zeros(2),
        machines=Machines(np.full(2, of_machine), np.full(2, 0.3)),
    )  # fmt: skip
    if has_rules:
        alike = tuple(
            replace(
                each.map(lambda table: table[:, :1].repeat(2, axis=1)),
                room_bytes=each.room_bytes[:1].repeat(2),
                most_units=each.most_units[:1].repeat(2),
            )
            for each in ruled(problem, seed).rules or ()
        )
        problem = replace(problem, rules=alike, memory_bytes=np.full(2, 1e30))
    a, b = int(first * of_machine), int(second * of_machine)
    mixed, alone = (worth_of(problem, MixedPlacement((0,), (units,))).times_s for units in ((a, b), (a + b, 0)))
    assert mixed == pytest.approx(alone, rel=1e-9)
