"""What measurements say of kinds of GPUs: the factors, the rows, a run's log as a row, and what is refused."""

import json
import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from heterps_compile.api import read_model
from heterps_compile.errors import HeterpsError, InputError
from heterps_compile.machines import Goal, choose, compile_for, row_of_run, rows_text, run_row
from heterps_compile.machines.chosen_file import CHOSEN_NAME, read_chosen
from heterps_compile.machines.learned import (
    PREDICTION_ERROR,
    Learned,
    Parts,
    can_be_told_apart,
    learn,
    slowed,
    student_quantile,
)
from heterps_compile.machines.machines_words import answer_document, told
from heterps_compile.machines.measured_runs import read_measured
from heterps_compile.machines.step_times import StepTimes
from heterps_compile.offers import read_catalogue
from heterps_compile.offers.as_device import data_sheet
from heterps_compile.plan.request import make_request

HEADER = "gpu,units,machines,batch,step_s,date,source,predicted_s,model,flop_per_sample,precision"
MODEL = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
BATCH = (torch.ones(4, 256),)
GOAL = Goal(3e11, (1024,), deadline_s=4e7, most_machines=2)


def file_of(tmp_path, *rows, header=HEADER):
    path = tmp_path / "runs.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def ask(path, **more):
    offers = read_catalogue().select(gpu=["t4"], region=["us-east-1"])
    return choose(MODEL, GOAL, offers, example_inputs=BATCH, learn=path, **more)


def test_the_quantile_is_that_of_students_tables():
    assert [round(student_quantile(0.9, freedom), 3) for freedom in (1, 2, 3, 4, 5, 10, 30)] == [
        3.078, 1.886, 1.638, 1.533, 1.476, 1.372, 1.310,
    ]  # fmt: skip


def test_few_measurements_are_held_back_and_many_are_believed():
    one, ten, hundred = (learn({"v100": [2.0] * count}).corrections[0] for count in (1, 10, 100))
    assert [round(each.factor, 3) for each in (one, ten, hundred)] == [1.414, 1.878, 1.986]
    assert one.error > ten.error > hundred.error
    assert PREDICTION_ERROR > one.late > ten.late > hundred.late > 0
    assert one.factor * (1 + one.late) > 2.0
    of_one_cluster = learn({"v100": [2.0] * 100}, sources={"v100": ["there"] * 100}).corrections[0]
    assert (of_one_cluster.factor, of_one_cluster.late > ten.late) == (hundred.factor, True)


def test_the_quantile_covers_nine_of_ten_runs_whose_factor_is_as_the_prior_has_it():
    draw = np.random.default_rng(0)
    before = math.log1p(PREDICTION_ERROR) / student_quantile(0.9, 4) / math.sqrt(2)
    hits = []
    for _ in range(4000):
        deviation = before * math.sqrt(4 / draw.chisquare(4))
        mean = draw.normal(0, deviation)
        logs = draw.normal(mean, deviation, 4)
        found = learn({"a": np.exp(logs[:3]).tolist()}).corrections[0]
        hits.append(math.exp(logs[3]) <= found.factor * (1 + found.late))
    assert 0.88 < statistics.fmean(hits) < 0.92


def test_without_measurements_it_is_the_error_of_predictions():
    learned = learn({"v100": [1.0] * 5})
    assert Learned().late(["v100"]) == PREDICTION_ERROR == learned.late(["t4"])
    assert learned.late(["v100"]) < PREDICTION_ERROR == learned.late(["v100", "t4"])
    of_two = learn({"v100": [1.0] * 5, "a100": [4.0]})
    assert of_two.factor("t4") == pytest.approx(4 ** (1 / 3))
    assert of_two.late(["t4"]) == PREDICTION_ERROR


def test_computing_and_sending_are_told_apart_by_rows_that_send_different_parts():
    draw = np.random.default_rng(3)
    shares = [0.0, 0.0, 0.1, 0.3, 0.5, 0.6, 0.7, 0.8] * 6
    rows = [Parts(math.exp(draw.normal(0, 0.02)) * (2.0 * (1 - s) + 0.8 * s), 1 - s, s) for s in shares]
    assert can_be_told_apart(rows)
    (found,) = learn({"v100": [1.0] * len(rows)}, parts={"v100": rows}).corrections
    assert found.factor == pytest.approx(2.0, rel=0.05)
    assert found.of_sending == pytest.approx(0.8, rel=0.08)
    assert found.words.startswith("v100 is taken to compute ")
    assert found.late < PREDICTION_ERROR / 4
    few = learn({"v100": [1.0] * 3}, parts={"v100": [rows[0], rows[3], rows[7]]}).corrections[0]
    assert abs(math.log(few.factor)) < abs(math.log(found.factor))  # held back towards 1
    assert few.late > found.late
    unit = slowed(data_sheet("v100"), found.factor, found.of_sending)
    assert unit.network_bytes_per_s == pytest.approx(data_sheet("v100").network_bytes_per_s / found.of_sending)
    assert unit.memory_bytes_per_s == pytest.approx(data_sheet("v100").memory_bytes_per_s / found.factor)


