"""Ranks that run different things refuse alike."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from plans import PLAN
from torch.distributed import HashStore

from heterps_compile.cost.memory import MemoryParts
from heterps_compile.errors import RunError
from heterps_compile.runtime.launch.preflight import agree, statement
from heterps_compile.runtime.launch.prepare import (
    Prepared,
    check_world_size,
    core_notes,
    count_steps,
    device_notes,
    header,
    places_of,
    step_sharing_cores,
)
from heterps_compile.runtime.launch.run_options import RunOptions
from heterps_compile.runtime.pipeline.layout import make_layout
from heterps_compile.schedule.micro_batch import MicroBatch

LAYOUT = make_layout(PLAN, training=False, replicas=[2, 1])
PREPARED = Prepared(Path("m.heterps"), PLAN, "ab" * 32, LAYOUT, places_of(LAYOUT, 1))
OPTIONS = RunOptions(directory="m", data="x")


def all_say(changed: dict[int, dict]) -> HashStore:
    """Return a store in which three ranks said what they run; some changed it."""
    store = HashStore()
    for rank in range(3):
        said = statement(PREPARED, OPTIONS, "cpu", "127.0.0.1") | changed.get(rank, {})
        store.set(f"agree/{rank}", json.dumps(said))
    return store


def test_ranks_that_agree_know_of_each_other():
    said = agree(all_say({}), 0, 3, statement(PREPARED, OPTIONS, "cpu", "127.0.0.1"))
    assert [one["device"] for one in said] == ["cpu"] * 3


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"torch": "2.6.0"}, "ranks differ in torch: rank 0 has 2.13.0"),
        ({"heterps_compile": "9.9"}, "ranks differ in heterps-compile: rank 0 has 0.1.0, rank 2 has 9.9"),
        ({"python": "3.12.1"}, "rank 2 has 3.12.1"),
        ({"plan": "cd"}, "ranks differ in the plan (SHA-256 of plan.json)"),
        ({"training": "cd"}, "ranks differ in the training file (SHA-256): rank 0 has null, rank 2 has cd"),
        ({"options": OPTIONS.shared() | {"seed": 9}}, "ranks differ in the option seed: rank 0 has 0, rank 2 has 9"),
        ({"options": None}, "rank 2 or rank 0 did not say what options it has"),
    ],
)
def test_a_rank_that_differs_is_named_the_same_on_every_rank(changed, said):
    messages = set()
    for rank in (0, 1):
        with pytest.raises(RunError) as caught:
            agree(all_say({2: changed}), rank, 3, statement(PREPARED, OPTIONS, "cpu", "127.0.0.1"))
        messages.add(str(caught.value))
    (message,) = messages
    assert said in message


def test_a_training_file_is_stated_by_what_is_in_it(tmp_path):
    hashes = []
    for folder, text in (("one", "a = 1"), ("other", "a = 1"), ("edited", "a = 2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text(text)
        options = RunOptions(directory="m", data="x", train=str(tmp_path / folder / "train.py"))
        hashes.append(statement(PREPARED, options, "cpu", "")["training"])
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_rank_that_does_not_come_is_named():
    mine = statement(PREPARED, OPTIONS, "cpu", "127.0.0.1")
    with pytest.raises(RunError, match=r"\b1\b.*\b4\b.*0\.01.*rank 3\b"):
        agree(all_say({}), 0, 4, mine, patience_s=0.01)


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_what_cannot_be_read_is_told(text):
    store = all_say({})
    store.set("agree/1", text)
    with pytest.raises(RunError, match=r"rank 1\b"):
        agree(store, 0, 3, statement(PREPARED, OPTIONS, "cpu", "127.0.0.1"))


def test_a_world_of_another_size_is_refused_with_the_way_out():
    check_world_size(PREPARED, 4)
    with pytest.raises(RunError) as caught:
        check_world_size(PREPARED, 2)
    for part in ("2 processes were started", "3 replicas (2,1", "and 1 parameter server:", "start 4", "--replicas"):
        assert part in str(caught.value)


def test_stages_that_run_elsewhere_than_planned_are_named():
    assert device_notes(PLAN, ["cpu", "cpu"]) == ["stage 1 is planned for v100: no GPU here, on the CPU"]
    assert device_notes(PLAN, ["cpu", "cuda"]) == []


def test_a_run_begins_with_who_runs_what():
    assert header(PREPARED, OPTIONS, ["cpu", "cuda"]) == [
        "ctr: inference, 2 stages on 3 processes + 1 parameter server, gpipe, 4 micro-batches of 16 samples",
        "  stage 0: 1 layer, 2 replicas (planned: 12), ranks 0 to 1",
        "  stage 1: 2 layers, 1 replica, rank 2",
    ]


def test_processes_that_share_cores_are_told():
    assert core_notes(PREPARED, OPTIONS, 4) == []
    (note,) = core_notes(PREPARED, OPTIONS, 2)
    assert note == "  4 processes of 1 thread share 2 cores: steps take longer than on machines of their own"


def test_where_the_plan_tells_it_the_step_on_shared_cores_is_told():
    """Two micro-batches of two stages, forward 0.1 s: 0.2 s a step on two cores, 0.4 s on one."""
    stages = tuple(replace(s, kind="cpu", replicas=1, times=(MicroBatch(2, 0.1),)) for s in PLAN.stages)
    plan = replace(PLAN, stages=stages, schedule=replace(PLAN.schedule, name="gpipe", micro_batches=2))
    layout = make_layout(plan, training=False)
    prepared = replace(PREPARED, plan=plan, layout=layout, places=places_of(layout, 0))
    assert core_notes(prepared, OPTIONS, 2) == []
    assert core_notes(prepared, OPTIONS, 1) == [
        "  2 processes of 1 thread share 1 core: by the plan's times a step takes 400 ms or more, on machines of their "
        "own 200 ms"
    ]
    assert step_sharing_cores(prepared, OPTIONS, 1) == pytest.approx(0.4)
    assert step_sharing_cores(prepared, replace(OPTIONS, threads=2), 1) == 0


@pytest.mark.parametrize(
    ("samples", "given", "steps"),
    [
        (100, {"train": "train.py"}, 6),
        (100, {"train": "train.py", "epochs": 3}, 18),
        (100, {}, 7),  # nobody's answer is left out
        (96, {}, 6),
        (5, {}, 1),
        (None, {"steps": 7}, 7),
        (5, {"steps": 2}, 2),
    ],
)
def test_how_many_steps_a_run_has(samples, given, steps):
    assert count_steps(samples, RunOptions(directory="m", data="x", **given), 16) == steps


@pytest.mark.parametrize(("samples", "said"), [(None, "--steps"), (15, r"\b15\b.*\b16\b")])
def test_a_run_without_steps_is_refused(samples, said):
    with pytest.raises(RunError, match=said):
        count_steps(samples, replace(OPTIONS, train="train.py"), 16)


def test_an_average_of_the_weights_says_its_memory_and_the_stage_that_has_not_so_much():
    options = replace(OPTIONS, train="train.py", ema=0.99)
    parts = MemoryParts(2**30, 0, 0, 0, safety_factor=1.0)
    stages = tuple(replace(stage, memory=parts) for stage in PLAN.stages)
    devices = tuple(replace(device, memory_bytes=3 * 2**30) for device in PLAN.devices)

    def told(plan) -> list[str]:
        return [
            line
            for line in header(replace(PREPARED, plan=plan), options, ["cpu"] * len(PLAN.stages))
            if "average" in line or "needs" in line
        ]

    (fits,) = told(replace(PLAN, stages=stages, devices=devices))
    assert "(EMA, decay 0.99), up to 1 GiB on a replica, and as much again in validations" in fits
    small = tuple(replace(device, memory_bytes=3 * 2**30 - 1) for device in devices)
    lines = told(replace(PLAN, stages=stages, devices=small))
    assert len(lines) == 1 + len(stages)
    assert (
        f"stage 0 needs 3 GiB with it on {PLAN.stages[0].device!r}, which has 3 GiB (planned without it: 1 GiB)"
        in lines[1]
    )
