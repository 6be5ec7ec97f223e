"""Extrapolated times are reported: by layer, by factor, with the consequence."""

from typing import Any

import pytest

from heterps_compile.passes.place_given import place_given
from heterps_compile.plan.request import make_request
from heterps_compile.prediction.predict_step import predict_step
from heterps_compile.problem_file.given_plan import FORMAT as PLAN_FORMAT
from heterps_compile.problem_file.given_plan import make_given_plan
from heterps_compile.problem_file.given_problem import GivenProblem
from heterps_compile.problem_file.read_problem import FORMAT, make_given


def given(samples: list[int], layers: int = 1, **more: Any) -> GivenProblem:
    times = {"device": "a", "samples": samples, "forward_s": [0.01 * each for each in samples],
             "backward_s": [0.02 * each for each in samples]}  # fmt: skip
    named = [{"name": f"l{i}", "parameter_bytes": 4e6, "times": [times]} for i in range(layers)]
    free = {"name": "free", "times": [{"device": "a", "samples": [1], "forward_s": [0.0], "backward_s": [0.0]}]}
    pool = {"device": [{"name": "a", "kind": "gpu", "network_bandwidth": "10 Gbit/s"}]}
    file = {"format": FORMAT, "version": 1, "name": "x", "layers": [*named, free], "pool": pool, "batch": 32, **more}
    return make_given(file, "the problem")


def notes(problem: GivenProblem, micro_batch: int, count: int = 1) -> tuple[str, ...]:
    stage = {"layers": [layer.name for layer in problem.layers], "replicas": [{"device": "a", "count": count}]}
    file = {"format": PLAN_FORMAT, "version": 1, "micro_batch": micro_batch, "stages": [stage]}
    return predict_step(problem, make_given_plan(file, problem, "the plan")).notes


@pytest.mark.parametrize(
    ("samples", "micro_batch", "words"),
    [
        ([1], 1, ()),
        ([1], 2, ("timed at 1 sample, used at 2, 2 times that", "too long")),
        ([8], 4, ("timed at 8 samples, used at 4, 0.5 times that", "too short")),
        ([1, 2], 4, ()),
        ([1, 2], 8, ("timed at 2 samples, used at 8, 4 times that", "the line through the nearest two sizes")),
        ([8, 16], 4, ()),
        ([8, 16], 2, ("timed at 8 samples, used at 2, 0.25 times that", "the line through the nearest two sizes")),
        ([1, 32], 16, ()),
    ],
)
def test_a_size_far_from_those_timed_is_reported(samples: list[int], micro_batch: int, words: tuple[str, ...]) -> None:
    found = notes(given(samples), micro_batch)
    assert len(found) == bool(words)
    assert all(word in found[0] for word in words)
    assert not words or found[0].startswith("layer 'l0' on 'a'")


def test_layers_that_were_timed_alike_share_a_note() -> None:
    (note,) = notes(given([1], layers=3), 4)
    assert note.startswith("layer 'l0' and 2 more layers on 'a'")


def test_an_all_reduce_far_from_the_sizes_timed_is_reported() -> None:
    def of_sizes(*sizes: float) -> tuple[str, ...]:
        table = {"device": "a", "units": 2, "sizes_bytes": list(sizes), "times_s": [size / 1e9 for size in sizes]}
        return notes(given([1, 32], all_reduces=[table]), 16, count=2)

    assert of_sizes(2e6, 8e6) == ()
    (note,) = of_sizes(1e5, 1e6)
    assert "sums 3.81 MiB of gradients on 'a', 4 times the nearest size" in note


def test_a_search_in_the_steady_state_reports_the_batch_it_counts_undivided() -> None:
    (note,) = [
        each for each in place_given(given([1, 2]), make_request("USD", mode="training", objective="throughput")).notes
        if "timed at" in each
    ]  # fmt: skip
    assert note.startswith("in the steady state, layer 'l0' on 'a', timed at 2 samples, used at 32, 16 times that")
