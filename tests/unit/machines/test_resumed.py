"""A run that goes on: what is left, what its machines cost today, and whether it stays, moves or waits."""

import datetime as dt
import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from heterps_compile.api import read_model
from heterps_compile.errors import HeterpsError, InfeasibleError, InputError
from heterps_compile.machines import Goal, choose, compile_for, decide_for, standing_of
from heterps_compile.machines.chosen_file import Chosen
from heterps_compile.machines.learned import learn
from heterps_compile.machines.machine_set import MachineSet
from heterps_compile.machines.resume_words import nothing_to_write, resumption_document, told
from heterps_compile.machines.resumed import PLANNING_S, Standing, lost_of, resume
from heterps_compile.machines.step_times import StepTimes
from heterps_compile.offers import Catalogue, Offer, Rental
from heterps_compile.plan.request import make_request
from heterps_compile.plan.source import read_plan
from heterps_compile.runtime.checkpoint.folder import step_name
from heterps_compile.runtime.checkpoint.format import write_state
from heterps_compile.runtime.checkpoint.state import RunState

GIB = 2**30
DAY = dt.date(2026, 11, 1)
V100 = Offer("aws", "us-east-1", "p3.2xlarge", "v100", 1, 8, 61 * GIB, 16 * GIB, 1.25e9, 0.0, 3.06, None, DAY, "here")
T4 = replace(V100, instance="g4dn.xlarge", gpu="t4", price_per_hour=0.526, spot_per_hour=0.2)
MODEL = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 8))
BATCH = (torch.ones(4, 1024),)
HOUR = 3600.0
SEEN = 10**9


@pytest.fixture(scope="module")
def times():
    read = {}

    def graph(batch):
        if batch not in read:
            read[batch] = read_model(MODEL, BATCH, batch=batch)
        return read[batch]

    return StepTimes(graph, make_request("USD", mode="training"))


def standing(times, *parts, **more):
    machines = MachineSet(parts, times.learned)
    step = times.searched(machines, 1024)
    return Standing(Chosen(machines, 1024, step.step_s, step.stages), SEEN, "step-000100", **more)


def goal(hours, work_h, times, count=2, **more):
    """Return a goal whose samples take so many hours on some T4s, behind those that were seen."""
    step = times.searched(MachineSet(((Rental(T4), count),)), 1024)
    samples = SEEN + work_h * HOUR / step.step_s * 1024
    return Goal(samples, (1024,), deadline_s=hours * HOUR, most_machines=4, **more)


def test_a_run_stays_where_nothing_is_cheaper(times):
    found = resume(Catalogue((V100, T4), "a test"), times, goal(40, 10, times, 1), standing(times, (Rental(T4), 1)))
    taken = found.decision.taken
    assert taken.course.kind == "stay"
    assert taken.time_s.median == pytest.approx(10 * HOUR, rel=1e-6)
    assert taken.time_s.most == pytest.approx(28.8 * HOUR, rel=1e-6)
    assert taken.money.median == pytest.approx(5.26, rel=1e-6)
    assert found.answer_of_move is None
    assert nothing_to_write(found) == "nothing is written: the run keeps 1 machine and its plan"


def test_dearer_machines_are_left_where_what_is_saved_pays_for_the_move(times):
    offers = Catalogue((replace(T4, price_per_hour=5.0), replace(T4, region="eu-1")), "a test")
    run = standing(times, (Rental(T4), 1), spent=7.0)
    moved = resume(offers, times, goal(40, 10, times, 1), run)
    taken = moved.decision.taken
    assert (taken.course.kind, moved.ways[0].machines.parts[0][0].offer.region) == ("move", "eu-1")
    checkpoint_s = taken.course.before_s - PLANNING_S
    assert 0 < checkpoint_s < 1
    first = 7.0 + 5.0 * taken.course.before_s / HOUR
    assert taken.money.median == pytest.approx(first + 0.526 * (10 + 180 / HOUR), rel=1e-6)
    assert moved.answer_of_move.best is moved.ways[0].option
    lines = list(told(moved))
    assert "price: aws g4dn.xlarge in us-east-1 is 5.00 USD/h, and was 0.526" in lines
    assert any(line.startswith("move to 1 x aws g4dn.xlarge in eu-1 (t4 x 1): ") for line in lines)
    assert any(line.startswith("moving: 5 min and ") and "3 min of starting up on the new" in line for line in lines)
    short = resume(offers, times, goal(20, 0.02, times, 1), run)
    assert short.decision.taken.course.kind == "stay"


