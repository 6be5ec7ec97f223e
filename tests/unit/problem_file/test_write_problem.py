"""A model exported as a problem file: read again it is planned as the model is, with the same profile."""

import json
from dataclasses import replace
from typing import Any

import pytest

from heterps_compile.api import choose_backend, open_draft
from heterps_compile.cluster.devices import Cluster
from heterps_compile.cluster.load import load_cluster
from heterps_compile.cost.layer_key import layer_keys
from heterps_compile.cost.layer_times import LayerTimes, layer_times
from heterps_compile.cost.measured import Measurements, assign_profiles
from heterps_compile.cost.profile import DeviceProfile, LayerPoint, LayerProfile, Timing
from heterps_compile.examples.ctrdnn import ctrdnn
from heterps_compile.ir.layers import LayerGraph
from heterps_compile.make_plan import make_plan
from heterps_compile.passes.drafts import Annotated, Draft, Emitted
from heterps_compile.passes.pipeline import run_to
from heterps_compile.passes.place_given import place_given
from heterps_compile.plan.request import ALONE, make_request
from heterps_compile.prediction.choose_micro_batch import choose_of_rivals, choose_of_steps
from heterps_compile.problem_file.read_problem import read_problem
from heterps_compile.problem_file.write_problem import left_out, problem_text

BATCH = 64


def pool(units: int = 1) -> Cluster:
    """Return two types that load inputs in no time; with replicas, whose sums a file leaves out, memory takes none."""
    found = load_cluster("heterps-paper")
    devices = [
        replace(
            each,
            input_bytes_per_s=1e15,
            max_units=units,
            memory_bytes_per_s=each.memory_bytes_per_s if units == 1 else 1e18,
        )
        for each in found.device_types[:2]
    ]
    return replace(found, device_types=tuple(devices), parameter_server=None)


def profile(layers: LayerGraph, *, name: str, kind: str, training: bool, speeds: tuple[float, float]) -> DeviceProfile:
    """Return a profile of tables and of other layers at so many microseconds, at two batches."""
    keys = layer_keys(layers)
    found: dict[str, LayerProfile] = {}
    for i, (layer, key) in enumerate(zip(layers.layers, keys, strict=True)):
        usual_s = 1e-6 * speeds[layer.kind != "embedding"] * (1 + i / 10)
        points = []
        for batch in (8, BATCH):
            forward, backward = Timing(usual_s * (5 + batch), 0.0), Timing(2 * usual_s * (5 + batch), 0.0)
            own = (backward, backward) if training else (None, None)
            points.append(LayerPoint(batch, 1, 1, forward, own[0], own[1]))
        found[key] = LayerProfile(layer.name, (key,), str(layer.kind), "float32", 1, tuple(points))
    mode = "training" if training else "inference"
    return DeviceProfile(name, kind, "made up", "torch", mode, 1, "cpu", tuple(found.values()))


def drafted(mode: str, *, units: int = 1, is_free: bool = True, **asked: Any) -> tuple[Draft, Annotated, LayerTimes]:
    model, inputs = ctrdnn(batch=BATCH, fields=5, rows=1000, width=8, hidden=(64, 32))
    draft = open_draft(model, inputs, cluster=pool(units), mode=mode, tables="held", **asked)
    graph = replace(draft.graph, batch_symbol="n", bindings={"n": BATCH}) if is_free else draft.graph
    draft = replace(draft, graph=graph)
    annotated = run_to(draft, Annotated)
    speeds = ((5.0, 60.0), (40.0, 3.0))
    profiles = [
        ("", profile(annotated.layers, name=each.name, kind=each.kind, training=mode == "training", speeds=speed))
        for each, speed in zip(pool().device_types, speeds, strict=True)
    ]
    measured: Measurements = assign_profiles(pool(units), profiles)
    draft = replace(draft, measurements=measured)
    annotated = run_to(draft, Annotated)
    times = layer_times(annotated.layers, annotated.costs, pool(units), measured, training=mode == "training")
    return draft, annotated, times


