"""Predictors of blocks: the means that their paper says, the chains of blocks, and what a checkpoint keeps of both."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plain_rules import steady_models
from torch import Tensor, nn

from heterps_compile.errors import RunError
from heterps_compile.runtime.checkpoint.format import Checkpoint, open_checkpoint, write_files, write_state
from heterps_compile.runtime.checkpoint.optimizer_state import OptimizerState, put_state, take_state
from heterps_compile.runtime.checkpoint.state import BlockState, RunState
from heterps_compile.runtime.launch.block_chains import BlockChains, make_blocks
from heterps_compile.runtime.launch.block_models import BlockModels
from heterps_compile.runtime.launch.block_notes import (
    block_notes,
    refuse_other_blocks,
    refuse_unknown_block,
    rule_lines,
)
from heterps_compile.runtime.layerwise import Lamb
from heterps_compile.sync_rules.assignment import parse_rule
from heterps_compile.sync_rules.local_steps import LocalSteps
from heterps_compile.sync_rules.rule_text import rule_text

BLOCKS, Q = 5, 0.1
CENTRES = torch.eye(BLOCKS, dtype=torch.float64)
MM = LocalSteps(1, "mm", blocks=BLOCKS, block_steps=1)
MC = LocalSteps(2, "mc", blocks=3, block_steps=2)
STATE = RunState(7, 28, 4, 0, "m", "p", (0,))


class Net(nn.Module):
    """Weights, and a counter as batch norms have one."""

    seen: Tensor

    def __init__(self, size: int = BLOCKS, value: float = 100.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), value, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))


def held(net: nn.Module) -> dict[int, dict[str, Tensor]]:
    return {0: dict(net.state_dict(keep_vars=True))}


def one_step_a_block(rule: LocalSteps, cycles: int, *, rounds: int = 1) -> BlockModels:
    """Contract by Q at every round of a block towards its centre, as often as a block has rounds."""
    net = Net()
    models = BlockModels(rule, held(net))
    for step in range(cycles * rule.cycle_steps):
        with torch.no_grad():
            centre = CENTRES[rule.block_of(step)]
            net.weight.copy_(centre + Q * (net.weight - centre))
            net.seen += 1
        if models.is_due(step + 1):
            models.take(step + 1)
    assert models.rounds == [(cycles - rule.skip) * rounds] * BLOCKS
    return models


def test_a_predictor_is_the_mean_of_all_rounds_of_its_block_in_every_cycle():
    rule = LocalSteps(1, "mm", blocks=BLOCKS, block_steps=3, skip=10)
    models = one_step_a_block(rule, 12, rounds=3)
    ends = steady_models(CENTRES, Q**3)
    for block in range(BLOCKS):
        off = ends[block - 1] - CENTRES[block]
        expected = CENTRES[block] + off * (Q + Q**2 + Q**3) / 3
        assert torch.allclose(models.of_stage(block, 0)["weight"], expected, rtol=0, atol=1e-12)


def test_cycles_that_are_skipped_leave_no_trace_and_buffers_are_the_last():
    models = one_step_a_block(replace(MM, skip=1), 3)
    assert [int(models.of_stage(block, 0)["seen"]) for block in range(BLOCKS)] == [11, 12, 13, 14, 15]
    with pytest.raises(RunError, match=r"block 3\b"):
        BlockModels(MM, held(Net())).of_stage(2, 0)


def test_stages_hold_a_predictor_for_a_while_and_then_their_own_bits():
    net = Net()
    models = BlockModels(MM, held(net))
    models.take(1)
    with torch.no_grad():
        net.weight.copy_(torch.arange(5.0) / 3)
    own = net.weight.detach().clone()
    with models.in_place(0):
        assert net.weight.tolist() == [100.0] * 5
    with models.in_place(1):  # of which there is none yet
        assert torch.equal(net.weight, own)
    assert torch.equal(net.weight, own)


def chain_of(optimizer: torch.optim.Optimizer, net: Net, target: float) -> None:
    optimizer.zero_grad()
    ((net.weight - target) ** 2).sum().backward()
    optimizer.step()


def optimizers(given: Any) -> list[torch.optim.Optimizer]:
    parameters = list(given)
    return [
        torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        torch.optim.Adam(parameters, lr=0.1),
        Lamb(parameters, lr=0.1),
    ]


def written(folder: Path, chains: BlockChains) -> Checkpoint:
    """Write the chains of rank 0 into a checkpoint."""
    files = write_files(folder, {chains.file_of(0): chains.tensors()})
    return Checkpoint(folder, replace(STATE, files=files))


@pytest.mark.parametrize("kind", range(3))
def test_a_chain_is_a_training_on_its_block_alone_whatever_steps_between(kind, tmp_path):
    """Also where it goes through a checkpoint in the middle: every chain with the state of its own optimiser."""
    net, alone = Net(2, 1.0), [Net(2, 1.0) for _ in range(3)]
    optimizer = optimizers(net.parameters())[kind]
    of_alone = [optimizers(one.parameters())[kind] for one in alone]
    chains = BlockChains(MC, held(net)[0], optimizer)
    for step in range(12):
        block = MC.block_of(step)
        if step == 7:
            checkpoint, known = written(tmp_path, chains), take_state(optimizer, {"weight": net.weight})
            net = Net(2, float("nan"))
            optimizer = optimizers(net.parameters())[kind]
            chains = BlockChains(MC, held(net)[0], optimizer)
            chains.restore(checkpoint, 0, known)
            put_state(optimizer, {"weight": net.weight}, known)
        with chains.in_place(step):
            chain_of(optimizer, net, float(block))
            chain_of(of_alone[block], alone[block], float(block))
            assert torch.equal(net.weight, alone[block].weight)
        with torch.no_grad():
            net.weight.fill_(step)  # of the chain that sees all blocks, with a state of its own
        chain_of(optimizer, net, 0.0)
    assert [len(optimizer.state), len(of_alone[0].state)] == [1, 1]


def test_an_optimiser_that_keeps_what_no_file_holds_is_named():
    net = Net(2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    chains = BlockChains(MC, held(net)[0], optimizer)
    with chains.in_place(0):
        optimizer.state[net.weight]["words"] = "these"
    with pytest.raises(RunError, match=r"SGD.*'words'"):
        chains.tensors()


def test_chains_of_other_stages_are_refused(tmp_path):
    checkpoint = written(tmp_path, BlockChains(MC, held(Net(2))[0], None))
    with pytest.raises(RunError, match=r"'0:weight:weight'.*chains-0\.safetensors"):
        BlockChains(MC, held(Net(3))[0], None).restore(checkpoint, 0, OptimizerState(""))


def test_of_two_chains_the_one_with_the_lower_losses_since_the_last_mean_is_taken():
    models = BlockModels(MC, held(Net()))
    models.add_losses(1.0, 2.0)
    models.add_losses(3.0, 1.0)
    assert models.prefers_alone
    models.take(2)
    assert not models.prefers_alone  # a tie
    models.add_losses(0.5, 0.75)
    assert not models.prefers_alone


def test_what_a_run_makes_follows_from_its_rules():
    net = Net()
    assert make_blocks((parse_rule("local(steps=2)"), parse_rule("topk(density=0.1)")), held(net), None) == (None, None)
    models, chains = make_blocks((MM, MM), held(net), None)
    assert (chains, models and models.count) == (None, BLOCKS)
    models, chains = make_blocks((MC,), held(net), None)
    assert None not in (models, chains)


def test_a_state_goes_through_its_file(tmp_path):
    state = replace(STATE, blocks=BlockState((2, 0, 1), (0.1, 1 / 3)), sync=((rule_text(MC), 2),))
    write_state(tmp_path, state)
    read = open_checkpoint(tmp_path).state
    assert read.blocks == state.blocks
    assert state.blocks is not None
    assert state.blocks.made == (0, 2)


@pytest.mark.parametrize(
    "blocks",
    [
        '{"rounds": [], "losses": [0, 0]}',
        '{"rounds": [-1], "losses": [0, 0]}',
        '{"rounds": [1.5], "losses": [0, 0]}',
        '{"rounds": [1], "losses": [0]}',
        "[1]",
        '"x"',
    ],
)
def test_a_state_that_is_damaged_is_told(tmp_path, blocks):
    write_state(tmp_path, replace(STATE, files=None))
    text = (tmp_path / "state.json").read_text()
    text = text.replace('"blocks": null', f'"blocks": {blocks}').replace('"format": 2', '"format": 1')
    text = text[: text.rindex(',\n  "sha256"')].replace('"files": {},', "") + "\n}\n"
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(RunError):
        open_checkpoint(tmp_path)


REST = LocalSteps(2, "mm", blocks=3, block_steps=4)


def layout_of(*widths: int) -> Any:
    return SimpleNamespace(stage_count=len(widths), ranks_of=lambda stage: range(widths[stage]))


def test_a_checkpoint_of_other_blocks_or_chains_is_refused():
    state = replace(STATE, blocks=BlockState((1, 0, 0)), sync=((rule_text(MC), 2),))
    name = Path("step-000007")
    refuse_other_blocks(name, state, (MC,), layout_of(2))
    refuse_other_blocks(name, state, (replace(MC, rule="mm"),), layout_of(3))  # which has no chains
    with pytest.raises(RunError, match=r"step-000007.*predictors.*\b3\b.*\b4\b"):
        refuse_other_blocks(name, state, (replace(MC, blocks=4),), layout_of(2))
    with pytest.raises(RunError, match=r"\b2\b.*\b3\b.*optimiser"):
        refuse_other_blocks(name, state, (MC,), layout_of(3))
    with pytest.raises(RunError, match="without"):
        refuse_other_blocks(name, replace(state, sync=((rule_text(REST), 2),)), (MC,), layout_of(2))
    refuse_unknown_block(name, state, 0)
    with pytest.raises(RunError, match=r"step-000007.*block 2\b.*\b3\b.*\b1\b"):
        refuse_unknown_block(name, state, 1)
    with pytest.raises(RunError, match=r"--sync 'local\(..., rule=mm\)'.*--block"):
        refuse_unknown_block(name, STATE, 0)


def test_what_is_told_of_predictors():
    state, name = replace(STATE, blocks=BlockState((1, 0, 0))), Path("step-000007")
    has = "step-000007 has predictors of 3 blocks of its data"

    def notes(of: RunState, rules: Any, **how: Any) -> list[str]:
        return list(block_notes(name, of, rules, **how))

    assert notes(state, (REST,), resumes=True) == []
    assert notes(state, (), resumes=True) == [f"{has}, which are left"]
    assert notes(state, (), resumes=False) == [f"{has}, which are left: --block N takes one in place of the weights"]
    assert notes(state, (), resumes=False, taken=1) == [
        f"{has}, of which that of block 1 is taken; the weights themselves are left"
    ]
    begins = ["step-000007 has no predictors of blocks: they begin with the next average"]
    assert notes(STATE, (REST,), resumes=True) == begins
    assert notes(STATE, (), resumes=True) == notes(STATE, (REST,), resumes=False) == []
    (line,) = rule_lines((MC,), 20)
    assert line.startswith(
        "a predictor is kept for each of 3 blocks of 40 samples, and every batch is stepped on twice"
    )
    assert list(rule_lines((parse_rule("local(steps=2)"),), 20)) == []