def test_lost_machines_are_waited_for_or_done_without(times):
    offers = Catalogue((T4,), "a test")
    run = standing(times, (Rental(T4), 2), lost=(1,))
    within = resume(offers, times, goal(36, 10, times), run)
    assert {way.course.kind for way in within.ways} >= {"stay", "wait"}
    stays = next(way for way in within.ways if way.course.kind == "stay")
    assert stays.machines.parts == ((Rental(T4), 1),)
    assert stays.course.samples_per_s == pytest.approx(1024 / times.searched(stays.machines, 1024).step_s)
    waits = next(way for way in within.ways if way.course.kind == "wait")
    assert waits.machines.parts == ((Rental(T4), 2),)
    assert all(way.machines.parts != waits.machines.parts for way in within.ways if way.course.kind == "move")
    assert "lost: 1 of 2 g4dn.xlarge machines" in list(told(within))
    late = resume(offers, times, goal(36, 10, times), replace(run, wait_s=9 * HOUR))
    assert next(outcome for outcome in late.decision.outcomes if outcome.course.kind == "wait").failing
    gone = resume(offers, times, goal(36, 10, times), replace(run, lost=(2,)))
    assert "stay" not in {way.course.kind for way in gone.ways}
    assert gone.notes[0] == "all machines are lost, so that the run cannot stay"


def test_machines_that_are_no_longer_offered_keep_their_price(times):
    found = resume(
        Catalogue((V100,), "a test"), times, goal(40, 10, times, 1), standing(times, (Rental(T4, spot=True), 1))
    )
    assert found.notes[0] == (
        "aws g4dn.xlarge in us-east-1 is not offered as spot by a test; its price of 2026-11-01, 0.2 USD/h, is taken"
    )
    stays = next(way for way in found.ways if way.course.kind == "stay")
    assert stays.machines.price_per_hour == 0.2


def test_what_it_may_move_to_says_nothing_of_what_its_own_machines_cost(times):
    offered = Catalogue((V100, replace(T4, price_per_hour=0.6)), "a test")
    found = resume(
        Catalogue((V100,), "a part"), times, goal(40, 10, times, 1), standing(times, (Rental(T4), 1)), prices=offered
    )
    assert not any("is not offered" in note for note in found.notes)
    stays = next(way for way in found.ways if way.course.kind == "stay")
    assert stays.machines.price_per_hour == 0.6


def test_what_was_learned_then_or_since_counts(times):
    slow = learn({"t4": [1.0] * 3 + [1.5] * 9})
    run = standing(times.with_learned(slow), (Rental(T4), 1))
    asked = goal(40, 10, times, 1)
    found = resume(Catalogue((T4,), "a test"), times, asked, run)
    assert found.decision.taken.time_s.median == pytest.approx(10 * HOUR * slow.factor("t4"), rel=1e-6)
    newer = learn({"t4": [2.0] * 30})
    found = resume(Catalogue((T4,), "a test"), times.with_learned(newer), asked, run)
    assert found.decision.taken.time_s.median == pytest.approx(10 * HOUR * newer.factor("t4"), rel=1e-6)


def test_what_is_done_is_no_longer_decided_about(times):
    run = standing(times, (Rental(T4), 1))
    offers = Catalogue((T4,), "a test")
    with pytest.raises(InputError, match=r"1,000,000,000.*step-000100.*500,000,000"):
        resume(offers, times, Goal(5e8, (1024,), deadline_s=1.0), run)
    with pytest.raises(InputError, match=r"9\.00 USD.*8\.00"):
        resume(offers, times, Goal(5e9, (1024,), budget=8.0), replace(run, spent=9.0))
    with pytest.raises(InfeasibleError, match=r"\b1\b.*g4dn.xlarge.*28\.8.*\b1\b"):
        resume(offers, times, goal(1, 10, times, 1), run)


