"""What ranks have of their own goes through checkpoints, to as many replicas or others, and nothing of it is lost."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hand_made import BATCH, MICRO_BATCHES, linear_loss, linear_stage, plan_of, reader, stepped_on_all
from plans import PLAN
from ranks import run_ranks
from torch import Tensor

from heterps_compile.errors import RunError
from heterps_compile.runtime.checkpoint.format import Checkpoint, open_checkpoint, write_files, write_state
from heterps_compile.runtime.checkpoint.own_state import (
    keeps_own_state,
    own_state_notes,
    restore_own_state,
    take_own_state,
)
from heterps_compile.runtime.checkpoint.state import RunState
from heterps_compile.runtime.launch.prepare import Prepared, places_of
from heterps_compile.runtime.pipeline.engine import Engine
from heterps_compile.runtime.pipeline.layout import Layout, StepShape, make_layout
from heterps_compile.runtime.pipeline.rank_parts import RankParts, StepOptions
from heterps_compile.sync_rules.assignment import parse_rule

RATE = 0.5
STEPS = 2
TOPK = "topk(density=0.1)"
WAYS: dict[str, Sequence[tuple[int, str]]] = {
    "as many": ((2, TOPK), (2, TOPK), (2, "all-reduce")),
    "more, then one": ((2, TOPK), (3, TOPK), (1, "all-reduce")),
    "fewer": ((3, TOPK), (2, TOPK), (3, "all-reduce")),
    "none": ((1, TOPK), (3, "all-reduce"), (2, "all-reduce")),
}
"""Replicas and rule of parts of a training, each of which goes on from the one before."""


def layout_of(replicas: int) -> Layout:
    shape = StepShape(schedule="1f1b", micro_batches=MICRO_BATCHES, batch=BATCH)
    return make_layout(plan_of([linear_stage()], "y"), training=True, replicas=[replicas], step=shape)


def train(rank: int, way: Sequence[tuple[int, str]], folder: Path) -> list[float]:
    """Train part after part, each in new objects with what the one before left in files; return the weights."""
    import torch.distributed as dist  # noqa: PLC0415 - in the ranks alone

    weights: Tensor | None = None
    for part, (replicas, rule) in enumerate(way):
        checkpoint = folder / f"step-{part:06d}"
        if rank < replicas:
            stage = linear_stage()
            parts = RankParts(plan_of([stage], "y"), layout_of(replicas), rank, {0: stage}, tied={})
            engine = Engine(parts, StepOptions(linear_loss, sync=(parse_rule(rule),)))
            assert engine.shared is not None
            if part:
                restore_own_state(open_checkpoint(checkpoint), engine.shared)
                with torch.no_grad():
                    stage.weight.copy_(torch.load(folder / f"weights-{part}.pt"))
            optimizer = torch.optim.SGD(stage.parameters(), lr=RATE)
            for step in range(STEPS * part, STEPS * (part + 1)):
                engine.train_step(step, reader(step, []))
                optimizer.step()
                engine.shared.after_update(step, is_skipped=False)
            engine.finish()
            following = folder / f"step-{part + 1:06d}"
            following.mkdir(exist_ok=True)
            own = take_own_state(engine.shared, optimizer)
            write_files(following, {f"own-{rank}.safetensors": own})
            weights = stage.weight.detach().clone()
            if rank == 0:
                torch.save(weights, folder / f"weights-{part + 1}.pt")
        dist.barrier()
        if rank == 0:
            write_state(folder / f"step-{part + 1:06d}", RunState(part + 1, 0, BATCH, 0, "m", "p", (0,)))
        dist.barrier()
    return [] if weights is None else weights.flatten().tolist()


def in_group(rank: int, folder: Path) -> dict[str, list[float]]:
    found = {}
    for name, way in WAYS.items():
        if rank == 0:
            (folder / name).mkdir()
        found[name] = train(rank, way, folder / name)
    return found


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> dict[str, list[float]]:
    return run_ranks(in_group, 3, tmp_path_factory.mktemp("parts"), timeout_s=60)[0]


@pytest.mark.slow  # twelve engines in three processes
@pytest.mark.parametrize("way", WAYS)
def test_whatever_the_replicas_all_gradients_are_stepped_on_in_the_end(weights, way):
    expected = stepped_on_all(STEPS * len(WAYS[way]), RATE)
    assert torch.allclose(torch.tensor(weights[way]).view(4, 4), expected, atol=1e-5)


def prepared(replicas: int, rule: str) -> Prepared:
    layout = layout_of(replicas)
    return Prepared(Path("m"), PLAN, "p", layout, places_of(layout), sync=(parse_rule(rule),))


def test_ranks_write_files_of_their_own_where_a_rule_has_a_state_or_one_is_left():
    assert keeps_own_state(prepared(2, TOPK), None)
    assert keeps_own_state(prepared(2, "local(steps=2)"), None)
    assert not keeps_own_state(prepared(1, TOPK), None)
    assert not keeps_own_state(prepared(2, "all-reduce"), None)
    left = RunState(2, 8, 4, 0, "m", "p", (0,), files={"own-0.safetensors": "0" * 64})
    assert keeps_own_state(prepared(2, "all-reduce"), Checkpoint(Path("ck"), left))


def test_what_does_not_just_go_on_is_told():
    files = {"own-0.safetensors": "0" * 64, "own-1.safetensors": "0" * 64}
    state = RunState(2, 8, 4, 0, "m", "p", (0,), files=files, sync=((TOPK, 2),))
    found = partial(Checkpoint, Path("ck/step-000002"))
    assert own_state_notes(found(state), prepared(2, TOPK), resumes=True) == []
    (other,) = own_state_notes(found(state), prepared(2, "all-reduce"), resumes=True)
    assert other == f"replicas agreed by {TOPK} in step-000002, and the run goes on with all-reduce"
    (wider,) = own_state_notes(found(state), prepared(3, TOPK), resumes=True)
    was = "step-000002 is of 2 replicas, the run has 3"
    assert wider == f"{was}: gradients that were not sent yet are added up and divided evenly"
    factors = replace(state, sync=(("powersgd", 2),))
    (wider,) = own_state_notes(found(factors), prepared(3, "powersgd"), resumes=True)
    assert wider == f"{was}: gradients that were not sent yet are added up and divided evenly"
    local = replace(state, sync=(("local(steps=2)", 2),))
    (wider,) = own_state_notes(found(local), prepared(3, "local(steps=2)"), resumes=True)
    assert wider == f"{was}: replicas that stepped alone begin at their mean, with the first one's optimiser"
    (left,) = own_state_notes(found(state), prepared(2, TOPK), resumes=False)
    assert left == "step-000002 has a state of each rank (gradients not sent yet, or weights of its own), which is left"
    earlier = RunState(2, 8, 4, 0, "m", "p", (0,))
    assert own_state_notes(found(earlier), prepared(2, TOPK), resumes=True) == []


@pytest.mark.parametrize("content", ['"topk"', '[["topk", 0]]', '[["topk"]]', "[[1, 2]]", '[["topk", true]]'])
def test_rules_that_are_none_are_damage(tmp_path, content):
    state = RunState(2, 8, 4, 0, "m", "p", (0,), sync=((TOPK, 2),))
    write_state(tmp_path, state)
    assert open_checkpoint(tmp_path).state.sync == ((TOPK, 2),)
    write_state(tmp_path, RunState(2, 8, 4, 0, "m", "p", (0,), sync=json.loads(content)))
    with pytest.raises(RunError):
        open_checkpoint(tmp_path)
