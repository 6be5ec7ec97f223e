"""Which tensors go between GPUs without the CPU's memory, in which order, and that nothing else changes."""

import sys
from collections import Counter, defaultdict
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hand_made import HandMade, engine_of, reader
from ranks import run_ranks
from test_engine import dropping_stages, looking_up_stages, odd_loss, odd_stages, plain_loss, train
from test_layout import plan_of
from torch import Tensor
from torch.overrides import TorchFunctionMode

from heterps_compile.errors import RunError
from heterps_compile.runtime.launch.machines_of_ranks import machine_notes
from heterps_compile.runtime.pipeline.gpu_table import NO_GPUS, GpuTable, gpu_table
from heterps_compile.runtime.pipeline.layout import Layout, StepShape, make_layout
from heterps_compile.runtime.pipeline.routes import Route
from heterps_compile.runtime.pipeline.shared_memory import neighbours
from heterps_compile.schedule.order import Phase

CUDA = ("cuda",) * 4
FOUR = GpuTable(CUDA, ("a", "b", "c", "d"))
SHARED = GpuTable(CUDA, ("a", "b", "b", "d"))
MIXED = GpuTable(("cpu", "cpu", "cuda", "cuda"), ("", "", "c", "d"))


@pytest.mark.parametrize(
    ("table", "connected", "copies"),
    [
        (NO_GPUS, [], ""),
        (FOUR, [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)], ""),
        (
            SHARED,
            [(0, 1), (0, 2), (0, 3), (1, 3), (2, 3)],
            "between ranks 1 and 2, which share a GPU (NCCL refuses that)",
        ),
        (MIXED, [(2, 3)], "from and to ranks 0 and 1 on the CPU"),
        (
            GpuTable(("cpu", "cuda", "cuda", "cuda"), ("", "b", "b", "")),
            [],
            "between ranks 1 and 2, which share a GPU (NCCL refuses that); from and to rank 0 on the CPU; "
            "from and to rank 3 without NCCL in PyTorch",
        ),
    ],
)
def test_ranks_with_a_gpu_each_are_connected_and_the_others_are_named(table, connected, copies):
    assert [pair for pair in combinations(range(4), 2) if table.connects(pair)] == connected
    assert table.connects(range(4)) is (len(connected) == 6)
    assert table.host_copies(range(4)) == copies


def test_the_table_is_what_ranks_say_of_themselves():
    said = [{"device": "cpu"}, {"device": "cuda:0", "gpu": "a"}, {"device": "cuda:1", "gpu": ""}]
    assert gpu_table(said) == GpuTable(("cpu", "cuda", "cuda"), ("", "a", ""))
    assert gpu_table(said[:1]) == NO_GPUS


def test_one_note_of_a_run_names_who_copies_and_why():
    layout = make_layout(plan_of(1, 1, 1, 1), training=False)
    prepared: Any = SimpleNamespace(layout=layout, plan=None)
    assert list(machine_notes(prepared, (), FOUR)) == []
    (note,) = machine_notes(prepared, (), SHARED)
    assert "through the CPU's memory between ranks 1 and 2, which share a GPU" in note


SCHEDULES = ("gpipe", "1f1b", "zero-bubble", "interleaved-1f1b")
WIDTHS = ((1, 1), (2, 1), (1, 3), (2, 3), (1, 2, 1), (3, 2, 4))
Message = tuple[int, Phase, int, int]
"""Of a channel: index of the route, phase, sender, receiver."""