def test_what_is_least_is_that_of_a_search_over_both_factors():
    rows = [Parts(3.0, 1.0, 0.0), Parts(2.5, 0.6, 0.4), Parts(2.0, 0.2, 0.9)]
    found = learn({"a": [1.0]}, parts={"a": rows}).corrections[0]

    def value(logs):
        c, n = np.exp(logs)
        missed = sum(math.log(each.measured_s / (c * each.computed_s + n * each.sent_s)) ** 2 for each in rows)
        return missed + float(np.sum(np.square(logs)))

    best = minimize(value, [0.0, 0.0])
    assert np.log([found.factor, found.of_sending]) == pytest.approx(best.x, abs=1e-4)


def test_rows_that_send_nothing_are_the_same_with_one_factor_and_with_two():
    one = learn({"a": [2.0, 3.0, 4.0]}).corrections[0]
    rows = [Parts(ratio, 1.0, 0.0) for ratio in (2.0, 3.0, 4.0)]
    assert can_be_told_apart(rows), "they say nothing of sending, which is as predicted"
    assert not can_be_told_apart([Parts(3.0, 1.0, 0.5)] * 4)
    two = learn({"a": [1.0]}, parts={"a": rows}).corrections[0]
    assert (two.factor, two.error, two.of_sending) == (pytest.approx(one.factor), pytest.approx(one.error), 1.0)
    # sending is as uncertain as before any row
    assert two.late > one.late


def test_rows_of_the_model_on_several_machines_correct_its_network_by_itself(tmp_path, monkeypatch):
    times = StepTimes(_graph, make_request("USD", mode="training"))
    rows = []
    for machines in (1, 1, 2, 4, 4, 8):
        units = np.array([float(machines)])
        device = next(read_measured(file_of(tmp_path, f"t4,{machines},{machines},64,1,2026-11-20,me,1,,,"))).device
        computed_s = float(times.computed_s(device, units, 64)[0])
        sent_s = float(times.likely_s(device, units, 64)[0]) - computed_s
        rows.append(f"t4,{machines},{machines},64,{3 * computed_s + sent_s},2026-11-20,me,,Sequential,,")
    answer = ask(file_of(tmp_path, *rows))
    (found,) = answer.best.machines.learned.corrections
    assert 2 < found.factor < 3
    assert 0.9 < found.of_sending < 1.3
    assert not any("slowed by one factor" in note for note in answer.notes)
    document = json.loads(answer_document(answer))
    assert document["learned"]["corrections"][0]["sending"] == found.sending
    plan = compile_for(MODEL, answer, tmp_path / "out", example_inputs=BATCH, time_limit=1).plan
    assert read_chosen(tmp_path / "out").machines.learned == answer.best.machines.learned
    log = tmp_path / "run.jsonl"
    log.write_text("".join(step_line(n) for n in range(20)))
    row = row_of_run(log, tmp_path / "out")
    assert float(row["predicted_s"]) == pytest.approx(plan.schedule.step_s / found.factor, rel=1e-5)
    two = replace(plan, stages=tuple(replace(stage, replicas=2) for stage in plan.stages))
    monkeypatch.setattr(run_row, "read_plan", lambda _: two)
    with pytest.raises(InputError, match="'t4'"):
        row_of_run(log, tmp_path / "out")


def step_line(number, **changed):
    """Return a line of a run's log on one process."""
    line = {"step": number, "samples": 1024, "pace_s": 0.5, "learning_rate": 0.1, "ranks": [{}]}
    return json.dumps(line | changed) + "\n"


