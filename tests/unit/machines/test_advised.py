"""An elastic run that decides by itself: what it is told about a lost host, from its folder and its checkpoint."""

import datetime as dt
import json
import shlex
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.machines import Goal, choose, compile_for
from heterps_compile.machines.advised import advisor_for
from heterps_compile.machines.chosen_file import read_chosen, read_goal, transience_record
from heterps_compile.machines.goal import KindLifetime, Transience
from heterps_compile.offers import Catalogue, Offer
from heterps_compile.runtime.checkpoint.format import write_state
from heterps_compile.runtime.checkpoint.state import RunState
from heterps_compile.runtime.engines.advice import Loss
from heterps_compile.transient.lifetime import Weibull, exponential

GIB = 2**30
DAY = dt.date(2026, 11, 1)
T4 = Offer("aws", "us-east-1", "g4dn.xlarge", "t4", 1, 4, 16 * GIB, 16 * GIB, 1.25e9, 0.0, 0.526, 0.2, DAY, "here")
MODEL = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
BATCH = (torch.ones(4, 256),)
BIG = 16_384
HOUR = 3600.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder for two machines, since one is too slow, with a checkpoint after half the samples."""
    where = tmp_path_factory.mktemp("advised")
    offers = Catalogue((T4,), "a test")
    one = choose(MODEL, Goal(1e11, (BIG,), deadline_s=1e9, most_machines=1), offers, example_inputs=BATCH)
    asked = Goal(1e11, (BIG,), deadline_s=0.8 * one.best.outlook.most_s, most_machines=3)
    answer = choose(MODEL, asked, offers, example_inputs=BATCH)
    assert answer.best.machines.count == 2
    compile_for(MODEL, answer, where / "out", example_inputs=BATCH, time_limit=1)
    kept = where / "ck" / "step-3051700"
    kept.mkdir(parents=True)
    save_file(dict(MODEL.state_dict()), kept / "weights-0.safetensors")
    plan = json.loads((where / "out" / "plan.json").read_text())
    write_state(kept, RunState(3051700, 3051700 * BIG, BIG, 0, plan["provenance"]["hashes"]["model"], "p", (0,)))
    return where


def advisor_of(folder, offers=(T4,), **more):
    made = advisor_for(MODEL, str(folder / "out"), str(folder / "ck"), example_inputs=BATCH, **more)
    return replace(made, catalogue=Catalogue(offers, "a test"))


def loss(elapsed_s=60.0, patience_s=30.0, hosts=("a", "b"), lost=("b",)):
    return Loss(hosts, lost, elapsed_s, patience_s)


@pytest.mark.slow  # several models are profiled
def test_what_was_asked_is_read_from_the_folder(folder):
    goal, chosen = read_goal(folder / "out"), read_chosen(folder / "out")
    assert (goal.samples, goal.batches, goal.most_machines, goal.spot, goal.budget) == (1e11, (BIG,), 3, False, None)
    assert goal.deadline_s == advisor_of(folder).goal.deadline_s
    assert advisor_of(folder, deadline_s=5.0).goal.deadline_s == 5.0
    assert chosen.machines.count == 2


def test_lifetimes_that_machines_were_chosen_by_are_those_that_it_is_decided_by(folder, tmp_path):
    document = json.loads((folder / "out" / "machines.json").read_text())
    said = Transience(exponential(20.0), 60.0, (KindLifetime("t4", Weibull(0.6, 9.0), "fitted"),))
    document["asked"] |= {"transience": transience_record(said), "counts_start": True}
    (tmp_path / "machines.json").write_text(json.dumps(document))
    goal = read_goal(tmp_path)
    assert (goal.transience.lifetime, goal.transience.lifetime_of("t4")) == (Weibull(1.0, 20.0), Weibull(0.6, 9.0))
    assert (goal.transience.start_up_s, goal.counts_start) == (60.0, True)
    version_2 = {"start_up_s": 1, "lifetime": {"shape": 1.0, "scale_h": 20.0}, "seen": []}
    for broken in ({"start_up_s": -1, "lifetime": None, "seen": []}, version_2, 3):
        document["asked"]["transience"] = broken
        (tmp_path / "machines.json").write_text(json.dumps(document))
        with pytest.raises(InputError):
            read_goal(tmp_path)


def test_the_run_stays_where_one_machine_keeps_the_deadline_and_waits_where_it_does_not(folder):
    stays = advisor_of(folder)(loss())
    assert (stays.kind, stays.command) == ("stay", "")
    assert stays.told[0].startswith(f"left: {1e11 - 3051700 * BIG:,.0f} samples behind step-3051700")
    assert stays.told[1] == "lost: 1 of 2 g4dn.xlarge machines"
    asked_s = read_goal(folder / "out").deadline_s
    late = advisor_of(folder)(loss(elapsed_s=0.55 * asked_s))
    assert late.kind == "wait"
    spent = 0.55 * asked_s / HOUR * 2 * 0.526
    assert f"{spent:.2f} USD are spent" in late.told[0]


def test_a_run_that_is_to_move_is_told_the_command(folder):
    cheaper = replace(T4, region="eu-1", price_per_hour=0.05)
    goal = read_goal(folder / "out")
    moves = advisor_of(folder, (replace(T4, price_per_hour=5.0), cheaper), spent=3.0)(loss())
    assert moves.kind == "move"
    words = shlex.split(moves.command)
    assert words[:2] == ["heterps-compile", "machines"]
    told = dict(zip(words[3::2], words[4::2], strict=True))
    assert told["--samples"] == "100000000000"
    assert told["--deadline"] == f"{goal.deadline_s - 60:.0f}s"
    assert (told["--lost"], told["--spent"]) == ("1", "3.02 USD")
    assert (told["--resume"], told["--plan"]) == (str(folder / "ck"), str(folder / "out"))
    assert told["-o"] == str(folder / "out") + "-moved"


def test_what_cannot_be_decided_is_said(folder):
    with pytest.raises(InputError, match="over"):
        advisor_of(folder, deadline_s=50.0)(loss())
    with pytest.raises(InfeasibleError, match="nearest"):
        advisor_of(folder, deadline_s=70.0)(loss())
    with pytest.raises(InputError, match=r"\b3\b.*\b2\b.*g4dn"):
        advisor_of(folder)(loss(hosts=("a", "b", "c"), lost=("c",)))
    other = torch.nn.Sequential(torch.nn.Linear(256, 4))
    with pytest.raises(InputError, match="Sequential"):
        advisor_for(other, str(folder / "out"), str(folder / "ck"), example_inputs=BATCH)
    document = json.loads((folder / "out" / "machines.json").read_text())
    broken = folder / "broken"
    broken.mkdir()
    for name, value, fault in (
        ("samples", -1, "samples"),
        ("spot", "yes", "spot.*'yes'"),
        ("deadline_s", float("nan"), "NaN"),
        ("max_machines", None, "max_machines"),
    ):
        (broken / "machines.json").write_text(json.dumps(document | {"asked": document["asked"] | {name: value}}))
        with pytest.raises(InputError, match=fault):
            read_goal(broken)
    (broken / "machines.json").write_text(json.dumps({name: document[name] for name in document if name != "asked"}))
    with pytest.raises(InputError, match="asked"):
        read_goal(broken)
    document["chosen"]["machines"] *= 2
    (broken / "machines.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match="--lost"):
        advisor_for(MODEL, str(broken), "ck")