def programme(layout: Layout, routes: list[Route], rank: int) -> list[tuple[bool, Message, int]]:
    """Return what a rank takes (False) and sends (True), in its order: channel and micro-batch."""
    found = []
    for action in layout.actions(rank):
        if action.phase is Phase.WEIGHT:
            continue
        stage, micro_batch, is_forward = layout.stage_of(action), action.micro_batch, action.phase is Phase.FORWARD
        for sends in (False, True):
            for route in routes:
                own, other = (route.source, route.target) if sends is is_forward else (route.target, route.source)
                peer = layout.owner(other, micro_batch)
                if own == stage and peer != rank:
                    pair = (rank, peer) if sends else (peer, rank)
                    found.append((sends, (route.index, action.phase, *pair), micro_batch))
    return found


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("widths", WIDTHS)
def test_the_kth_receive_of_a_channel_takes_the_kth_message_and_every_step_ends(schedule, widths):
    from heterps_compile.runtime.pipeline.between_gpus import refuse_other_order  # noqa: PLC0415 - see _by_table

    stages = len(widths) * (2 if schedule == "interleaved-1f1b" else 1)
    layout = make_layout(
        plan_of(*[1] * stages, batch=144),
        training=True,
        replicas=widths,
        step=StepShape(schedule=schedule, micro_batches=12),
    )
    routes = [Route(index, *pair, ("a",)) for index, pair in enumerate(combinations(range(stages), 2))]  # every skip
    refuse_other_order(layout, routes)
    left = {rank: programme(layout, routes, rank)[::-1] for rank in range(layout.world_size)}
    on_the_way: dict[Message, list[int]] = defaultdict(list)
    while any(left.values()):
        moved = False
        for of_rank in left.values():
            while of_rank and (of_rank[-1][0] or on_the_way[of_rank[-1][1]]):  # what it takes was sent
                sends, channel, micro_batch = of_rank.pop()
                moved = True
                if sends:
                    on_the_way[channel].append(micro_batch)
                else:
                    assert on_the_way[channel].pop(0) == micro_batch
        assert moved, "every rank waits"
    assert not any(on_the_way.values())


def test_a_schedule_that_takes_in_another_order_is_refused_by_name():
    from heterps_compile.runtime.pipeline.between_gpus import refuse_other_order  # noqa: PLC0415 - see _by_table

    layout = make_layout(plan_of(1, 1), training=True, step=StepShape(schedule="gpipe"))

    class Reversed(Layout):
        def actions(self, rank: int) -> Any:
            return super().actions(rank)[:: -1 if rank else 1]

    other = Reversed(**{name: getattr(layout, name) for name in Layout.__dataclass_fields__})
    with pytest.raises(RunError, match=r"rank 0.*\[0, 1, 2, 3\].*rank 1.*\[3, 2, 1, 0\].*--schedule"):
        refuse_other_order(other, [Route(0, 0, 1, ("a",))])


class Told:
    """A group that keeps what it is asked."""

    ranks = (0, 1)

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.asked.append((name, *arguments)) or SimpleNamespace(wait=lambda: None)


def test_dense_tensors_of_the_device_alone_are_summed_without_the_host():
    from heterps_compile.runtime.pipeline.between_gpus import GpuGroup  # noqa: PLC0415 - see _by_table

    host, nccl = Told(), Told()
    fake = SimpleNamespace(device=torch.device("meta"), connect=lambda store, place, size: nccl)
    group = GpuGroup(host, fake, None, 0)
    nccl.asked.clear()
    here, there = torch.ones(2), torch.ones(2, 3, device="meta")
    sparse = torch.sparse_coo_tensor(torch.zeros(1, 1, dtype=torch.int64), torch.ones(1), (2,), check_invariants=True)
    for tensor in (here, there, sparse, there.T):
        group.sum(tensor)
        group.maximum(tensor)
    for name in ("gather", "start_send", "start_receive"):
        getattr(group, name)(here)
    assert [(name, how) for name, _, how in nccl.asked] == [
        ("allreduce", dist.ReduceOp.SUM),
        ("allreduce", dist.ReduceOp.MAX),
    ]
    names = ["sum", "maximum"] * 3 + ["gather", "start_send", "start_receive"]
    assert [name for name, *_ in host.asked] == names


def _four_stages() -> list[HandMade]:
    """Return four stages, of which the third and the fourth also read what earlier ones make."""

    def times(stage: HandMade, *values: Tensor) -> tuple[Tensor]:
        return (torch.tanh(sum(values) @ stage.weight),)  # type: ignore[operator]

    reads = ("x", "a", "a b", "a c")
    return [HandMade(names, made, times) for names, made in zip(reads, ("a", "b", "c", "y"), strict=True)]


def _trained(rank: int) -> list[Any]:
    found: list[Any] = [
        train(rank, odd_stages(), "y early unused", (2, 1, 1), odd_loss),
        train(rank, odd_stages(), "y early unused", (1, 1, 2), odd_loss, wire="bfloat16"),
        train(rank, dropping_stages(), "y", (2, 2), plain_loss),
        train(rank, looking_up_stages(), "y", (2, 2), plain_loss),
    ]
    for schedule in SCHEDULES:
        widths = (2, 2) if schedule == "interleaved-1f1b" else (1, 1, 1, 1)
        found.append(train(rank, _four_stages(), "y", widths, plain_loss, schedule=schedule))
    engine = engine_of(rank, dropping_stages(), "y", (2, 2), None)
    outputs = [engine.infer(step, reader(step, []), count) for step, count in enumerate((6, 4, 6))]
    engine.finish()
    return [*found, [{key: of["y"].tolist() for key, of in one.items()} for one in outputs]]


