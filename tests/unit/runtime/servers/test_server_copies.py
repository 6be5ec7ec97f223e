"""Copies of shards: whenever a server dies, what is trained and saved has the same bits as if it had not."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from direct_servers import make_spec
from ranks import run_ranks
from torch import Tensor

from heterps_compile.errors import RunError
from heterps_compile.runtime.servers.client import Client
from heterps_compile.runtime.servers.copies import Copies, deal_copies
from heterps_compile.runtime.servers.holders_link import HoldersLink
from heterps_compile.runtime.servers.optimizers import Adagrad
from heterps_compile.runtime.servers.protocol import shard_of, unpack_request
from heterps_compile.runtime.servers.saved_tables import export_tables
from heterps_compile.runtime.servers.server import Server, serve_forever
from heterps_compile.runtime.servers.server_link import GroupConnection, ServerGoneError, WorkersLink
from heterps_compile.runtime.servers.spec import Growth, ServerSpec

TABLE = torch.randn(9, 3, generator=torch.Generator().manual_seed(5))
STEPS, SAVE_AFTER = 3, 2
FIRST, SECOND = 10, 11
"""Ranks of the servers."""


class Holders:
    """Servers in this process that hold all shards of a spec, one of which dies at one of the messages to it.

    Attributes:
        heard: How many messages came to the one that dies.
    """

    def __init__(self, spec: ServerSpec, dies: int = FIRST, at: int | None = None, *, answers_are_lost: bool = False):
        held = spec.held
        self._servers = {
            rank: {shard: Server(spec, shard, held.holders[shard].index(rank)) for shard in held.shards_of(rank)}
            for rank in spec.ranks
        }
        self._wire, self._dies, self._at, self._answers_are_lost = spec.wire, dies, at, answers_are_lost
        self._out: dict[tuple[int, int, int], deque[list]] = {}  # by worker, server and shard: what is to be answered
        self.heard, self.dead = 0, set[int]()

    def server(self, rank: int, shard: int) -> Server:
        return self._servers[rank][shard]

    def handle(self, rank: int, request: Tensor) -> None:
        if rank == self._dies:
            self.heard += 1
        is_last = rank == self._dies and self.heard == self._at
        if rank in self.dead or (is_last and not self._answers_are_lost):
            self.dead.add(rank)
            raise ServerGoneError(rank, "connection closed by peer")
        shard = shard_of(request)
        for worker, answer in self._servers[rank][shard].handle(unpack_request(request.clone(), self._wire)):
            if not is_last:
                out, _ = slot = next(one for one in self._out[worker, rank, shard] if not one[1])
                out.copy_(answer)
                slot[1] = True
        if is_last:  # it has done what it was told, and nobody hears of it
            self.dead.add(rank)

    def asked(self, worker: int, rank: int, shard: int, out: Tensor) -> Callable[[], None]:
        slots = self._out.setdefault((worker, rank, shard), deque())
        slots.append(slot := [out, False])

        def wait() -> None:
            if not slot[1]:
                assert rank in self.dead, "nobody will ever answer"
                raise ServerGoneError(rank, "connection closed by peer")

        return wait


@dataclass
class Wire:
    """The connection of one worker to them."""

    holders: Holders
    worker: int
    gone: list[int] = field(default_factory=list)

    def send(self, rank: int, request: Tensor) -> None:
        self.holders.handle(rank, request)

    def ask(self, rank: int, request: Tensor, out: Tensor) -> Callable[[], None]:
        wait = self.holders.asked(self.worker, rank, shard_of(request), out)
        self.holders.handle(rank, request)
        return wait

    def flush(self) -> list[ServerGoneError]:
        return b""


def ids_of(step: int, worker: int) -> Tensor:
    return torch.randint(0, len(TABLE), (5,), generator=torch.Generator().manual_seed(10 * step + worker))


def train(spec: ServerSpec, holders: Holders, folder: Path) -> list[Client]:
    """Train, with two workers that take turns, rows asked for ahead, and a checkpoint in between."""
    wires = [Wire(holders, worker) for worker in spec.workers]
    clients = [Client(spec, one.worker, link=HoldersLink(spec.held, one, one.gone.append)) for one in wires]
    get_rows = [client.expect(("ids",), [0], lambda ids: [ids]) for client in clients]
    for step in range(STEPS):
        for worker, client in enumerate(clients):
            client.before_step(step)
            ids = ids_of(step, worker)
            get_rows[worker](ids)
            rows = client.look_up(0, ids, lambda pulled, places, _: pulled[places]).result
            (rows * torch.arange(1.0, 6.0)[:, None]).sum().backward()
        for client in clients:
            client.learning_rate = 0.5 / (step + 1)
            client.after_backward(step)
        if spec.clips:
            clients[0].scale(0.25 / max(clients[0].squares()[0], 1.0))
        for worker, client in enumerate(clients):
            client.prefetch({"ids": ids_of(step + 1, worker)})
        if step + 1 == SAVE_AFTER:
            clients[0].save(folder)
    for client in clients:
        client.close()
    for wire in wires:
        assert wire.gone in ([], sorted(holders.dead))  # told once; not where it died after its last message
    return clients


def found_in(folder: Path) -> bytes:
    """Return what is saved there, whoever wrote it."""
    export_tables(folder, folder / "tables.safetensors")
    return (folder / "tables.safetensors").read_bytes()


def held_by(rank: int, holders: Holders) -> list[tuple[int, bytes]]:
    """Return the updates of every shard, and its rows with their state, as a server has them at the end."""
    shards = [holders.server(rank, number).shards[0] for number in range(2)]
    return [(shard.updates, b"".join(records.tobytes() for _, records in shard.records())) for shard in shards]


MODES = {
    "synchronous": {},
    "clipped": {"clips": True},
    "with a staleness": {"staleness": 1, "save_every": SAVE_AFTER},
    "without a bound": {"staleness": None, "save_every": SAVE_AFTER},
    "growing": {"growth": Growth(admit_after=2, unseen_steps=2, every=2)},
    "from disk": {"memory_bytes": 300},
}


def spec_of(folder: Path, *, growth: Growth | None = None, servers: int = 2, **more) -> ServerSpec:
    folder.mkdir(exist_ok=True)
    spec = make_spec(
        folder, {"emb": TABLE}, servers=servers, workers=2, optimizer=Adagrad(0.5), directory=folder, **more
    )
    tables = tuple(replace(table, growth=growth) for table in spec.tables)
    return replace(spec, tables=tables, copies=deal_copies(spec.ranks, 2, [None] * servers))


@pytest.mark.parametrize("mode", MODES)
def test_whenever_a_server_dies_the_bits_are_those_of_a_run_in_which_it_lived(tmp_path, mode):
    spec = spec_of(tmp_path, **MODES[mode])
    undisturbed, alone = Holders(spec), replace(spec, copies=None)
    train(spec, undisturbed, tmp_path / "alive")
    train(alone, Holders(alone), tmp_path / "alone")
    saved, held = found_in(tmp_path / "alive"), held_by(FIRST, undisturbed)
    assert saved == found_in(tmp_path / "alone")
    assert held == held_by(SECOND, undisturbed)
    every = 1 if mode == "synchronous" else 3
    for number, at in enumerate(range(1, undisturbed.heard + 1, every)):
        folder = tmp_path / f"dies-{at}"
        holders = Holders(spec, at=at, answers_are_lost=number % 2 == 1)
        train(spec, holders, folder)
        assert holders.dead == {FIRST}
        assert found_in(folder) == saved
        assert held_by(SECOND, holders) == held


def test_where_all_who_held_a_shard_are_gone_that_is_told(tmp_path):
    spec = spec_of(tmp_path)
    holders = Holders(spec, at=3)
    holders.dead.add(SECOND)
    with pytest.raises(RunError, match=r"server \d.*rank 1\d.*rank 1\d"):
        train(spec, holders, tmp_path / "folder")


@pytest.mark.parametrize(
    ("machines", "count", "expected"),
    [
        ("aabb", 2, "02 13 20 31"),
        ("aaab", 2, "03 13 23 30"),
        ("aaa", 2, "01 12 20"),
        ("aaa", 3, "012 120 201"),
        ("ab", 1, "0 1"),
    ],
)
def test_copies_lie_on_other_machines_and_evenly(machines, count, expected):
    copies = deal_copies(range(len(machines)), count, machines)
    assert [" ".join("".join(map(str, ranks)) for ranks in copies.holders)] == [expected]


def test_a_rank_may_go_while_every_shard_of_it_has_somebody_else():
    copies = Copies(((0, 1), (1, 2), (2, 0)))
    assert copies.heirs(0, set()) == (1, 2)
    assert copies.heirs(0, {1}) == ()  # both had shard 0
    assert copies.heirs(7, set()) == ()  # no server


def serve_or_die(rank: int, folder: Path) -> bytes:
    """Be a worker or a server of two; the first server closes its sockets in the middle of the second step."""
    spec = replace(spec_of(folder / str(rank)), workers=(0,), ranks=(1, 2), copies=deal_copies((1, 2), 2, "ab"))
    group = dist.new_group([0, 1, 2])
    if rank == 1:
        link = WorkersLink(spec.wire, group)
        servers = {shard: Server(spec, shard) for shard in spec.held.shards_of(rank)}
        for _ in range(6):  # a pull of the one it answers for, a push of both, twice
            request = link.receive()
            for worker, answer in servers[request.shard].handle(request):
                link.answer(worker, request.shard, answer)
        link.flush()
        dist.destroy_process_group(group)
        return b""
    if rank == 2:
        serve_forever(spec, rank, group=group)
        return b""
    gone = list[int]()
    client = Client(spec, 0, link=HoldersLink(spec.held, GroupConnection(group), gone.append))
    for step in range(STEPS):
        client.before_step(step)
        lookup = client.look_up(0, torch.arange(len(TABLE)), lambda pulled, places, _: pulled[places])
        client.pull()
        (lookup.result * torch.arange(1.0, 4.0)).sum().backward()
        client.after_backward(step)
    client.save(folder / "saved")
    client.close()
    assert gone == [1]
    return found_in(folder / "saved")


def test_over_sockets_that_close_the_other_holder_answers(tmp_path):
    found, *_ = run_ranks(partial(serve_or_die, folder=tmp_path), 3)
    shown = np.frombuffer(found[-TABLE.numel() * 4 :], np.float32).reshape(TABLE.shape)
    state, weights = np.zeros(TABLE.shape, np.float32), TABLE.numpy().copy()
    gradient = np.broadcast_to(np.arange(1.0, 4.0, dtype=np.float32), TABLE.shape)
    for _ in range(STEPS):
        Adagrad(0.5).update(weights, state, gradient, 1, 0.5)
    assert np.array_equal(shown, weights)
