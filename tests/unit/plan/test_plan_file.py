import json
import os
import subprocess
import sys
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import PLAN, VERSIONS, as_read, with_stage

from heterps_compile.errors import PlanError
from heterps_compile.packages import SHAPE_PLANS, installed_versions
from heterps_compile.plan.file import from_json, to_json
from heterps_compile.plan.plan import Artifact, Plan, Scoring, Verification
from heterps_compile.plan.served_tables import ParameterServers, ServedTables

FILES = ((Artifact("stage_0.onnx", "d" * 64),), (Artifact("stage_1.onnx", "e" * 64),))
SCORING = Scoring(
    graph_inputs=("ids",),
    graph_outputs=("score",),
    signature="{}",
    boundaries=((("ids",), ("rows",)), (("rows",), ("score",))),
    artifacts=((Artifact("stage_0_scoring.onnx", "f" * 64),), FILES[1]),
    verification=Verification(1e-7, 1e-7, 1e-4, 1),
)
TABLES = ServedTables(("emb.weight",), ("emb",), 1, 1_280_000, 8192, 0.001, 0.05)
SAVED = replace(
    PLAN,
    artifacts=FILES,
    scoring=SCORING,
    tables=TABLES,
    parameter_servers=ParameterServers(2, 0.1),
    value=3.0 / 3600 / 16000.0 * 1e6,
)


def edited(path: str, value: object) -> str:
    """Return the sample file with one place changed; the path is as in error messages."""
    document = json.loads(to_json(SAVED))
    keys = [int(key) if key.isdigit() else key for key in path.replace("[", ".").replace("]", "").split(".")]
    place = document
    for key in keys[:-1]:
        place = place[key]
    if value is ...:
        del place[keys[-1]]
    else:
        place[keys[-1]] = value
    return json.dumps(document)


def test_every_field_of_a_plan_comes_back_but_the_times_spent():
    assert from_json(to_json(SAVED), "plan.json") == as_read(SAVED)


def test_the_sample_leaves_no_field_at_its_default():
    defaults = {f.name: f.default for f in fields(Plan)}
    assert [name for name, default in defaults.items() if getattr(SAVED, name) == default] == []


def test_reading_and_writing_again_gives_the_same_bytes():
    text = to_json(SAVED)
    assert to_json(from_json(text, "plan.json")) == text


def test_the_file_reads_well(golden):
    golden("plan/plan.json", to_json(SAVED))


def test_the_times_spent_do_not_change_the_bytes():
    assert to_json(replace(SAVED, search_s=1.0, total_s=2.0)) == to_json(replace(SAVED, search_s=3.0, total_s=4.0))


def test_the_order_in_which_hashes_were_made_does_not_change_the_bytes():
    assert to_json(replace(SAVED, hashes=dict(reversed(SAVED.hashes.items())))) == to_json(SAVED)