_WEIGHT_BYTES = 4 * 4 * 4
Paths = dict[tuple[int, ...], list[tuple[str, int]]]
"""What went over NCCL: by sender and receiver, or by the members of a sum, the operations and their bytes."""


def _paths(rank: int, gpus: GpuTable, name: str) -> Paths:
    """Train four stages of a replica each, and then two of two each; give what went over NCCL."""
    from fake_nccl import join_with_gpus  # noqa: PLC0415 - after runs that are not to load it

    own = join_with_gpus(name, rank, gpus)
    train(rank, _four_stages(), "y", (1, 1, 1, 1), plain_loss)
    found: Paths = defaultdict(list)
    for group in own.nccl.groups:
        found[group.ranks] += group.done
    own.nccl.groups.clear()
    train(rank, looking_up_stages(), "y", (2, 2), plain_loss)
    for group in own.nccl.groups:
        if group.done[0][0] == "max":  # by which the members of a sum connect
            found[group.ranks] = [one for one in group.done if one == ("sum", _WEIGHT_BYTES)]
    return dict(found)


class Read(TorchFunctionMode):
    """Counts the calls by which the host reads a tensor, and so would wait for a GPU, by the file that does it."""

    names = ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__")

    def __init__(self) -> None:
        super().__init__()
        self.files: Counter[str] = Counter()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, named = getattr(function, "__name__", ""), kwargs or {}
        if name in self.names or (name == "repeat_interleave" and "output_size" not in named):
            self.files[Path(sys._getframe(1).f_code.co_filename).stem] += 1
        return function(*args, **named)


def _reads(rank: int) -> dict[str, int]:
    """Train a step, after the first, with batch norms, two replicas of a stage and clipped gradients."""
    engine = engine_of(rank, dropping_stages(), "y", (2, 2), plain_loss, clip_norm=0.1)
    engine.train_step(0, reader(0, []))
    with Read() as read:
        engine.train_step(1, reader(1, []))
    engine.finish()
    return dict(read.files)


def _by_table(rank: int, apart: bool) -> list[tuple[Any, Paths]]:
    if apart:
        neighbours.machine = lambda: ""
    found: list[tuple[Any, Paths]] = [(_trained(rank), {})]
    for name in ("between_gpus", "over_nccl"):
        assert f"heterps_compile.runtime.pipeline.{name}" not in sys.modules, "a run on CPUs loads what is for GPUs"
    from fake_nccl import join_with_gpus  # noqa: PLC0415 - as above

    for number, gpus in enumerate((FOUR,) if apart else (FOUR, SHARED, MIXED)):
        paths = _paths(rank, gpus, f"paths {number}")
        join_with_gpus(str(number), rank, gpus)
        found.append((_trained(rank), paths))
        if number == 0:
            reads = _reads(rank)
            assert reads.pop("clip_gradients") <= 3, "the norm is read once, whatever the number of parameters"
            reads.pop("memory_group", None)  # of the norm, which is on the CPU
            assert set(reads) <= {"batch_loss", "loss_values"}, f"a step reads more than its loss: {reads}"
    return found


def expected_paths(rank: int, gpus: GpuTable) -> Paths:
    """Return what has to go over NCCL on a rank, from what the stages and the table say."""
    sizes = [1] + [2 * 4 * 4] * 18  # one to connect; 3 steps of 6 micro-batches of float32
    found: Paths = {}
    for source, target in ((0, 1), (0, 2), (0, 3), (1, 2), (2, 3)):
        for pair in ((source, target), (target, source)) if gpus.connects((source, target)) else ():
            if rank in pair:
                what = "send" if rank == pair[0] else "recv"
                found[pair] = [(what, size) for size in sizes]
    group = (0, 1) if rank < 2 else (2, 3)
    if gpus.connects(group):
        found[group] = [("sum", _WEIGHT_BYTES)] * (3 if rank > 1 else 0)  # the gradients of the first stage are sparse
    return found


@pytest.mark.parametrize("apart", [False, True])
def test_runs_between_gpus_train_to_the_bits_of_runs_through_the_host(apart):
    by_rank = run_ranks(_by_table, 4, apart)
    for rank, (plain, *others) in enumerate(by_rank):
        for gpus, (trained, paths) in zip((FOUR, SHARED, MIXED), others, strict=False):
            assert trained == plain[0]
            assert paths == expected_paths(rank, gpus)