def test_lost_machines_are_counted_by_instance():
    one = MachineSet(((Rental(T4), 4),))
    two = MachineSet(((Rental(T4), 4), (Rental(V100), 2)))
    assert lost_of(None, one) == (0,)
    assert lost_of("3", one) == lost_of("g4dn.xlarge=3", one) == (3,)
    assert lost_of("p3.2xlarge=1, g4dn.xlarge=2", two) == (2, 1)
    for text, machines, fault in (
        ("5", one, r"\b5\b.*\b4\b"),
        ("1,4", one, r"\b5\b.*\b4\b"),
        ("-1", one, "'-1'"),
        ("1e9", one, "'1e9'"),
        ("", one, "''"),
        ("2", two, r"'2'.*\b4\b"),
        ("p4=1", two, "'p4=1'"),
    ):
        with pytest.raises(InputError, match=fault):
            lost_of(text, machines)


def written_checkpoint(ckpt, step, state, model=MODEL):
    """Write a checkpoint whose weights are those of a model; return its folder."""
    folder = ckpt / step_name(step)
    folder.mkdir(parents=True)
    save_file(dict(model.state_dict()), folder / "weights-0.safetensors")
    write_state(folder, state)
    return folder


def test_a_run_is_decided_about_from_its_folders(tmp_path):
    offers = Catalogue((T4, replace(V100, price_per_hour=30.0)), "a test")
    asked = Goal(3e9, (1024,), deadline_s=4e5, most_machines=2)
    answer = choose(MODEL, asked, offers, example_inputs=BATCH)
    compile_for(MODEL, answer, tmp_path / "out", example_inputs=BATCH, time_limit=1)
    with pytest.raises(HeterpsError, match="--checkpoint"):
        standing_of(tmp_path / "out", tmp_path / "ckpt")
    sha256 = read_plan(str(tmp_path / "out")).hashes["model"]
    for step in (100, 200):
        folder = written_checkpoint(tmp_path / "ckpt", step, RunState(step, step * 1024, 1024, 0, sha256, "p", (0,)))
    now = standing_of(tmp_path / "out", tmp_path / "ckpt", spent=1.5)
    assert (now.checkpoint, now.samples, now.chosen.machines.parts) == (
        "step-000200",
        204_800,
        answer.best.machines.parts,
    )
    assert standing_of(tmp_path / "out", tmp_path / "ckpt" / "step-000100").samples == 102_400
    found = decide_for(MODEL, asked, now, offers, example_inputs=BATCH)
    document = json.loads(resumption_document(found))
    assert document["decision"] == "stay" == document["courses"][0]["kind"]
    assert document["left"] | {"checkpoint": ""} == {
        "samples": 3e9 - 204_800, "seen": 204_800, "checkpoint": "", "deadline_s": 4e5, "budget_usd": None,
        "spent_usd": 1.5, "lost": [0], "wait_s": 0.0,
    }  # fmt: skip
    assert document["told"] == list(told(found))
    assert "step-000200 was written under another plan (SHA-256 p…)" in document["notes"][0]
    other = torch.nn.Sequential(torch.nn.Linear(1024, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8))
    with pytest.raises(InputError, match=r"Sequential.*SHA-256"):
        decide_for(other, asked, now, offers, example_inputs=BATCH)
    state = RunState(300, 300 * 1024, 1024, 0, sha256, "p", (0,), sync=(("sgd", 3),))
    noted_folder = written_checkpoint(tmp_path / "ckpt", 300, state)
    noted = standing_of(tmp_path / "out", tmp_path / "ckpt")
    assert "step-000300 was written by 3 replicas of the stages" in noted.notes[1]
    for at, alien, fault in (
        (400, other, r"step-000400.*'0.bias'.*\[512\].*\[1024\]"),
        (500, torch.nn.Bilinear(2, 2, 2), r"step-000500.*\b2\b"),
    ):
        strange = written_checkpoint(tmp_path / "strange", at, state, alien)
        with pytest.raises(HeterpsError, match=fault):
            standing_of(tmp_path / "out", strange)
    shutil.rmtree(noted_folder)
    write_state(folder, RunState(200, 200 * 512, 512, 0, "m", "p", (0,)))
    with pytest.raises(InputError, match=r"step-000200.*512.*1,024"):
        standing_of(tmp_path / "out", tmp_path / "ckpt")
    (folder / "state.json").write_text('{"format": 2}')
    with pytest.raises(HeterpsError, match=r"state\.json"):
        standing_of(tmp_path / "out", tmp_path / "ckpt")
    (tmp_path / "out" / "machines.json").unlink()
    with pytest.raises(InputError, match=r"-o writes.*machines\.json'.*No such file"):
        standing_of(tmp_path / "out", tmp_path / "ckpt")
