"""A run goes on with other numbers of parameter servers, or with none: equal to the run that never changed."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from direct_servers import DirectServers, write_tables
from plans import PLAN
from torch import nn
from torch.distributed import HashStore

from heterps_compile.errors import RunError
from heterps_compile.runtime.checkpoint.collective import Checkpoints
from heterps_compile.runtime.checkpoint.folder import step_name
from heterps_compile.runtime.checkpoint.format import SERVERS_NAME, Checkpoint, open_checkpoint
from heterps_compile.runtime.checkpoint.start import find_start
from heterps_compile.runtime.checkpoint.table_states import refuse_other_growth, tables_of_stages
from heterps_compile.runtime.launch.prepare import Prepared, places_of
from heterps_compile.runtime.launch.run_options import RunOptions
from heterps_compile.runtime.launch.server_options import ServerOptions
from heterps_compile.runtime.launch.server_rates import ServerRates
from heterps_compile.runtime.launch.training_file import Training
from heterps_compile.runtime.pipeline.layout import StepShape, make_layout
from heterps_compile.runtime.servers.client import Client
from heterps_compile.runtime.servers.optimizers import sparse_optimizer
from heterps_compile.runtime.servers.spec import Growth, ServerSpec

ROWS, WIDTH, LR = 7, 3, 0.5
ONE_STAGE = replace(PLAN, stages=(replace(PLAN.stages[0], backend="torch", replicas=1),), hashes={"model": "ab" * 32})
LAYOUT = make_layout(ONE_STAGE, training=True, step=StepShape(micro_batches=1, batch=4))
PREPARED = Prepared(Path("m.heterps"), ONE_STAGE, "cd" * 32, LAYOUT, places_of(LAYOUT))
RULES = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.SparseAdam,
}


def halve(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


class Session:
    """A run of one rank, from a checkpoint or the beginning: a table on servers or in its stage, and a dense weight."""

    def __init__(
        self, folder: Path, servers: int, rule: str, start: Checkpoint | None = None, *, scheduler=halve, lr: float = LR
    ) -> None:
        torch.manual_seed(0)
        self.folder, self.step = folder, 0 if start is None else start.state.step
        self.table = nn.Parameter(torch.randn(ROWS, WIDTH))
        self.dense = nn.Parameter(torch.ones(2))
        trained = [] if rule == "adam" else [("dense", self.dense)]  # SparseAdam takes no other
        self.is_sparse, self.client, rates = rule == "adam", None, None
        training = Training(loss=lambda o, b: o, optimizer=lambda p: None, scheduler=scheduler)
        if servers:
            self.direct, self.client = self._serve(servers, rule, start, lr)
            rates = ServerRates(training, self.client, validates=False, best=None)
        else:
            trained.insert(0, ("emb", self.table))
        optimizer = RULES[rule]([parameter for _, parameter in trained], lr=lr) if trained else None
        options = RunOptions(directory="m", train="t.py", data="x", checkpoint=str(folder / "ck"))
        options = replace(options, servers=ServerOptions(count=servers))
        self.checkpoints = Checkpoints(
            PREPARED,
            options,
            HashStore(),
            0,
            {0: dict(trained)},
            optimizer,
            None if scheduler is None or optimizer is None else scheduler(optimizer),
            servers=self.client,
            rates=rates,
        )
        if start is not None:
            self.checkpoints.restore(start)

    def _serve(self, count: int, rule: str, start: Checkpoint | None, lr: float) -> tuple[DirectServers, Client]:
        optimizer = sparse_optimizer(rule, lr)
        tables = write_tables(self.folder, {"emb": self.table.detach()})
        is_served = start is not None and start.state.servers > 0
        if start is not None and not is_served:
            tables = tables_of_stages(start, tables, optimizer, with_state=True)
        resume = start.path / SERVERS_NAME if start is not None and is_served else None
        spec = ServerSpec((0,), tuple(range(10, 10 + count)), tables, optimizer, first_step=self.step, resume=resume)
        direct = DirectServers(spec)
        return direct, Client(spec, 0, link=direct)

    def train(self, steps: int) -> "Session":
        for _ in range(steps):
            generator = torch.Generator().manual_seed(self.step)
            ids = torch.randint(0, ROWS, (4,), generator=generator)
            factors = torch.randn(4, WIDTH, generator=generator)
            if self.client is None:
                rows = nn.functional.embedding(ids, self.table, sparse=self.is_sparse)
            else:
                self.client.before_step(self.step)
                lookup = self.client.look_up(0, ids, lambda pulled, places, _: pulled[places])
                self.client.pull()
                rows = lookup.result
            ((rows * factors).sum() + (self.dense * factors[0, :2]).sum()).backward()
            if self.client is not None:
                self.client.after_backward(self.step)
            if self.checkpoints.optimizer is not None:
                self.checkpoints.optimizer.step()
                self.checkpoints.optimizer.zero_grad()
            if self.checkpoints.scheduler is not None:
                self.checkpoints.scheduler.step()
            if self.client is not None:
                self.checkpoints.rates.after_step(None)
            self.step += 1
        return self

    def save(self) -> Checkpoint:
        self.checkpoints.write(self.step)
        return open_checkpoint(self.folder / "ck" / step_name(self.step))

    def weights(self) -> tuple[torch.Tensor, torch.Tensor]:
        table = self.table.detach() if self.client is None else self.direct.weights()
        return table, self.dense.detach()


def test_a_table_that_has_grown_and_grows_no_more_is_refused_before_anything_starts(tmp_path):
    session = Session(tmp_path, 2, "sgd").train(1)
    start = session.save()
    refuse_other_growth(start, (), with_state=True)
    with pytest.raises(RunError, match=r"'emb'.*checkpoint"):
        refuse_other_growth(start, ("e*",), with_state=True)
    spec = session.client.spec
    grown = replace(spec, tables=tuple(replace(table, growth=Growth()) for table in spec.tables))
    Client(grown, 0, link=DirectServers(grown)).save(start.path / SERVERS_NAME)
    refuse_other_growth(start, ("emb",), with_state=True)
    with pytest.raises(RunError, match=r"'emb'.*grown.*--grow-tables"):
        refuse_other_growth(start, ("other",), with_state=True)
    with pytest.raises(RunError, match="--checkpoint"):
        refuse_other_growth(start, ("emb",), with_state=False)
    options = RunOptions(directory="m", train="t.py", data="x", checkpoint=str(tmp_path / "ck"), resume=True)
    with pytest.raises(RunError, match="grown"):  # as the command asks before it starts a process
        find_start(PREPARED, options)


PAIRS = list(itertools.product(range(4), range(4)))


@pytest.mark.parametrize(
    ("rule", "before", "after"),
    [*(("adagrad", *pair) for pair in PAIRS), ("sgd", 0, 2), ("sgd", 2, 0), ("adam", 0, 2), ("adam", 2, 0)],
)
def test_another_number_of_servers_goes_on_as_if_it_had_not_changed(tmp_path, rule, before, after):
    start = Session(tmp_path, before, rule).train(3).save()
    found = Session(tmp_path, after, rule, start).train(3).weights()
    for mine, expected in zip(found, Session(tmp_path, 0, rule).train(6).weights(), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-6, atol=1e-6)


def test_a_schedule_drives_the_rate_of_the_tables(tmp_path):
    session = Session(tmp_path, 2, "sgd")
    rates = []
    for _ in range(3):
        rates.append(session.client.learning_rate)
        session.train(1)
    assert rates == [LR, LR / 2, LR / 4]
    start = session.save()
    assert Session(tmp_path, 1, "sgd", start, lr=2 * LR).client.learning_rate == 2 * LR / 8


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ((0, "adagrad"), (1, "sgd"), "Adagrad.*'emb'"),
        ((1, "adagrad"), (0, "sgd"), "adagrad.*'emb'.*SGD"),
        ((2, "adagrad"), (1, "sgd"), r"'adagrad'.*\b1\b.*'sgd'"),
    ],
)
def test_another_rule_is_refused_by_name(tmp_path, before, after, fault):
    start = Session(tmp_path, *before).train(2).save()
    with pytest.raises(RunError, match=fault):
        Session(tmp_path, *after, start)


@pytest.mark.parametrize("before", [0, 2])
def test_servers_begin_with_the_weights_of_a_checkpoint_alone(tmp_path, before):
    session = Session(tmp_path, before, "adagrad").train(2)
    start = session.save()
    tables = write_tables(tmp_path, {"emb": torch.zeros(ROWS, WIDTH)})
    optimizer = sparse_optimizer("sgd", LR)  # another one: its state is left
    resume = start.path / SERVERS_NAME if before else None
    if not before:
        tables = tables_of_stages(start, tables, optimizer, with_state=False)
    direct = DirectServers(ServerSpec((0,), (10, 11), tables, optimizer, resume=resume, weights_only=True))
    assert torch.equal(direct.weights(), session.weights()[0])
    assert [server.shards[0].updates for server in direct.servers] == [0, 0]


@pytest.mark.parametrize("servers", [0, 1])
def test_a_scheduler_that_is_gone_is_told(tmp_path, servers):
    start = Session(tmp_path, servers, "sgd").train(2).save()
    with pytest.raises(RunError, match="tables"):
        Session(tmp_path, 1, "sgd", start, scheduler=None)


def test_another_rate_than_the_stage_had_is_refused(tmp_path):
    start = Session(tmp_path, 0, "sgd").train(2).save()
    with pytest.raises(RunError, match=r"0\.5.*--server-learning-rate.*0\.1"):
        Session(tmp_path, 1, "sgd", start, lr=0.1)


def test_a_scheduler_of_several_groups_is_told_why_it_is_called_again(tmp_path):
    def two(optimizer):
        by_group: list[Callable[[int], float]] = [lambda _: 1.0, lambda _: 0.5]
        return torch.optim.lr_scheduler.LambdaLR(optimizer, by_group)

    spec = ServerSpec((0,), (1,), write_tables(tmp_path, {"emb": torch.ones(2, 1)}), sparse_optimizer("sgd", 0.1))
    training = Training(loss=lambda o, b: o, optimizer=lambda p: None, scheduler=two)
    with pytest.raises(ValueError, match=r"\b1\b lr_lambdas") as raised:
        ServerRates(training, Client(spec, 0, link=DirectServers(spec)), validates=False, best=None)
    assert "called once more, with an optimizer of one parameter group" in " ".join(raised.value.__notes__)
