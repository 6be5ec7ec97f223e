"""Which pulls wait for which pushes, and what a server refuses."""

import os

import numpy as np
import pytest
import torch
from direct_servers import make_spec

from heterps_compile.errors import RunError
from heterps_compile.runtime.servers.optimizers import Sgd
from heterps_compile.runtime.servers.protocol import (
    FIRST_BYTES,
    Kind,
    pack_number,
    pack_request,
    request_bytes,
    unpack_request,
)
from heterps_compile.runtime.servers.server import Server
from heterps_compile.runtime.servers.spec import ServerSpec, TableSpec


class OneServer:
    """A server of one table of ten ones, and what two workers tell it."""

    learning_rate = 1.0

    def __init__(self, folder, **more) -> None:
        weights = torch.ones(10, 1)
        self.server = Server(make_spec(folder, {"emb": weights}, servers=1, workers=2, optimizer=Sgd(1.0), **more), 0)

    def tell(
        self, kind: Kind, worker: int, step: int, rows=(), *, gradients=(), factor: float | None = None
    ) -> list[tuple[int, list[float]]]:
        ints = [np.array([len(rows), *rows], np.int64)] if kind in (Kind.PULL, Kind.PUSH) else []
        if kind is Kind.PUSH:
            ints = [pack_number(self.learning_rate), *ints]
        if factor is not None:
            ints = [pack_number(factor)]
        floats = [np.array(gradients, np.float32)]
        request = unpack_request(pack_request(kind, worker, step, ints, floats=floats))
        return [(to, answer.tolist()) for to, answer in self.server.handle(request)]

    def push(self, worker: int, step: int, gradient: float) -> list[tuple[int, list[float]]]:
        return self.tell(Kind.PUSH, worker, step, [4], gradients=[gradient])

    def pull(self, worker: int, after: int) -> list[tuple[int, list[float]]]:
        return self.tell(Kind.PULL, worker, after, [3, 4])


def test_synchronous_gradients_are_summed_and_pulls_wait_for_all_workers(tmp_path):
    one = OneServer(tmp_path)
    assert one.pull(0, after=-1) == [(0, [1, 1])]
    assert one.push(1, step=0, gradient=0.25) == []
    assert one.pull(1, after=0) == []
    assert one.push(0, step=0, gradient=0.5) == [(1, [1, 0.25])]
    assert one.pull(0, after=0) == [(0, [1, 0.25])]


def test_a_worker_that_needs_no_rows_may_be_steps_ahead(tmp_path):
    one = OneServer(tmp_path)
    one.push(0, step=0, gradient=0.5)
    one.push(0, step=1, gradient=0.125)
    assert one.pull(1, after=-1) == [(1, [1, 1])]
    one.push(1, step=0, gradient=0.0)
    assert one.pull(1, after=0) == [(1, [1, 0.5])]
    one.push(1, step=1, gradient=0.0)
    assert one.pull(1, after=1) == [(1, [1, 0.375])]


def test_with_a_staleness_pushes_count_at_once_and_pulls_wait_for_old_ones_only(tmp_path):
    one = OneServer(tmp_path, staleness=1)
    assert one.push(1, step=0, gradient=0.25) == []
    assert one.pull(1, after=0 - 1) == [(1, [1, 0.75])]
    one.push(1, step=1, gradient=0.25)
    assert one.pull(1, after=1 - 1) == []  # worker 0 has not pushed step 0 yet
    assert one.push(0, step=0, gradient=0.5) == [(1, [1, 0.0])]


@pytest.mark.parametrize("staleness", [1, 9])
def test_a_checkpoint_holds_the_pushes_of_its_steps_once_and_none_of_later_ones(tmp_path, staleness):
    one = OneServer(tmp_path, staleness=staleness, save_every=2)
    folder = np.frombuffer(os.fsencode(tmp_path / "saved"), np.uint8).astype(np.int64)
    save = unpack_request(pack_request(Kind.SAVE, 0, 1, [folder]))
    for step in range(3):  # worker 1 is a step ahead of the checkpoint after two steps
        one.push(1, step, gradient=0.25)
    one.push(0, step=0, gradient=0.5)
    assert one.server.handle(save) == []
    ((to, _),) = one.push(0, step=1, gradient=0.5)
    assert to == 0
    saved = np.load(tmp_path / "saved" / "table-0.step-2.shard-0-of-1.npy")
    assert saved[4].tolist() == [1 - 2 * 0.25 - 2 * 0.5]
    assert one.pull(0, after=-1) == [(0, [1, -0.75])]  # what worker 1 had pushed for step 2 counts now
    one.push(0, step=2, gradient=1.0)
    assert one.pull(1, after=2) == [(1, [1, -1.75])]


