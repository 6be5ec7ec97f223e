"""The least largest load: proven values of published workloads, small answers in sight, requests nobody can meet."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_workloads import drawn

from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.passes import deadline as deadline_module
from heterps_compile.passes.max_load import contiguous, device_loads
from heterps_compile.passes.max_load.blocks import Flow, contract
from heterps_compile.passes.max_load.load_bounds import simple_bound
from heterps_compile.passes.max_load.solve import solve_max_load
from heterps_compile.passes.max_load.split import faults
from heterps_compile.problem_file.workload_file import read_workload

DATA = Path(__file__).parents[4] / "../shared/data"


def published(file: str, **pool: int):
    path = DATA / file
    if not path.exists():
        pytest.skip("the published workloads are not here")
    return read_workload(path, **pool)


@pytest.mark.parametrize(
    ("file", "optimum"),
    [
        ("LayerGraphs/bert24_training", 41.7458),
        ("LayerGraphs/gnmt_inference", 32.9107),
        ("OperatorGraphs/bert_l-3_inference", 27.9186),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("LayerGraphs/bert24_inference", 17.7899),
                ("LayerGraphs/resnet50_inference", 33.7747),
                ("OperatorGraphs/bert_l-6_inference", 29.5795),
            )
        ),
    ],
)
def test_contiguous_optima_of_published_workloads(file, optimum):
    workload = published(f"dnn-partitioning/{file}.json")
    result = solve_max_load(workload)
    assert result.value_ms == pytest.approx(optimum, abs=5e-5)
    assert (result.gap, result.notes) == (0.0, ())
    assert list(faults(workload, result.assignment)) == []


def test_a_pipedream_profile_is_solved_on_a_pool_of_ones_own():
    workload = published("pipedream/vgg16.graph.txt", accelerators=2)
    result = solve_max_load(workload)
    assert result.gap == 0.0
    assert result.notes == workload.assumptions
    assert sum(node.accelerator_ms for node in workload.nodes) / 2 <= result.value_ms


CHAIN = "1 4/40 out=1 -> 2\n2 3/30 out=1 -> 3\n3 3/30 out=1 -> 4\n4 4/9"


@pytest.mark.parametrize(
    ("pool", "devices", "value"),
    [
        ({"accelerators": 1}, (0, 0, 0, 0), 14),
        ({"accelerators": 2}, (0, 0, 1, 1), 8),
        ({"accelerators": 2, "cpus": 1}, (0, 0, 1, 1), 8),
        ({"accelerators": 1, "cpus": 1}, (0, 0, 0, 1), 11),
        ({"accelerators": 4}, None, 5),
        ({"accelerators": 0, "cpus": 2}, (0, 1, 1, 1), 69),
    ],
)
def test_small_answers(pool, devices, value):
    result = solve_max_load(drawn(CHAIN, **pool))
    assert (result.value_ms, result.bound_ms) == (value, value)
    assert devices is None or result.assignment == devices


def test_a_time_limit_gives_the_best_split_and_bound_so_far():
    workload = published("dnn-partitioning/LayerGraphs/gnmt_inference.json")
    result = solve_max_load(workload, time_limit_s=1e-3)
    assert result.bound_ms < 32.9107 < result.value_ms + 1e-4
    assert result.notes == ("the time limit of 0.001 s ended the search",)


def test_many_parallel_chains_are_sampled_and_certified(monkeypatch):
    monkeypatch.setattr(contiguous, "_MOST_ROUNDS", 3)
    # 12 chains of 5 have 6^12 down-sets
    lines = ["1 0/0 -> " + " ".join(str(10 * c) for c in range(1, 13))]
    for c in range(1, 13):
        lines += [f"{10 * c + i} {1 + (c + i) % 3}/90 out=0.01 -> {10 * c + i + 1}" for i in range(4)]
        lines.append(f"{10 * c + 4} 1/90")
    workload = drawn("\n".join(lines), accelerators=3)
    result = solve_max_load(workload)
    assert result.notes[0] == "over 100,000 down-sets: a sample of them was searched"
    assert result.gap < 0.05


@pytest.mark.parametrize(
    ("text", "pool", "message"),
    [
        ("1 1/- size=70 -> 2\n2 1/- size=60 -> 3\n3 1/- size=60", {}, "100.*120"),
        ("1 1/- -> 2\n2 -/1 -> 3\n3 1/-", {"accelerators": 1, "cpus": 1}, "contiguity"),
        ("1 1/- colour=1\n2 -/1 colour=1", {"cpus": 1}, "contradict"),
    ],
)
def test_what_cannot_be_met_is_said_with_its_way_out(text, pool, message):
    with pytest.raises(InfeasibleError, match=message):
        solve_max_load(drawn(text, **pool))


def test_bad_options_are_named():
    with pytest.raises(InputError, match=r"\b0\b"):
        solve_max_load(drawn(CHAIN), time_limit_s=0)


@pytest.mark.parametrize(
    ("text", "pool", "bound"),
    [
        ("1 4/-\n2 4/-", {}, 4),
        ("1 9/-\n2 1/-", {}, 9),  # the longest node
        ("1 6/-\n2 6/-\n3 6/-", {}, 9),  # the work of all
        ("1 6/3\n2 6/-", {"accelerators": 1, "cpus": 1}, 6),
        ("1 6/12\n2 6/12", {"accelerators": 1, "cpus": 1}, 8),  # at 8 the CPU takes over 4 of 12
        ("1 -/5\n2 -/5", {"cpus": 1}, 10),
    ],
)
def test_the_simple_bound(text, pool, bound):
    assert simple_bound(contract(drawn(text, **pool), Flow.AGAINST)) == pytest.approx(bound)


def test_devices_beyond_the_number_of_nodes_stay_empty():
    workload = replace(drawn("1 1/9 -> 2\n2 1/9"), accelerators=1000, cpus=1000)
    result = solve_max_load(workload)
    assert len(result.loads_ms) == 2000
    assert (result.value_ms, result.gap) == (1.0, 0.0)
    assert list(faults(workload, result.assignment)) == []


def test_a_cpu_keeps_its_number_where_accelerators_are_left_out():
    workload = replace(drawn("1 inf/2"), accelerators=5, cpus=1)
    assert solve_max_load(workload).assignment == (5,)


def test_the_first_sample_keeps_to_the_time_and_to_a_second_where_no_split_is_known(monkeypatch):
    deadlines = []
    search = device_loads.find_chain
    monkeypatch.setattr(device_loads, "find_chain", lambda *asked: deadlines.append(asked[3].end_s) or search(*asked))
    monkeypatch.setattr(deadline_module, "time", SimpleNamespace(monotonic=lambda: 100.0))
    for workload, end_s in ((drawn("1 1/9 out=1 -> 2\n2 1/9", cpus=1), 100.01), (drawn("1 1/-\n2 -/9", cpus=1), 101.0)):
        deadlines.clear()
        solve_max_load(workload, time_limit_s=0.01)
        assert deadlines[0] == end_s


TWELVE = "\n".join(f"{i} 1/9 -> {i + 1}" for i in range(1, 12)) + "\n12 1/9"


def test_more_blocks_than_a_table_takes_are_cut_evenly(monkeypatch):
    monkeypatch.setattr(contiguous, "MAX_BLOCKS", 11)
    result = solve_max_load(drawn(TWELVE, accelerators=3))
    assert result.assignment == (0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2)
    assert result.notes == ("over 11 blocks of nodes: cut evenly, and not searched",)
    assert solve_max_load(drawn(TWELVE, accelerators=0, cpus=2)).value_ms == 54


def test_what_is_too_large_to_search_and_does_not_fit_says_so(monkeypatch):
    monkeypatch.setattr(contiguous, "MAX_BLOCKS", 11)
    with pytest.raises(InfeasibleError, match=r"\b11\b"):
        solve_max_load(drawn(TWELVE.replace("1/9", "1/9 size=90")))