def test_a_step_on_one_kind_is_the_predicted_one_times_the_factor(tmp_path):
    plain = ask(None)
    path = file_of(tmp_path, *["t4,1,1,64,0.2,2026-11-20,me,0.1,,,"] * 3)
    corrected = ask(path)
    factor = 2 ** (3 / 4)
    assert corrected.best.machines.parts == plain.best.machines.parts
    assert corrected.best.step.step_s == pytest.approx(factor * plain.best.step.step_s, rel=1e-6)
    late = corrected.best.machines.late
    assert corrected.best.outlook.most_s == pytest.approx(corrected.best.outlook.median_s * (1 + late))
    assert corrected.bound == pytest.approx(factor * plain.bound, rel=1e-6)
    line = next(line for line in told(corrected) if line.startswith("learned:"))
    assert line.startswith("learned: t4 is taken to compute 1.68 (± ")
    assert " and to send 1 (± " in line
    assert line.endswith("(runs.csv)")
    document = json.loads(answer_document(corrected))
    assert document["learned"]["corrections"][0]["rows"] == 3
    assert document["prediction_error"] == late


def test_what_was_learned_is_in_the_folder_and_read_again(tmp_path):
    answer = ask(file_of(tmp_path, "t4,1,1,64,0.2,2026-11-20,me,0.1,,,"))
    compiled = compile_for(MODEL, answer, tmp_path / "out", example_inputs=BATCH, time_limit=1)
    chosen = read_chosen(tmp_path / "out")
    assert chosen.machines.parts == answer.best.machines.parts
    assert chosen.machines.learned == replace(answer.best.machines.learned, notes=())
    assert "t4 is taken to compute 1.41 (± " in (tmp_path / "out" / "pool.toml").read_text()
    assert compiled.plan.schedule.step_s == pytest.approx(answer.best.step.step_s, rel=0.05)
    log = tmp_path / "run.jsonl"
    log.write_text("".join(step_line(n, pace_s=0.5 + (n == 0)) for n in range(20)))
    row = row_of_run(log, tmp_path / "out")
    assert (row["gpu"], row["units"], row["batch"], row["step_s"]) == ("t4", "1", "1024", "0.5")
    assert float(row["predicted_s"]) == pytest.approx(compiled.plan.schedule.step_s / 2**0.5, rel=1e-5)
    (tmp_path / "again.csv").write_text(rows_text([row]))
    assert next(read_measured(tmp_path / "again.csv")).step_s == 0.5
    log.write_text(step_line(0, samples=8))
    with pytest.raises(InputError, match=r"\b8\b.*1,024"):
        row_of_run(log, tmp_path / "out")
    for changed, fault in (
        ({"ranks": [{}] * 2}, r"step 0\b.*\b2\b.*\b1\b"),
        ({"ranks": None}, r"run.jsonl.*step 0\b.*processes.*\b1 unit"),
        ({"learning_rate": None}, r"step 0\b.*learning"),
    ):
        log.write_text("".join(step_line(n, **changed) for n in range(20)))
        with pytest.raises(InputError, match=fault):
            row_of_run(log, tmp_path / "out")
    log.write_text(step_line(0))
    with pytest.raises(InputError, match=r"\b1\b.*\b0\b.*\b10\b"):
        row_of_run(log, tmp_path / "out")
    log.write_text("not json\n")
    with pytest.raises(InputError, match=r"line 1\b"):
        row_of_run(log, tmp_path / "out")
    answer_file = tmp_path / "out" / CHOSEN_NAME
    text = answer_file.read_text()
    for old, new, fault in (
        ('"count": 1', '"count": -1', "count.*-1"),
        ('"batch": 1024', '"batch": 1e300', "1e"),
        ('"version": 3', '"version": 7', "version"),
        ('"gpu": "t4"', '"gpu": 3', r"\b3\b"),
        ('"step_s": 0', '"step_s": -0', "step_s"),
    ):
        answer_file.write_text(text.replace(old, new))
        with pytest.raises(InputError, match=fault):
            read_chosen(tmp_path / "out")
    answer_file.write_text("[" * 100_000)
    with pytest.raises(InputError, match=CHOSEN_NAME):
        read_chosen(tmp_path / "out")