def test_every_push_has_its_learning_rate(tmp_path):
    one = OneServer(tmp_path, staleness=9)
    one.push(0, step=0, gradient=1.0)
    one.learning_rate = 0.25
    one.push(0, step=1, gradient=1.0)
    assert one.pull(0, after=-1) == [(0, [1, 1 - 1.0 - 0.25])]


def test_clipped_gradients_are_held_until_their_norm_is_known(tmp_path):
    one = OneServer(tmp_path, clips=True)
    one.push(0, step=0, gradient=1.0)
    assert one.tell(Kind.NORM, 0, 0) == []
    assert one.push(1, step=0, gradient=2.0) == [(0, [9.0])]  # of the sum of both
    assert one.pull(0, after=0) == []
    assert one.tell(Kind.SCALE, 0, 0, factor=0.5) == [(0, [1, 1 - 1.5])]
    with pytest.raises(RunError, match=r"rank 0\b.*step 0\b"):
        one.tell(Kind.SCALE, 0, 0, factor=0.5)


@pytest.mark.parametrize("rate", [float("nan"), -1.0])
def test_a_learning_rate_that_is_none_is_refused(tmp_path, rate):
    one = OneServer(tmp_path, staleness=9)
    one.learning_rate = rate
    with pytest.raises(RunError, match=r"rank 0\b.*\b0\b"):
        one.push(0, step=0, gradient=1.0)


def test_a_run_may_start_at_a_later_step(tmp_path):
    one = OneServer(tmp_path, first_step=7)
    assert one.pull(0, after=6) == [(0, [1, 1])]
    with pytest.raises(RunError, match=r"rank 0\b.*step 8\b.*\b7\b"):
        one.push(0, step=8, gradient=0.5)


def test_it_is_over_when_all_workers_say_so(tmp_path):
    one = OneServer(tmp_path)
    one.tell(Kind.STOP, 1, 0)
    assert not one.server.is_over
    one.tell(Kind.STOP, 0, 0)
    assert one.server.is_over


@pytest.mark.parametrize("rows", [[10], [-1, 3], [4, 3], [3, 3]])
def test_rows_that_are_none_or_in_no_order_are_refused(tmp_path, rows):
    with pytest.raises(RunError, match=r"rank 1\b.*'emb'"):
        OneServer(tmp_path).tell(Kind.PULL, 1, -1, rows)


def test_strangers_are_refused(tmp_path):
    with pytest.raises(RunError, match=r"rank 5\b"):
        OneServer(tmp_path).pull(5, after=-1)


def test_gradients_that_do_not_fit_their_rows_are_refused(tmp_path):
    one = OneServer(tmp_path, staleness=1)
    with pytest.raises(RunError, match=r"rank 0\b.*\b3\b.*\b1\b"):
        one.tell(Kind.PUSH, 0, 0, [4], gradients=[1.0, 2.0, 3.0])


def test_counts_that_do_not_add_up_are_refused():
    request = unpack_request(pack_request(Kind.PULL, 0, 0, [np.array([2, 5], np.int64)]))
    with pytest.raises(RunError, match=r"rank 0\b"):
        request.rows(1)


def test_a_request_survives_its_way():
    ints, floats = np.arange(5), np.array([0.5, -2.0], np.float32)
    for wire in ("float32", "float16", "bfloat16"):
        buffer = pack_request(Kind.PUSH, 3, 9, [ints[:2], ints[2:]], floats=[floats], wire=wire)
        assert request_bytes(buffer[:FIRST_BYTES], wire) == len(buffer)
        request = unpack_request(buffer, wire)
        assert (request.kind, request.worker, request.step) == (Kind.PUSH, 3, 9)
        assert (request.ints.tolist(), request.floats.tolist()) == ([0, 1, 2, 3, 4], [0.5, -2.0])


def test_bytes_that_are_no_request_are_refused():
    noise = torch.full((64,), 7, dtype=torch.uint8)
    with pytest.raises(RunError, match=r"version 4\b"):
        request_bytes(noise, "float32")
    with pytest.raises(RunError, match=r"version 4\b"):
        unpack_request(noise)
    with pytest.raises(RunError, match=r"\b71\b"):
        unpack_request(pack_request(Kind.PULL, 0, 0, [np.array([1])])[:-1])


TABLE = TableSpec("emb", 10, 1, None)  # type: ignore[arg-type]  # never opened


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"staleness": 1, "clips": True}, "gradients"),
        ({"staleness": -1}, r"-1.*\b0\b"),
        ({"ranks": ()}, r"\b0\b.*\b1\b.*\b1\b"),
        ({"wire": "int8"}, "'int8'.*float32.*float16.*bfloat16"),
        ({"memory_bytes": 0}, r"\b0\b.*memory"),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused(more, fault):
    with pytest.raises(RunError, match=fault):
        ServerSpec(**({"workers": (0,), "ranks": (1,), "tables": (TABLE,), "optimizer": Sgd(1.0)} | more))
