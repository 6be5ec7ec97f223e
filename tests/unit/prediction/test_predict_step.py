"""A predicted step adds up from its parts, each with its answer in sight."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from heterps_compile.cli.main import command
from heterps_compile.errors import InputError
from heterps_compile.plan.request import make_request
from heterps_compile.prediction.choose_micro_batch import choose_micro_batch
from heterps_compile.prediction.predict_step import Prediction, predict_step
from heterps_compile.problem_file.given_plan import FORMAT as PLAN_FORMAT
from heterps_compile.problem_file.given_plan import make_given_plan, plan_document
from heterps_compile.problem_file.pose_given import pose_given
from heterps_compile.problem_file.read_problem import FORMAT, make_given

GPU = {"device": "gpu", "samples": [1, 2], "forward_s": [1.0, 2.0], "backward_s": [2.0, 4.0], "update_s": 0.25}
SLOW = {"device": "slow", "samples": [1, 2], "forward_s": [2.0, 4.0], "backward_s": [4.0, 8.0], "update_s": 0.5}


def problem(**changes: Any) -> dict[str, Any]:
    def layer(name: str) -> dict[str, Any]:
        return {"name": name, "parameter_bytes": 8e9, "activation_bytes_per_sample": 100, "times": [GPU, SLOW]}

    rate = {"kind": "gpu", "network_bandwidth": "1 GB/s", "memory": "64 GB"}
    return {
        "format": FORMAT,
        "version": 1,
        "name": "two",
        "layers": [layer("a"), layer("b")],
        "edges": [{"from": "a", "to": ["b"], "bytes_per_sample": 1e9}],
        "pool": {"device": [{"name": "gpu", **rate}, {"name": "slow", **rate, "max_units": 4}]},
        "batch": 4,
        **changes,
    }


def plan(*stages: tuple[list[str], list[dict[str, Any]]], **changes: Any) -> dict[str, Any]:
    listed = [{"layers": layers, "replicas": replicas} for layers, replicas in stages]
    return {"format": PLAN_FORMAT, "version": 1, "micro_batch": 1, "stages": listed, **changes}


def predicted(given: dict[str, Any], asked: dict[str, Any]) -> Prediction:
    read = make_given(given, "the problem")
    return predict_step(read, make_given_plan(asked, read, "the plan"))


ALONE = (["a", "b"], [{"device": "gpu"}])


def test_one_stage_is_its_layers_and_the_update() -> None:
    step = predicted(problem(), plan(ALONE))
    assert step.parts.busiest_s == 4 * (2 + 4)
    assert step.parts.update_s == 0.5
    assert step.step_s == 24.5


def test_replicas_share_micro_batches_and_add_up_gradients_of_16_gb() -> None:
    step = predicted(problem(), plan((["a", "b"], [{"device": "gpu", "count": 2}])))
    assert step.parts.busiest_s == 12
    assert step.parts.all_reduce_s == pytest.approx(2 * 1 / 2 * 16, rel=1e-9)


def test_an_update_is_what_no_replicas_divide_and_the_rest_is_as_it_was_told() -> None:
    given = problem()
    given["layers"][0]["times"][0] = {**GPU, "compute_parallel": 0.5}
    posed = pose_given(make_given(given, "the problem"), make_request("USD", mode="training", objective="throughput"))
    alpha = posed.problem.layer_compute_parallel
    assert alpha is not None
    assert alpha[:, 0] == pytest.approx([0.5 * 12 / 12.25, 12 / 12.25])
    del given["layers"][0]["times"][0]["compute_parallel"]
    for layer in given["layers"]:
        layer["times"] = [{**each, "update_s": 0.0} for each in layer["times"]]
    posed = pose_given(make_given(given, "the problem"), make_request("USD", mode="training", objective="throughput"))
    assert posed.problem.layer_compute_parallel is None


def test_a_fraction_of_the_pool_that_is_not_looked_at_is_told() -> None:
    given = problem(batch_of="replica")
    given["pool"]["device"][0]["compute_parallel"] = 0.75
    asked = plan((["a", "b"], [{"device": "gpu", "count": 2}]))
    del asked["micro_batch"]
    note = "the compute_parallel of 'gpu', 0.75, is not looked at: batches of one replica each are not divided"
    assert any(told.startswith(note) for told in predicted(given, asked).notes)
    assert not any("is not looked at" in told for told in predicted(problem(batch_of="replica"), asked).notes)


def test_a_mixed_stage_takes_as_long_as_its_slowest() -> None:
    mixed = plan((["a", "b"], [{"device": "gpu"}, {"device": "slow"}]))
    step = predicted(problem(), mixed)
    assert step.parts.busiest_s == 2 * 12
    mixed["stages"][0]["feed"] = "speed"
    assert predicted(problem(), mixed).parts.busiest_s == 18  # three micro-batches of 6 s, and one of 12 s
    assert step.parts.update_s == 1.0


def test_two_stages_fill_and_drain_and_talk() -> None:
    two = plan((["a"], [{"device": "gpu"}]), (["b"], [{"device": "gpu"}]))
    step = predicted(problem(), two)
    assert step.parts.busiest_s == 12
    assert step.parts.fill_s == 3  # a forward to begin with, a backward at the end
    assert step.parts.transfers_s >= 2 * (1 + 1e-12)
    assert step.step_s == pytest.approx(sum(vars_of(step)))
    assert [each.transfer_s for each in step.stages] == pytest.approx([1.0, 0.0])


def test_a_link_carries_one_message_at_a_time_and_values_that_skip_a_stage_cross_it_too() -> None:
    """64 messages of a second; of a value that skips a stage, 16 messages of 4 ms each way over both links."""
    two = plan((["a"], [{"device": "gpu"}]), (["b"], [{"device": "slow"}]))
    short = {"samples": [1], "forward_s": [0.001]}
    given = problem(batch=64)
    given["layers"] = [{"name": n, "times": [{"device": d, **short}]} for n, d in (("a", "gpu"), ("b", "slow"))]
    assert predicted(given, two).step_s == pytest.approx(64 * 1.0 + 0.002, rel=1e-6)
    given["layers"] = [
        {"name": name, "times": [{"device": "gpu", **short, "backward_s": [0.002]}]} for name in ("a", "b", "c")
    ]
    given |= {"batch": 16, "edges": [{"from": "a", "to": ["c"], "bytes_per_sample": 4e6}]}
    three = [([name], [{"device": "gpu"}]) for name in ("a", "b", "c")]
    gpipe, one_f_one_b = (predicted(given, plan(*three, schedule=name)).step_s for name in ("gpipe", "1f1b"))
    assert gpipe == pytest.approx(3 * 0.001 + 17 * 0.004 + 3 * 0.002 + 17 * 0.004, rel=1e-3)
    assert one_f_one_b >= 16 * 2 * 0.004  # the steady state of the first stage's card


def vars_of(step: Prediction) -> list[float]:
    return [getattr(step.parts, name) for name in step.parts.__slots__]


def test_timed_messages_stand_in_for_rates() -> None:
    given = problem(
        transfers=[{"between": ["gpu", "gpu"], "sizes_bytes": [1e9], "times_s": [0.125]}],
        all_reduces=[{"device": "gpu", "units": 2, "sizes_bytes": [16e9], "times_s": [7.0]}],
    )
    assert predicted(given, plan((["a", "b"], [{"device": "gpu", "count": 2}]))).parts.all_reduce_s == 7
    two = plan((["a"], [{"device": "gpu"}]), (["b"], [{"device": "gpu"}]))
    assert predicted(given, two).stages[0].transfer_s == 0.125


def test_messages_that_were_not_timed_between_two_types_are_told() -> None:
    given = problem(transfers=[{"between": ["gpu", "gpu"], "sizes_bytes": [1e9], "times_s": [0.125]}])
    several = plan((["a"], [{"device": "gpu"}]), (["b"], [{"device": "slow"}]))
    step = predicted(given, several)
    assert step.stages[0].transfer_s == predicted(problem(), several).stages[0].transfer_s
    assert (
        "transfers has none between 'gpu' and 'slow': what they take from stage 0 to stage 1 follows from the pool's "
        "rates"
    ) in step.notes
    alike = plan((["a"], [{"device": "gpu"}]), (["b"], [{"device": "gpu"}]))
    for prediction in (predicted(given, alike), predicted(problem(), several)):
        assert not any("transfers has none" in note for note in prediction.notes)


def test_all_reduces_that_were_not_timed_of_a_stage_are_told() -> None:
    def timed(*devices: str, units: int = 2) -> dict[str, Any]:
        tables = [{"device": name, "units": units, "sizes_bytes": [16e9], "times_s": [7.0]} for name in devices]
        return problem(all_reduces=tables, held_per_parameter=3)

    both = plan((["a", "b"], [{"device": "gpu"}, {"device": "slow"}]))
    rates = predicted(timed(), both)
    assert rates.notes == (
        "all_reduces has none of 2 units of 'gpu' and 'slow', and counts where each of its types has one: what stage 0 "
        "takes to sum its gradients follows from the pool's rates",
    )
    assert rates.parts.all_reduce_s == pytest.approx(16)
    assert predicted(timed("gpu", "slow"), both).notes == ()
    assert predicted(timed("gpu", "slow"), both).parts.all_reduce_s == 7
    half = predicted(timed("gpu"), both)
    assert half.parts.all_reduce_s == pytest.approx(16)
    assert half.notes == (
        "all_reduces has none of 2 units of 'slow', and counts where each of its types has one: what stage 0 takes to "
        "sum its gradients follows from the pool's rates",
    )
    of_three = plan((["a"], [{"device": "gpu"}]), (["b"], [{"device": "gpu", "count": 3}]))
    assert predicted(timed("gpu"), of_three).notes == (
        "all_reduces has none of 3 units of 'gpu': what stage 1 takes to sum its gradients follows from the pool's "
        "rates",
    )
    of_replicas = predicted(timed("gpu") | {"batch_of": "replica", "batch": 1}, of_three | {"batch": 1})
    assert "all_reduces has none of 3 units of 'gpu'" in of_replicas.notes[-1]


def test_a_batch_of_a_replica_has_no_step_and_its_all_reduce_is_shared() -> None:
    given = problem(batch_of="replica", batch=1)
    step = predicted(given, plan((["a", "b"], [{"device": "gpu", "count": 4}])))
    assert step.parts.busiest_s == 6 / 4
    assert step.step_s == pytest.approx(2 * 3 / 4 * 16)
    two = plan((["a"], [{"device": "gpu"}]), (["b"], [{"device": "gpu"}]))
    assert predicted(given, two).step_s == 3
    wide = [problem()["edges"][0] | {"bytes_per_sample": 4e9}]
    assert predicted(problem(batch_of="replica", batch=1, edges=wide), two).step_s == pytest.approx(8)


def test_replicas_that_have_no_sample_are_told_in_training() -> None:
    said = "stage 0 has 9 replicas and a batch 8 samples: a training run refuses"
    for mode in ("training", "inference"):
        given = problem(batch=8, request={"mode": mode})
        notes = predicted(given, plan((["a", "b"], [{"device": "gpu", "count": 9}]), micro_batch=1)).notes
        assert any(note.startswith(said) for note in notes) is (mode == "training")


def test_every_replica_of_a_training_gets_a_micro_batch_where_one_alone_were_quicker() -> None:
    times = {"device": "gpu", "samples": [1, 4], "forward_s": [1, 1.1], "backward_s": [2, 2.2]}
    layers = [{"name": name, "times": [times]} for name in ("a", "b")]
    for mode, micro_batch in (("training", 1), ("inference", 2)):
        read = make_given(problem(layers=layers, request={"mode": mode}), "the problem")
        given = make_given_plan(plan((["a", "b"], [{"device": "gpu", "count": 3}])), read, "the plan")
        divided = choose_micro_batch(read, given)
        assert divided is not None
        assert (divided[0].micro_batch, divided[1].notes) == (micro_batch, ())
    note = predicted(problem(), plan((["a", "b"], [{"device": "gpu", "count": 3}]), micro_batch=2)).notes[-1]
    assert note.startswith("stage 0 has 3 replicas and a step of 4 samples 2 micro-batches: a training run refuses")


def test_what_does_not_fit_is_told() -> None:
    given = problem(held_per_parameter=5)
    assert predicted(given, plan(ALONE)).notes == (
        "stage 0 holds 74.5 GiB on 'gpu', which has 59.6 GiB: it does not fit",
    )
    assert predicted(problem(held_per_parameter=3), plan(ALONE)).notes == ()


WRONG = [
    (plan((["a"], [{"device": "gpu"}])), r"\b1\b.*\b2\b.*'b'"),
    (plan(ALONE, (["b"], [{"device": "gpu"}])), r"'b'.*\b0\b.*\b1\b"),
    (plan((["b"], [{"device": "gpu"}]), (["a"], [{"device": "gpu"}])), "earlier"),
    (plan((["a", "c"], [{"device": "gpu"}])), "'c'.*'two'"),
    (plan((["a", "b"], [{"device": "tpu"}])), r"stage 0\b.*'a'.*\b1\b.*'tpu'"),
    (plan((["a", "b"], [{"device": "gpu", "tensor_parallel": 2}])), r"'a'.*\b2\b.*'gpu'"),
    (plan((["a", "b"], [{"device": "slow", "count": 5}])), r"\b5\b.*'slow'.*\b4\b"),
    (plan(ALONE, micro_batch=3), r"\b3\b.*\b4\b"),
    (plan(ALONE, micro_batch=8), "larger than the batch"),
    (plan(ALONE, schedule="best"), "gpipe"),
    (plan(ALONE, batch=2**31 - 1), "2,000,000"),
    (plan((["a", "b"], [])), r"least 1\b"),
    (plan((["a", "b"], [{"device": "gpu", "count": 10**9}])), "10000"),
]


@pytest.mark.parametrize(("asked", "words"), WRONG)
def test_a_plan_that_is_none_is_refused_in_one_sentence(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        predicted(problem(), asked)
    assert str(caught.value).isprintable()


def test_parts_that_are_nothing_but_rounding_are_0() -> None:
    given = problem(step_overhead_s=0.1)
    for layer in given["layers"]:
        layer["times"] = [GPU | {"forward_s": [0.1 / 3, 0.2 / 3], "backward_s": [0.7 / 11, 1.4 / 11]}]
    del given["pool"]["device"][1]
    parts = predicted(given | {"batch": 4096}, plan(ALONE)).parts
    assert parts.fill_s == parts.transfers_s == parts.all_reduce_s == parts.rows_s == 0


@pytest.mark.parametrize("words", [["show"], ["simulate"], ["explain", "a", "--plan"]])
def test_commands_of_models_say_whose_plan_it_is_and_what_reads_it(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(plan(ALONE)))
    done = CliRunner().invoke(command, [*words, str(tmp_path)])
    said = str(done.exception)
    assert "is the plan of a problem file: its stages are of layers whose times, prices and pool are in the" in said
    assert "heterps-compile predict PROBLEM --plan PLAN says what its step takes" in said


def test_a_plan_reads_as_it_was_written() -> None:
    read = make_given(problem(), "the problem")
    made = make_given_plan(plan((["a", "b"], [{"device": "gpu"}, {"device": "slow", "count": 2}])), read, "the plan")
    assert make_given_plan(plan_document(read, made), read, "the plan") == made


def test_the_command_prints_the_step_its_parts_and_nothing_unescaped(tmp_path: Path) -> None:
    given, asked = tmp_path / "problem.json", tmp_path / "plan.json"
    given.write_text(json.dumps(problem(name="two\x1b[31m")))
    asked.write_text(json.dumps(plan((["a"], [{"device": "gpu"}, {"device": "slow"}]), (["b"], [{"device": "gpu"}]))))
    shown = CliRunner().invoke(command, ["predict", str(given), "--plan", str(asked)])
    assert shown.exit_code == 0, shown.output
    for words in (r"two\x1b[31m", "one batch alone: step", "all-reduce", "1 x gpu, 1 x slow", "holds"):
        assert words in shown.output
    document = json.loads(CliRunner().invoke(command, ["predict", str(given), "--plan", str(asked), "--json"]).output)
    assert document["step_s"] == pytest.approx(sum(document["parts"].values()))
    missing = CliRunner().invoke(command, ["predict", str(given)])
    assert missing.exit_code == 2


def in_machines(of_machine: int, *stages: list[dict[str, Any]]) -> list[float]:
    """Return the transfers of stages of a layer each, whose messages are of 1 GB."""
    machine = {"units_per_machine": of_machine, "inner_bandwidth": "10 GB/s", "inner_latency": "1e-12 s"}
    names = [f"layer {i}" for i in range(len(stages))]
    given = problem(
        layers=[{"name": name, "times": [GPU, SLOW]} for name in names],
        edges=[{"from": a, "to": [b], "bytes_per_sample": 1e9} for a, b in pairwise(names)],
    )
    for device in given["pool"]["device"] if of_machine > 1 else ():
        device.update(machine)
    asked = plan(*(([name], replicas) for name, replicas in zip(names, stages, strict=True)))
    return [stage.transfer_s for stage in predicted(given, asked).stages[:-1]]


def test_stages_of_one_machine_talk_inside_of_it_and_replicas_of_one_share_its_card() -> None:
    one, two, slow = [{"device": "gpu"}], [{"device": "gpu", "count": 2}], [{"device": "slow"}]
    assert in_machines(2, one, one, one) == pytest.approx([0.1, 1.0])  # the third opens another machine
    assert in_machines(4, two, two) == pytest.approx([0.1])
    assert in_machines(2, two, two) == pytest.approx([2.0])  # both at once over one card
    assert in_machines(4, one, two, two) == pytest.approx([0.1, 2.0])  # units 3 and 4 are of two machines
    assert in_machines(4, one, slow, one) == pytest.approx([1.0, 1.0])  # another type, another machine
    assert in_machines(4, one, [*one, *slow]) == pytest.approx([1.0])
    assert in_machines(1, two, two) == pytest.approx([1.0])


def test_the_search_takes_what_a_type_of_one_machine_sends_inside_as_the_prediction_does() -> None:
    def document(of_machine: int) -> dict[str, Any]:
        names = ["a", "b", "c"]
        drawn = problem(
            layers=[{"name": name, "times": [GPU]} for name in names],
            edges=[{"from": a, "to": [b], "bytes_per_sample": 1e9} for a, b in pairwise(names)],
        )
        for device in drawn["pool"]["device"]:
            device.update(units_per_machine=of_machine, inner_bandwidth="10 GB/s", inner_latency="1 ms", max_units=4)
        return drawn

    one, two = (pose_given(make_given(document(size), "it"), make_request("USD")).problem for size in (4, 2))
    assert one.link_seconds_per_byte is not None
    assert two.link_seconds_per_byte is None
    message_s = float(one.link_seconds_per_byte[0, 0]) * 1e9 + 0.001
    stages = [([name], [{"device": "gpu"}]) for name in ("a", "b", "c")]
    assert [each.transfer_s for each in predicted(document(4), plan(*stages)).stages] == [message_s, message_s, 0.0]