def test_another_process_with_another_hash_seed_gives_the_same_bytes(tmp_path):
    script = "import sys; sys.path.insert(0, sys.argv[1]); from plans import PLAN; " + (
        "from heterps_compile.plan.file import to_json; sys.stdout.write(to_json(PLAN))"
    )
    here = os.path.join(os.path.dirname(__file__), "..", "..")
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    run = subprocess.run(
        [sys.executable, "-c", script, os.path.abspath(here)],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    assert run.stdout == to_json(PLAN)


def test_every_layer_stands_on_a_line_of_its_own():
    lines = [line.strip().rstrip(",") for line in to_json(replace(SAVED, tables=None)).splitlines()]
    assert '{"name": "fc1", "fingerprint": "00000000000b-1b0000000000-2b0000000000"}' in lines
    assert [sum(f'"{name}"' in line for line in lines) for name in ("emb", "fc1", "fc2")] == [1, 1, 1]


def test_the_file_is_printable_ascii_whatever_the_names():
    name = 'a"b\n\x1b[31m\u202e\x7f\u00e9\U0001f600'
    text = to_json(with_stage(replace(SAVED, tables=None), 0, layers=(name,)))
    assert set(text) <= {chr(c) for c in range(32, 127)} | {"\n"}
    assert from_json(text, "plan.json").stages[0].layers == (name,)


def test_the_versions_that_made_it_survive_reading_and_writing():
    assert json.loads(to_json(from_json(to_json(SAVED), "plan.json")))["provenance"]["versions"] == VERSIONS


def test_whole_numbers_given_for_rates_read_and_write_as_rates():
    text = to_json(replace(SAVED, request=replace(SAVED.request, min_throughput=1000)))
    assert text == to_json(SAVED)


def test_a_plan_that_does_not_say_what_made_it_was_made_by_what_is_installed():
    versions = json.loads(to_json(replace(SAVED, versions={})))["provenance"]["versions"]
    assert versions == installed_versions(SHAPE_PLANS)
    assert {"heterps-compile", "torch", "onnxruntime"} <= set(versions)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("version", ..., 'expected a record with "version": 4'),
        ("version", True, 'expected a record with "version": 4'),
        ("version", 5, "has version 5, this heterps-compile reads version 4: a newer release wrote it, so upgrade"),
        ("version", 0, "has version 0, and there is none below 1: the file is damaged or no plan; compile again"),
        ("model.batch", "64", "model.batch: Input should be a valid integer, not '64'"),
        ("model.batch", 2**63, "model.batch: Input should be less than or equal to 9223372036854775807"),
        ("estimates.throughput_samples_per_s", 5e-324, "5e-324, but the slowest stage gives 16000.0 samples/s"),
        ("model.bindings.N", 10**9, "model.bindings.N: 1000000000, and model.batch is 64"),
        ("model.batch_symbol", "M", "model.batch_symbol: 'M'"),
        ("model.id_tables", {"nobody": 4}, "model.id_tables.nobody"),
        ("decisions.schedule.micro_batches", 2**31, "2,147,483,648 through 2 stages; expected at most 2,000,000"),
        ("decisions.stages[0].replicas", 2**31, "2,147,483,648; expected at most 2,000,000"),
        ("request.min_stages", 3, "request.min_stages: 3, and the plan has 2 stages"),
        ("request.max_stages", 1, "request.max_stages: 1, and the plan has 2 stages"),
        ("request.tables", "held", "decisions.tables"),
        ("decisions.stages[0].recompute", True, "decisions.stages[0].recompute"),
        ("decisions.parameter_servers", 3, "0.1 for 3 servers at 0.05 each"),
        ("model.batch", ..., "model.batch: the key is missing"),
        ("decisions.stages[1].replicas", 0, "decisions.stages[1].replicas: Input should be greater than"),
        ("decisions.stages[1].layers", [], "decisions.stages[1].layers: List should have at least 1 item"),
        ("decisions.stages[0].devise", "cpu", "decisions.stages[0].devise: unknown key"),
        ("decisions.stages[0].layers[0].name", "fc2", "stages[1].layers[1]: layer 'fc2' is in stage 0 already"),
        ("decisions.stages[1].layers[1].name", "fc1", "stages[1].layers[1]: layer 'fc1' is in stage 1 already"),
        ("decisions.stages[0].inputs", ["click"], "stages[0].inputs[0]: no earlier stage gives the value 'click'"),
        ("decisions.stages[0].inputs", ["click"], "'click'; stage 1 gives it, so the stages form a cycle"),
        ("decisions.stages[1].inputs", [], "outputs[0]: no later stage takes the value"),
        ("decisions.stages[1].outputs", [], "model.outputs[0]: no stage gives the value 'click'"),
        (
            "decisions.stages[0].backend",
            "torch9",
            "'torch9', and decisions.backend is 'onnxruntime'",
        ),
        (
            "decisions.stages[1].device",
            "a100",
            "stages[1].device: unknown device 'a100' (the pool has 'cpu', 'v100', 't4')",
        ),
        ("decisions.stages[1].kind", "npu", "stages[1].kind: device 'v100' is of kind 'gpu', not 'npu'"),
        ("decisions.stages[1].replicas", 2, "stages[1].price_per_hour: 2.42 for 2 units of 'v100' at 2.42 each"),
        ("cluster.devices[0].max_units", 11, "replicas: with this stage's, 12 units of 'cpu' are taken of 11"),
        ("decisions.stages[0].layers[0].fingerprint", "x", "fingerprint: String should match pattern"),
        ("cluster.devices[0].name", "v100", "cluster.devices[0].name: device 'v100' stands there twice"),
        ("estimates.unused_devices", ["a100"], "estimates.unused_devices[0]: unknown device 'a100'"),
        ("estimates.throughput_samples_per_s", 17000.0, "17000.0, but the slowest stage gives 16000.0 samples/s"),
        ("estimates.steady_state.batch_s", 0.003, "0.003, but the other estimates give 0.004"),
        ("estimates.steady_state.throughput_samples_per_s", None, "None, but the other estimates give 16000.0"),
        ("estimates.one_batch_alone.bubble", 0.5, "0.5, but the other estimates give 0.5641"),
        ("estimates.stages[0].data_s", 0.008, "16000.0, but the slowest stage gives 8000.0 samples/s"),
        ("estimates.value", 0.06, "estimates.value: 0.06, but the other estimates give 0.0520833"),
        ("decisions.tables", None, "decisions.tables: null, and estimates.tables is not"),
        ("decisions.tables.servers", 7, "decisions.tables.servers: 7, of 2 parameter servers in all"),
        ("decisions.tables.layers", ["fc9"], "decisions.tables.layers[0]: no stage has the layer 'fc9'"),
        ("estimates.tables.price_per_hour", 9.0, "9.0 for 1 server at 0.05 each"),
        ("decisions.schedule.micro_batches", 5, "micro_batches: 5 micro-batches do not divide a batch of 64"),
        ("estimates.stages[0]", ..., "estimates.stages: 1 estimate for 2 stages"),
        ("estimates.unused_devices", ["v100"], "estimates.unused_devices[0]: stage 1 uses device 'v100'"),
        ("estimates.bound", 0.06, "estimates.bound: a lower bound of 0.06 lies above the value 0.0520833"),
        ("estimates.currency", "<script>", "estimates.currency: String should match pattern"),
        ("provenance.hashes.model", "A" * 64, "provenance.hashes.model: String should match pattern"),
        ("artifacts[0]", ..., "artifacts: artefacts of 1 stage for 2 stages"),
        ("decisions.scoring.stages[0]", ..., "decisions.scoring.stages: 1 stage for 2 stages"),
        ("artifacts[0][0].file", "../../etc/passwd", "artifacts[0][0].file: String should match pattern"),
        ("artifacts[0][0].file", "a\n", "artifacts[0][0].file: String should match pattern"),
        ("request.pins", [["embedding", "cpu"]], "request.pins[0]: Input should be an object"),
    ],
)
def test_a_wrong_place_is_named(path, value, said):
    with pytest.raises(PlanError) as caught:
        from_json(edited(path, value), "plan.json")
    assert str(caught.value).startswith("plan.json")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not JSON: Expecting value at line 1, column 1"),
        ("[1, 2", "is not JSON: Expecting ',' delimiter at line 1, column 6"),
        ("[]", 'expected a record with "version": 4'),
        ("null", 'expected a record with "version": 4'),
        ('{"version": NaN}', "NaN is no number"),
        ('{"version": -Infinity}', "-Infinity is no number"),
        ('{"version": 1e999}', "1e999"),
        ('{"version": 1, "version": 1}', "the key 'version' stands twice"),
        ("[" * 200_000, "brackets too deep"),
        ('{"version": ' + "9" * 5000 + "}", "a number too long"),
    ],
)
def test_text_that_is_no_plan_is_refused(text, said):
    with pytest.raises(PlanError, match=r"plan\.json") as caught:
        from_json(text, "plan.json")
    assert said in str(caught.value)