def test_rows_are_compared_with_a_prediction_the_model_or_its_operations(tmp_path):
    times = StepTimes(_graph, make_request("USD", mode="training"))
    predicted_s = float(times.likely_s(data_sheet("t4"), np.array([1.0]), 512)[0])
    path = file_of(
        tmp_path,
        f"t4,1,1,512,{predicted_s * 1.2},2026-11-20,me,,Sequential,,fp32",
        "t4,1,1,512,1.2,2026-11-20,me,1.0,other,,",
        f"t4,1,1,512,{1.2 * 512e6 / data_sheet('t4').flops_per_s('float32')},2026-11-20,me,,other,1e6,",
        "t4,1,1,512,9,2026-11-20,me,1.0,,,bf16",
        "t4,1,1,512,9,2026-11-20,me,,other,,",
    )
    answer = ask(path)
    (correction,) = answer.best.machines.learned.corrections
    assert (correction.rows, correction.factor) == (3, pytest.approx(1.2**0.75))
    assert answer.notes[-2:] == (
        "left out of what is learned: 1 row in another precision than fp32",
        "left out of what is learned: 1 row of other models, with neither predicted_s nor flop_per_sample (this one is "
        "Sequential)",
    )
    several = ask(file_of(tmp_path, "t4,4,2,64,0.2,2026-11-20,me,0.1,,,"))
    assert "1 row of several units do not say what part of the prediction is sent; name the model" in several.notes[-1]


def _graph(batch):
    return read_model(MODEL, BATCH, batch=batch)


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("t4,1,1,64,-0.2,2026-11-20,me,0.1,,,", r"row 2\b.*step_s '-0\.2'.*\b0\b.*1e\+06"),
        ("t4,1,1,64,nan,2026-11-20,me,0.1,,,", r"row 2\b.*step_s 'nan'"),
        ("t4,1,1,64,1e300,2026-11-20,me,0.1,,,", r"row 2\b.*step_s '1e300'.*\b0\b"),
        ("t4,1,1,64,0.2,2026-11-20,me,0.0001,,,", r"row 2\b.*step_s 0\.2.*2e\+03.*100"),
        (
            "z80,1,1,64,0.2,2026-11-20,me,0.1,,,",
            r"row 2\b.*'z80'",
        ),
        (",1,1,64,0.2,2026-11-20,me,0.1,,,", r"row 2\b.*gpu.*empty"),
        ("t4,1.5,1,64,0.2,2026-11-20,me,0.1,,,", r"row 2\b.*'1\.5'"),
        ("t4,1,2,64,0.2,2026-11-20,me,0.1,,,", r"row 2\b.*\b1\b.*\b2\b"),
        ("t4,1,1,0,0.2,2026-11-20,me,0.1,,,", r"row 2\b.*'0'.*\b0\b"),
        (
            "t4,1,1,64,0.2,yesterday,me,0.1,,,",
            r"row 2\b.*'yesterday'",
        ),
        ("t4,1,1,64,0.2,2026-11-20,,0.1,,,", r"row 2\b.*source"),
        (
            "t4,1,1,64,0.2,2026-11-20,me,,,,",
            r"row 2\b.*step_s.*predicted_s",
        ),
        ("t4,1,1,64,0.2,2026-11-20,me,0.1,,,fp8", r"row 2\b.*'fp8'.*fp32.*bf16.*fp16"),
        ("t4,1,1,64,0.2", r"row 2\b.*\b5\b.*\b11\b"),
        ("t4,1,1,64,0.2,2026-11-20,me,,other,,", r"nothing.*\b1\b"),
    ],
)
def test_a_row_that_says_something_wrong_is_named(tmp_path, row, fault):
    with pytest.raises(HeterpsError, match=fault):
        ask(file_of(tmp_path, row))


def test_a_file_that_holds_no_measurements_is_refused(tmp_path):
    with pytest.raises(InputError, match="header"):
        ask(file_of(tmp_path))
    with pytest.raises(InputError, match="lacks"):
        ask(file_of(tmp_path, "t4,1,64,0.2,me", header="gpu,units,batch,step_s,source"))
    with pytest.raises(InputError, match="'colour'"):
        ask(file_of(tmp_path, "t4,1,1,64,0.2,2026-11-20,me,0.1,,,,red", header=HEADER + ",colour"))
    with pytest.raises(InputError, match="No such file"):
        ask(tmp_path / "none.csv")
    large = tmp_path / "large.csv"
    with large.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(InputError, match=r"1\.07 GB.*\b16\b MiB"):
        ask(large)
    with pytest.raises(InputError, match=r"row 10002.*10,000"):
        ask(file_of(tmp_path, *["t4,1,1,64,0.2,2026-11-20,me,0.1,,,"] * 10_001))


def test_slower_units_take_so_much_longer_in_everything():
    unit = data_sheet("v100")
    slow = slowed(unit, 2.0)
    assert slow.flops_per_s("float32") == unit.flops_per_s("float32") / 2
    assert (slow.launch_s, slow.network_latency_s) == (2 * unit.launch_s, 2 * unit.network_latency_s)
    assert (slow.memory_bytes, slow.price_per_hour) == (unit.memory_bytes, unit.price_per_hour)
