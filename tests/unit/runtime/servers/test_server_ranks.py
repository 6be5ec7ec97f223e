"""Parameter servers in processes of their own: a compiled CTRDNN trains as one process does."""

import signal
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import nn

import heterps_compile
from heterps_compile.examples import EXAMPLES
from heterps_compile.plan.folder import read_folder
from heterps_compile.runtime.pipeline.engine import Engine
from heterps_compile.runtime.pipeline.layout import StepShape, make_layout
from heterps_compile.runtime.pipeline.rank_parts import RankParts, StepOptions
from heterps_compile.runtime.pipeline.read_stage import read_stage, read_tied
from heterps_compile.runtime.pipeline.shared_memory import neighbours
from heterps_compile.runtime.pipeline.world import join_world, leave_world
from heterps_compile.runtime.servers.client import Client
from heterps_compile.runtime.servers.optimizers import Adagrad, Sgd, SparseOptimizer
from heterps_compile.runtime.servers.row_prefetch import RowPrefetch
from heterps_compile.runtime.servers.saved_tables import export_tables
from heterps_compile.runtime.servers.served_table import serve_tables
from heterps_compile.runtime.servers.server import serve_forever
from heterps_compile.runtime.servers.server_link import WorkersLink
from heterps_compile.runtime.servers.spec import ServerSpec
from heterps_compile.runtime.servers.trace_lookups import find_plan_tables

BATCH, MICRO_BATCHES, ROWS, FIELDS, DENSE = 24, 6, 40, 4, 3
LR = 0.1


def make_model() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return EXAMPLES["ctrdnn"](batch=BATCH, fields=FIELDS, rows=ROWS, width=8, hidden=(16, 8), dense=DENSE)