@pytest.mark.parametrize("units", [1, 4])
@pytest.mark.parametrize(
    ("mode", "asked"),
    [
        ("inference", {"objective": "throughput"}),
        ("inference", {"objective": "cost", "min_throughput": 10.0}),
        ("training", {"objective": "throughput", "reading": ALONE}),
        ("training", {"objective": "cost", "reading": ALONE, "min_throughput": 10.0}),
    ],
)
def test_the_exported_problem_is_planned_as_the_model(tmp_path, mode: str, asked: dict[str, Any], units: int) -> None:
    draft, annotated, times = drafted(mode, units=units, **asked)
    path = tmp_path / "problem.json"
    path.write_text(problem_text(annotated.layers, annotated.costs, times), "ascii")
    plan = make_plan(run_to(draft, Emitted), choose_backend(draft.graph, None))
    given = read_problem(path)
    request = make_request("USD", **{**given.asked, **asked})
    placed = place_given(given, request)
    if request.reading == ALONE:
        placed, found, step = choose_of_steps(given, placed, request)
    else:
        placed, found, step = choose_of_rivals(given, placed, request.objective)
    assert [stage.layers for stage in plan.stages] == [
        tuple(given.layers[i].name for i in stage.layers) for stage in found.stages
    ]
    assert [stage.units for stage in plan.stages] == [
        tuple((each.device, each.count) for each in stage.replicas) for stage in found.stages
    ]
    assert placed.value == pytest.approx(plan.value, rel=1e-9)
    assert step.step_s == pytest.approx(plan.schedule.step_s, rel=1e-9)
    assert [stage.held_bytes[0] for stage in step.stages] == [
        pytest.approx(stage.memory.total_bytes, abs=1) for stage in plan.stages if stage.memory is not None
    ]


def test_layers_may_have_any_names(tmp_path) -> None:
    _, annotated, times = drafted("training")
    hostile = [
        '"}], "pool": "local", "x": [{"',
        "new\nline",
        "\x1b[31mred",
        "表",
        "' or 1 --",
        "../../etc",
        "{0}",
        "\u2028",
    ]
    named = [replace(layer, name=name) for layer, name in zip(annotated.layers.layers, hostile, strict=True)]
    path = tmp_path / "problem.json"
    path.write_text(problem_text(replace(annotated.layers, layers=tuple(named)), annotated.costs, times), "ascii")
    assert [layer.name for layer in read_problem(path).layers] == hostile


def test_an_exported_problem_is_read_as_what_was_measured(tmp_path) -> None:
    _, annotated, times = drafted("training")
    path = tmp_path / "problem.json"
    path.write_text(problem_text(annotated.layers, annotated.costs, times), "ascii")
    given = read_problem(path)
    assert replace(given.known_pool, name=times.pool.name, source=times.pool.source) == times.pool
    assert given.batch == BATCH
    assert given.training
    for i, layer in enumerate(given.layers):
        for t, each in enumerate(layer.times):
            assert each.samples == (8, BATCH)
            for samples in (1, 8, 20, BATCH, 100):
                phases = times.phases(i, t, BATCH / samples)
                assert each.forward_time_s(samples) == pytest.approx(phases.forward_s, rel=1e-12)
                assert each.backward_time_s(samples) == pytest.approx(phases.backward_s, rel=1e-12)


def test_layers_that_nobody_measured_have_estimates_of_every_micro_batch() -> None:
    _, annotated, _ = drafted("inference")
    times = layer_times(annotated.layers, annotated.costs, pool(), training=False)
    document = json.loads(problem_text(annotated.layers, annotated.costs, times))
    assert {tuple(each["samples"]) for layer in document["layers"] for each in layer["times"]} == {
        (1, 2, 4, 8, 16, 32, 64)
    }
    assert any("8 on 'cpu-core', 8 on 'v100'" in note for note in left_out(annotated.layers, annotated.costs, times))


def test_notes_name_what_the_file_lacks() -> None:
    _, annotated, times = drafted("training", is_free=False)
    notes = " ".join(left_out(annotated.layers, annotated.costs, times))
    for word in (
        "recomputation",
        "tables on servers",
        "synchronisation rules",
        "optimizer adam",
        "inputs",
        "fixes its batch",
    ):
        assert word in notes
    _, annotated, times = drafted("inference")
    notes = " ".join(left_out(annotated.layers, annotated.costs, times))
    assert "optimizer" not in notes
    assert "fixes its batch" not in notes
