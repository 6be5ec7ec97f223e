"""Rows of the next micro-batch are asked for while this one is computed; nothing else is any different."""

from collections.abc import Callable, Sequence

import pytest
import torch
from direct_servers import DirectServers, make_spec
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody knows it by

from heterps_compile.errors import InputError, RunError
from heterps_compile.runtime.servers.client import Client
from heterps_compile.runtime.servers.optimizers import Adagrad
from heterps_compile.runtime.servers.protocol import Kind, unpack_request
from heterps_compile.runtime.servers.row_prefetch import RowPrefetch
from heterps_compile.runtime.servers.served_table import serve_tables
from heterps_compile.schedule.order import Action, Phase

STEPS, MICRO_BATCHES = 3, 2
FORWARDS = [Action(0, micro_batch, Phase.FORWARD) for micro_batch in range(MICRO_BATCHES)]


class Stage(nn.Module):
    inputs = ("x",)

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.emb, self.head = nn.Embedding(20, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        rows = F.embedding(x, self.emb.weight).sum(1)
        made: Tensor = self.head(rows)
        return made


class ToldServers(DirectServers):
    """Writes down what it is asked, and waited for."""

    def __init__(self, *arguments, told: list[str], **named) -> None:
        super().__init__(*arguments, **named)
        self.told = told

    def ask(self, calls: Sequence[tuple[int, Tensor, Tensor]]) -> Callable[[], None]:
        wait = super().ask(calls)
        after = {unpack_request(request).step for _, request, _ in calls}
        self.told.append(f"ask after push {after.pop()}")

        def waited() -> None:
            self.told.append("wait")
            wait()

        return waited

    def send(self, server: int, request: Tensor) -> None:
        found = unpack_request(request)
        if found.kind is Kind.PUSH:
            self.told.append(f"push {found.step}")
        super().send(server, request)


class Steps:
    """Gives ids for every micro-batch of every step; one of them is wrong if so wanted."""

    def __init__(self, wrong: tuple[int, int, Tensor | Exception] | None = None) -> None:
        self._wrong = wrong

    def of_step(self, step: int) -> Callable[[int, Sequence[str]], dict[str, Tensor]]:
        def read(micro_batch: int, _names: Sequence[str]) -> dict[str, Tensor]:
            if self._wrong is not None and self._wrong[:2] == (step, micro_batch):
                if isinstance(self._wrong[2], Exception):
                    raise self._wrong[2]
                return {"x": self._wrong[2]}
            generator = torch.Generator().manual_seed(10 * step + micro_batch)
            return {"x": torch.randint(0, 20, (8, 3), generator=generator)}

        return read


def train(folder, *, is_ahead: bool, reader: Steps | None = None, **more) -> tuple[list[Tensor], list[str]]:
    """Train some steps; give all weights and what was told, each step on a line of its own."""
    told: list[str] = []
    stage = Stage()
    tables = {"emb.weight": stage.emb.weight.detach()}
    servers = ToldServers(make_spec(folder, tables, servers=1, optimizer=Adagrad(0.1), **more), told=told)
    client = Client(servers.spec, 0, link=servers)
    serve_tables(stage, client)
    reader = reader or Steps()
    ahead = RowPrefetch(client, FORWARDS, range(STEPS)).around(reader) if is_ahead else None
    optimizer = torch.optim.SGD(stage.parameters(), 0.1)
    for step in range(STEPS):
        client.before_step(step)
        for micro_batch in range(MICRO_BATCHES):
            x = (ahead or reader).of_step(step)(micro_batch, ("x",))["x"]
            told.append(f"micro-batch {micro_batch}")
            stage(x).square().mean().backward()
        client.after_backward(step)
        if ahead is not None:
            ahead.after_backward(step)
        optimizer.step()
        optimizer.zero_grad()
    client.close()
    return [servers.weights(), *stage.parameters()], told


def test_the_next_micro_batch_is_asked_for_before_this_one_is_computed(tmp_path):
    _, told = train(tmp_path, is_ahead=True)
    assert told == [
        *("ask after push -1", "ask after push -1", "micro-batch 0", "wait", "micro-batch 1", "wait", "push 0"),
        *("ask after push 0", "ask after push 0", "micro-batch 0", "wait", "micro-batch 1", "wait", "push 1"),
        *("ask after push 1", "ask after push 1", "micro-batch 0", "wait", "micro-batch 1", "wait", "push 2"),
    ]


def test_without_it_rows_are_asked_for_when_the_stage_runs(tmp_path):
    _, told = train(tmp_path, is_ahead=False)
    assert told == [
        line
        for step in range(STEPS)
        for line in (
            *("micro-batch 0", f"ask after push {step - 1}", "wait"),
            *("micro-batch 1", f"ask after push {step - 1}", "wait"),
            f"push {step}",
        )
    ]


@pytest.mark.parametrize("staleness", [0, 2])
def test_weights_are_the_same_to_the_last_bit(tmp_path, staleness):
    plain, early = (train(tmp_path, is_ahead=is_ahead, staleness=staleness)[0] for is_ahead in (False, True))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(plain, early, strict=True))


def test_with_a_staleness_no_pull_may_be_older_than_without(tmp_path):
    asked = [
        [line for line in train(tmp_path, is_ahead=is_ahead, staleness=2)[1] if line.startswith("ask")]
        for is_ahead in (False, True)
    ]
    assert asked[0] == asked[1] == [f"ask after push {step - 3}" for step in range(STEPS) for _ in range(MICRO_BATCHES)]


def test_data_that_cannot_be_read_ahead_is_told_of_when_its_turn_comes(tmp_path):
    reader = Steps((1, 0, InputError("the file ends")))
    ahead = RowPrefetch(idle_client(tmp_path), FORWARDS, range(STEPS)).around(reader)
    for micro_batch in range(MICRO_BATCHES):
        ahead.of_step(0)(micro_batch, ("x",))
    ahead.after_backward(0)
    with pytest.raises(InputError):
        ahead.of_step(1)(0, ("x",))


def test_an_id_that_is_no_row_is_told_of_in_its_own_step(tmp_path):
    reader = Steps((1, 0, torch.full((8, 3), 20)))
    with pytest.raises(RunError, match=r"step 1\b.*row 20\b.*'emb\.weight'.*\b0\b.*\b19\b"):
        train(tmp_path, is_ahead=True, reader=reader)


def test_a_run_that_ends_early_waits_for_what_it_has_asked_for(tmp_path):
    told: list[str] = []
    client = idle_client(tmp_path, told)
    client.prefetch({"x": torch.tensor([[1, 2]])})
    assert told == ["ask after push -1"]
    client.close()
    assert told == ["ask after push -1", "wait"]


def idle_client(folder, told: list[str] | None = None) -> Client:
    stage = Stage()
    servers = ToldServers(
        make_spec(folder, {"emb.weight": stage.emb.weight.detach()}), told=[] if told is None else told
    )
    client = Client(servers.spec, 0, link=servers)
    serve_tables(stage, client)
    return client