def batch_of(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {
        "sparse": torch.randint(0, ROWS, (BATCH, FIELDS), generator=generator),
        "dense": torch.randn(BATCH, DENSE, generator=generator),
        "click": torch.randint(0, 2, (BATCH,), generator=generator).float(),
    }


def loss_of(logits: torch.Tensor, batch) -> torch.Tensor:
    return nn.functional.binary_cross_entropy_with_logits(logits, batch["click"])


def read_micro_batch(step: int, micro_batch: int, names) -> dict[str, torch.Tensor]:
    size = BATCH // MICRO_BATCHES
    rows = slice(micro_batch * size, (micro_batch + 1) * size)
    return {name: column[rows] for name, column in batch_of(step).items() if name in names or names == ("*",)}


class Steps:
    """Reads the micro-batches of all steps."""

    def of_step(self, step: int):
        return partial(read_micro_batch, step)


def compile_to(path: Path, stages: int) -> Path:
    """Write CTRDNN in so many stages, the embeddings in the first ones."""
    model, inputs = make_model()
    batch = torch.export.Dim("batch", min=2)
    compiled = heterps_compile.compile(
        model,
        inputs,
        mode="training",
        backend="torch",
        min_stages=stages,
        max_stages=stages,
        method="greedy",
        dynamic_shapes=({0: batch}, {0: batch}),
    )
    compiled.save(path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return compile_to(tmp_path_factory.mktemp("compiled") / "out", 2)


@dataclass(frozen=True)
class Setup:
    """A run of CTRDNN: replicas of its two stages, servers, steps."""

    widths: tuple[int, ...]
    servers: int
    optimizer: SparseOptimizer
    steps: int = 5
    schedule: str = "1f1b"
    positions: int | None = None  # of the pipeline; None for one a stage
    staleness: int = 0
    memory_bytes: int | None = None
    clip_norm: float | None = None
    decay: float = 1.0  # of all learning rates, after every step
    ahead: bool = False  # rows of the next micro-batch are asked for while this one is computed

    @property
    def workers(self) -> int:
        return sum(self.widths[: self.positions])


def run(
    rank: int, folder: Path, setup: Setup, save: Path | None
) -> tuple[list[float], dict[str, np.ndarray], dict[str, int]]:
    """Be one rank: a worker gives its losses and weights, a server its figures."""
    plan, _ = read_folder(folder)
    layout = make_layout(
        plan,
        training=True,
        replicas=setup.widths,
        step=StepShape(schedule=setup.schedule, micro_batches=MICRO_BATCHES, batch=BATCH),
    )
    spec = ServerSpec(
        tuple(range(setup.workers)),
        tuple(range(setup.workers, setup.workers + setup.servers)),
        find_plan_tables(folder, plan),
        setup.optimizer,
        staleness=setup.staleness,
        memory_bytes=setup.memory_bytes,
        directory=folder.parent,
        clips=setup.clip_norm is not None,
    )
    if rank in spec.ranks:
        return [], {}, dict(serve_forever(spec, rank).figures())
    client = Client(spec, rank)
    stages = {index: read_stage(folder, plan, index, torch.device("cpu")) for index in layout.stages_of(rank)}
    for stage in stages.values():
        serve_tables(stage, client)
    tied = read_tied(folder, plan)
    ahead = RowPrefetch(client, layout.actions(rank), range(setup.steps)).around(Steps())
    hooks = [client, ahead] if setup.ahead else [client]
    served = client if setup.clip_norm is not None and client.is_first else None
    engine = Engine(
        RankParts(plan, layout, rank, stages, tied=tied, hooks=hooks, served=served),
        StepOptions(loss=loss_of, clip_norm=setup.clip_norm),
    )
    parameters = list(engine.named_parameters().values())
    dense = torch.optim.SGD(parameters, LR) if parameters else None
    losses = []
    for step in range(setup.steps):
        loss = engine.train_step(step, (ahead if setup.ahead else Steps()).of_step(step)).loss
        if loss is not None:
            losses.append(loss)
        if dense is not None:
            dense.step()
            dense.zero_grad()
            dense.param_groups[0]["lr"] *= setup.decay
        client.learning_rate *= setup.decay
    if rank == 0 and save is not None:
        client.save(save)
    client.close()
    return losses, {name: one.detach().numpy().copy() for name, one in engine.named_parameters().items()}, {}


def train_whole(
    steps: int, sparse_optimizer, clip_norm: float | None = None, decay: float = 1.0
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Train the unsplit model in this process."""
    model, _ = make_model()
    dense = torch.optim.SGD(model.mlp.parameters(), LR)
    sparse = sparse_optimizer(model.tables.parameters())
    losses = []
    for step in range(steps):
        total = 0.0
        for micro_batch in range(MICRO_BATCHES):
            data = read_micro_batch(step, micro_batch, ("*",))
            loss = loss_of(model(data["sparse"], data["dense"]), data) / MICRO_BATCHES
            loss.backward()
            total += loss.item()
        losses.append(total)
        if clip_norm is not None:
            norm = nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
            assert norm > clip_norm
        for optimizer in (dense, sparse):
            optimizer.step()
            optimizer.zero_grad()
            optimizer.param_groups[0]["lr"] *= decay
    return losses, model.state_dict()


def assert_equal_to_whole(results, exported: Path, expected) -> None:
    from safetensors.torch import load_file  # noqa: PLC0415 - here alone

    losses, weights = expected
    for theirs, _, _ in results:
        if theirs:
            torch.testing.assert_close(torch.tensor(theirs), torch.tensor(losses), rtol=1e-6, atol=1e-7)
    found = load_file(exported) | {name: torch.from_numpy(w) for _, named, _ in results for name, w in named.items()}
    assert found.keys() == weights.keys()
    for name, weight in weights.items():
        difference = (found[name] - weight).abs().max() / weight.abs().max()
        assert difference < 1e-6, f"{name} differs by {difference:.2g} of its scale"


@pytest.mark.parametrize(
    ("setup", "theirs"),
    [
        (Setup((2, 1), 1, Sgd(LR)), partial(torch.optim.SGD, lr=LR)),
        (
            Setup((1, 1), 2, Adagrad(LR), memory_bytes=2_000, ahead=True, clip_norm=0.05, decay=0.8),
            partial(torch.optim.Adagrad, lr=LR),
        ),
    ],
    ids=["two replicas, one server", "two servers, hot and cold rows, pulls ahead, clipped, scheduled"],
)
def test_synchronous_training_equals_one_process(tmp_path, folder, setup, theirs):
    results = run_ranks(run, setup.workers + setup.servers, folder, setup, tmp_path / "saved")
    export_tables(tmp_path / "saved", tmp_path / "tables.safetensors")
    assert_equal_to_whole(
        results, tmp_path / "tables.safetensors", train_whole(setup.steps, theirs, setup.clip_norm, setup.decay)
    )
    for *_, figures in results[setup.workers :]:
        assert (figures["cold_writes"] > 0) == (setup.memory_bytes is not None)
        assert figures["memory_bytes"] <= (setup.memory_bytes or figures["table_bytes"])


@pytest.mark.slow  # more of the same kind: groups of processes
def test_rows_that_are_asked_for_ahead_change_no_bit(tmp_path, folder):
    setup = Setup((2, 1), 2, Adagrad(LR))
    found = []
    for ahead in (False, True):
        saved = tmp_path / f"saved-{ahead}"
        results = run_ranks(run, 5, folder, replace(setup, ahead=ahead), saved)
        found.append((results[2][0], results[2][1], {file.name: file.read_bytes() for file in saved.glob("*.npy")}))
    (losses, dense, tables), (early_losses, early_dense, early_tables) = found
    assert losses == early_losses
    assert tables == early_tables
    assert all(np.array_equal(dense[name], early_dense[name]) for name in dense)


@pytest.mark.slow  # more of the same kind: groups of processes
def test_two_stages_of_a_rank_share_its_client(tmp_path):
    setup = Setup((2, 1, 2, 1), 1, Adagrad(LR), schedule="interleaved-1f1b", positions=2, ahead=True)
    results = run_ranks(run, 4, compile_to(tmp_path / "out", 4), setup, tmp_path / "saved")
    export_tables(tmp_path / "saved", tmp_path / "tables.safetensors")
    expected = train_whole(setup.steps, partial(torch.optim.Adagrad, lr=LR))
    assert_equal_to_whole(results, tmp_path / "tables.safetensors", expected)


@pytest.mark.slow  # more of the same kind: groups of processes
@pytest.mark.parametrize("ahead", [False, True])
def test_with_a_staleness_of_one_step_training_still_learns(folder, ahead):
    setup = Setup((2, 1), 1, Sgd(LR), steps=12, staleness=1, ahead=ahead)
    results = run_ranks(run, 4, folder, setup, None)
    losses = next(theirs for theirs, _, _ in results if theirs)
    expected, _ = train_whole(setup.steps, partial(torch.optim.SGD, lr=LR))
    assert losses[0] == pytest.approx(expected[0], rel=1e-6)  # nothing can be old yet
    assert losses[-1] == pytest.approx(expected[-1], rel=0.05)


def run_apart(rank: int, *arguments: Any) -> Any:
    """Be one rank where all take themselves to be on machines of their own."""
    neighbours.machine = lambda: ""
    join_world(dist.PrefixStore("apart", dist.distributed_c10d._get_default_store()), rank, dist.get_world_size())
    return run(rank, *arguments)


def test_servers_of_other_machines_give_the_same_bits(folder):
    setup = Setup((1, 1), 2, Adagrad(LR), steps=3, ahead=True, clip_norm=0.05)
    here, apart = (run_ranks(function, 4, folder, setup, None) for function in (run, run_apart))
    for (losses, weights, _), (their_losses, theirs, _) in zip(here, apart, strict=True):
        assert losses == their_losses
        assert weights.keys() == theirs.keys()
        assert all(np.array_equal(weights[name], theirs[name]) for name in weights)
    assert any(weights for _, weights, _ in here)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_server_that_is_gone_is_named(folder, ahead):
    with pytest.raises(AssertionError, match=r"RunError.*\b0\b.*\b1\b"):
        run_ranks(pull_from_the_dead, 2, folder, ahead)


def pull_from_the_dead(rank: int, folder: Path, ahead: bool) -> None:
    """Be a server that leaves the world after one request, or the worker that made it."""
    plan, _ = read_folder(folder)
    spec = ServerSpec((0,), (1,), find_plan_tables(folder, plan), Sgd(LR))
    if rank == 1:
        WorkersLink(spec).receive()
        leave_world()
        signal.pause()  # its process lives, so that what is heard of it is what the worker says
    client = Client(spec, 0)
    if ahead:
        get_rows = client.expect(("x",), [0], lambda x: [x])
        client.prefetch({"x": torch.tensor([1, 2])})
        get_rows(torch.tensor([1, 2]))
    client.look_up(0, torch.tensor([1, 2]), lambda rows, _positions, _ids: rows)
    client.pull()