def test_a_number_beyond_all_bounds_is_refused():
    text = to_json(SAVED).replace("16000.0", "1e999")
    with pytest.raises(PlanError, match="1e999"):
        from_json(text, "plan.json")


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (replace(PLAN, value=float("nan")), "estimates.value"),
        (replace(PLAN, bound=float("-inf")), "estimates.bound"),
        (with_stage(PLAN, 0, replicas=0), r"decisions.stages\[0\].replicas"),
    ],
)
def test_a_plan_that_could_not_be_read_back_is_not_written(broken, said):
    with pytest.raises(PlanError, match=said):
        to_json(broken)


def test_how_many_more_faults_there_are_is_said():
    text = edited("decisions.stages[0]", {})
    with pytest.raises(PlanError, match=r"stages\[0\]\.device.*\b6\b"):
        from_json(text, "plan.json")


TEXT = to_json(SAVED)


def is_plan_or_plan_error(text: str) -> bool:
    """Say whether reading gives a plan that can be written and read again, or an error that names the file."""
    try:
        plan = from_json(text, "plan.json")
    except PlanError as error:
        return str(error).startswith("plan.json")
    return from_json(to_json(plan), "plan.json") == plan


@given(st.integers(0, len(TEXT)), st.integers(0, 40), st.text(st.characters(), max_size=5))
def test_a_damaged_file_is_a_plan_error_or_a_plan(start, length, inserted):
    damaged = TEXT[:start] + inserted + TEXT[start + length :]
    assert is_plan_or_plan_error(damaged)


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just([]) | st.just({})
PATHS = [
    "model.bindings",
    "model.inputs[0]",
    "request.pins[0]",
    "request.max_stages",
    "decisions.stages[1]",
    "decisions.stages[1].layers[0]",
    "cluster.devices",
    "decisions.schedule.micro_batches",
    "estimates.stages[0].memory",
    "estimates.stages[0].memory.safety_factor",
    "verification",
    "provenance.hashes",
    "artifacts",
    "artifacts[0]",
]


@given(st.sampled_from(PATHS), VALUES)
def test_a_place_with_another_value_is_a_plan_error_or_a_plan(path, value):
    assert is_plan_or_plan_error(edited(path, value))
