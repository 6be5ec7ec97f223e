"""What ranks of one machine do with the memory that they share: who waits, what is used again, who is gone."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from test_engine import dropping_stages, odd_loss, odd_stages, plain_loss, train

from heterps_compile.errors import RunError
from heterps_compile.runtime.pipeline.message import Packing, ValueSpec, bytes_packing
from heterps_compile.runtime.pipeline.shared_memory import neighbours
from heterps_compile.runtime.pipeline.shared_memory.arena import Arena, check_place, map_buffer
from heterps_compile.runtime.pipeline.shared_memory.endpoints import MemoryIn, MemoryOut
from heterps_compile.runtime.pipeline.shared_memory.mailboxes import SLEEPS, Mailboxes
from heterps_compile.runtime.pipeline.shared_memory.neighbours import Neighbours
from heterps_compile.runtime.pipeline.shared_memory.spin import WaitPolicy
from heterps_compile.runtime.pipeline.world import join_world

PACKING = Packing([ValueSpec("tensor", "float32", (3,))], "float32")
TAGS = 4

pytestmark = pytest.mark.skipif(not neighbours.machine(), reason="this system or processor has no neighbours")


@pytest.fixture
def pair() -> Iterator[list[Mailboxes]]:
    """Yield the mailboxes of two neighbours in this process."""
    store = dist.HashStore()

    def join(rank: int) -> Mailboxes:
        made = Neighbours(store, (0, 1), rank)
        return Mailboxes(made, made.ranks, TAGS)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(join, (0, 1))
    with closing(first.neighbours), closing(second.neighbours):
        yield [first, second]


def send(way: MemoryOut, tag: int, *numbers: float) -> None:
    way.send(PACKING, [torch.tensor(numbers)], tag)


def test_ranks_of_a_cloned_machine_share_nothing_although_it_says_the_same_of_itself(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
):
    monkeypatch.setattr(neighbours, "_names_here", set[str])
    pair: list[Mailboxes] = request.getfixturevalue("pair")
    assert [(one.neighbours.ranks, one.neighbours.have((0, 1))) for one in pair] == [((), False)] * 2


def test_a_message_is_read_where_it_lies_and_its_memory_used_again_when_nobody_holds_it(pair):
    assert [one.neighbours.have((0, 1)) for one in pair] == [True, True]
    assert [one.neighbours.ranks for one in pair] == [(1,), (0,)]
    out, into = MemoryOut(pair[0], 1), MemoryIn(pair[1], 0, "rank 0")
    send(out, 0, 1, 2, 3)
    kept = PACKING.unpack(into.take(PACKING, 0), torch.device("cpu"))
    into.let_go()
    send(out, 1, 4, 5, 6)  # while the first is held: elsewhere
    other = PACKING.unpack(into.take(PACKING, 1), torch.device("cpu"))
    assert [kept[0].tolist(), other[0].tolist()] == [[1, 2, 3], [4, 5, 6]]
    assert len(out._buffers) == 2
    address = kept[0].data_ptr()
    del kept
    into.let_go()
    send(out, 2, 7, 8, 9)
    again = PACKING.unpack(into.take(PACKING, 2), torch.device("cpu"))
    assert (again[0].tolist(), again[0].data_ptr()) == ([7, 8, 9], address)
    assert len(out._buffers) == 2


def test_what_nobody_needs_is_freed_before_the_step_ends(pair):
    out, into = MemoryOut(pair[0], 1), MemoryIn(pair[1], 0, "rank 0")
    large = Packing([ValueSpec("tensor", "float32", (100_000,))], "float32")
    for number in range(12):
        out.send(large, [torch.full((100_000,), float(number))], 0)
        (view,) = into.take(large, 0)
        assert view is not None
        assert view[-1].item() == number
    assert len(out._buffers) == 2  # one is filled before the one of the message before is freed


def test_a_rank_that_sleeps_is_rung_for_and_no_other(pair, monkeypatch):
    out, into = MemoryOut(pair[0], 1), MemoryIn(pair[1], 0, "rank 0")
    pair[1]._wait = WaitPolicy(first_sleep_s=1800.0)
    monkeypatch.setattr(pair[1]._spin, "longest_s", 0.0)
    rung: list[int] = []
    ring = pair[0].neighbours.ring
    monkeypatch.setattr(pair[0].neighbours, "ring", lambda rank: (rung.append(rank), ring(rank)))
    taken: list[Any] = []
    sleeper = threading.Thread(target=lambda: taken.append(into.take(PACKING, 0)), daemon=True)
    sleeper.start()
    while not pair[0].outbox(1)[SLEEPS]:
        pass
    send(out, 0, 1, 2, 3)
    sleeper.join(60)
    assert [view.tolist() for (view,) in taken] == [[1, 2, 3]]
    send(out, 1, 1, 2, 3)
    assert rung == [1]


def test_the_first_sleep_is_short_since_the_writer_may_not_have_seen_it_begin(pair, monkeypatch):
    out, into = MemoryOut(pair[0], 1), MemoryIn(pair[1], 0, "rank 0")
    monkeypatch.setattr(pair[1]._spin, "longest_s", 0.0)
    sleeps: list[float] = []

    def sleep(at_most_s: float) -> None:
        sleeps.append(at_most_s)
        pair[0].outbox(1)[SLEEPS] = 0  # what the writer reads too early
        send(out, 0, 1, 2, 3)

    monkeypatch.setattr(pair[1].neighbours, "sleep", sleep)
    (view,) = into.take(PACKING, 0)
    assert view is not None
    assert (view.tolist(), sleeps) == ([1, 2, 3], [1e-3])


def test_a_rank_is_at_most_one_message_of_a_tag_ahead_of_its_reader(pair):
    out, into = MemoryOut(pair[0], 1), MemoryIn(pair[1], 0, "rank 0")
    sent: list[int] = []

    def send_three() -> None:
        for number in range(3):
            send(out, 0, number, number, number)
            sent.append(number)

    sender = threading.Thread(target=send_three)
    sender.start()
    seen = []
    for number in range(3):
        (view,) = into.take(PACKING, 0)
        assert view is not None
        seen.append(view[0].item())
        assert len(sent) <= number + 2
    sender.join()
    assert seen == sent == [0, 1, 2]


def test_what_a_rank_sent_before_it_left_is_read_and_then_it_is_gone(pair):
    out, into = MemoryOut(pair[0], 1), MemoryIn(pair[1], 0, "rank 0")
    send(out, 0, 1, 2, 3)
    pair[0].neighbours.close()
    assert into.take(PACKING, 0) is not None
    with pytest.raises(RunError, match=r"rank 0\b"):
        into.take(PACKING, 1)
    back = MemoryOut(pair[1], 0)
    send(back, 0, 1, 2, 3)
    with pytest.raises(RunError, match=r"rank 0\b"):
        send(back, 0, 1, 2, 3)  # the one before will never be taken


def test_a_place_that_another_rank_tells_is_checked():
    memory = Arena()
    buffer = memory.new_buffer(PACKING)
    assert map_buffer(memory.descriptor, buffer.place, buffer.size_bytes, PACKING, "rank 0").place == buffer.place
    with pytest.raises(RunError, match=r"rank 0\b.*\b13\b.*\b12\b"):
        map_buffer(memory.descriptor, buffer.place, 13, PACKING, "rank 0")
    for place in (-4096, 0, buffer.place + 1, buffer.place + 4096):
        with pytest.raises(RunError, match=rf"rank 0\b.*\b76\b.*{place}.*8192"):
            map_buffer(memory.descriptor, place, buffer.size_bytes, PACKING, "rank 0")
    with pytest.raises(RunError, match=r"rank 0\b.*8192.*4096.*8192"):
        check_place(memory.descriptor, 4096, 8192, "rank 0")
    assert bytes_packing(12).size_bytes == PACKING.size_bytes


def _apart(rank: int, machines: tuple[str, ...]) -> Any:
    """Train where ranks take themselves to be on these machines."""
    neighbours.machine = lambda: machines[rank]
    join_world(dist.PrefixStore(str(machines), dist.distributed_c10d._get_default_store()), rank, len(machines))
    return [train(rank, odd_stages(), "y early unused", (2, 1, 1), odd_loss), _dropped(rank)]


def _dropped(rank: int) -> Any:
    return train(rank, dropping_stages(), "y", (2, 2), plain_loss)


def _of_all_ways(rank: int) -> list[Any]:
    one = neighbours.machine()
    ways = ((one,) * 4, ("",) * 4, (one, one, f"{one}'", f"{one}'"), (one, "", one, ""))
    return [_apart(rank, way) for way in ways]


def test_results_are_the_same_bits_whether_ranks_share_memory_or_not():
    for of_rank in run_ranks(_of_all_ways, 4):
        shared, *others = of_rank
        assert others == [shared] * 3
