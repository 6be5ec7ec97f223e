"""Tensors of a GPU between two processes, way by way, and two stages in one process on streams of their own.

Untried on a GPU. Every tensor that comes back is compared with what was sent, and the stages on two streams with those
on one, bit by bit. Times are of one machine, way against way in turns.
"""

import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from heterps_compile.runtime.launch.addresses import choose_address
from heterps_compile.runtime.launch.run_store import folder_store
from heterps_compile.runtime.pipeline.gpu_table import NO_GPUS, GpuTable
from heterps_compile.runtime.pipeline.layout import Layout
from heterps_compile.runtime.pipeline.shared_memory import neighbours
from heterps_compile.runtime.pipeline.transport import Transport
from heterps_compile.runtime.pipeline.world import join_world, leave_world

HOST, GLOO, NCCL = "shared memory", "gloo", "NCCL"
SIZES_BYTES = (1 << 16, 1 << 20, 1 << 24)
_ROUNDS, _WARM_UP = 30, 5
_TIMEOUT_S = 300.0
_TWO = Layout("gpipe", training=True, widths=(1, 1), chunks=1, micro_batches=1, batch=1, assignment=((0,), (0,)))
_WIDTH, _LAYERS, _MICRO_BATCHES, _SAMPLES = 2048, 4, 8, 256


def ways(devices: Sequence[str]) -> Iterator[str]:
    """Yield a table of seconds, one way, of messages between two processes that compute on two devices."""
    took_s = {way: _between(devices, way) for way in (HOST, GLOO)}
    if _table(devices).connects((0, 1)):
        took_s[NCCL] = _between(devices, NCCL)
    yield f"\n| {' to '.join(devices)} | {' | '.join(f'{size >> 10:,} KiB' for size in SIZES_BYTES)} |"
    yield "|---" * (1 + len(SIZES_BYTES)) + "|"
    for way, of_sizes in took_s.items():
        cells = [f"{of_sizes[s] * 1e6:,.0f} us ({of_sizes[s] / took_s[HOST][s]:.2f})" for s in SIZES_BYTES]
        yield f"| {way} (time / {HOST}) | {' | '.join(cells)} |"
    if NCCL not in took_s:
        yield f"NCCL does not connect them: {_table(devices).host_copies((0, 1)) or 'none is a GPU'}"


def _table(devices: Sequence[str]) -> GpuTable:
    kinds = tuple(torch.device(device).type for device in devices)
    if "cuda" not in kinds:
        return NO_GPUS
    from heterps_compile.runtime.pipeline.over_nccl import gpu_id  # noqa: PLC0415 - on GPUs alone

    ids = [gpu_id(torch.device(each)) if torch.device(each).type == "cuda" else "" for each in devices]
    return GpuTable(kinds, tuple(ids))


def _between(devices: Sequence[str], way: str) -> Mapping[int, float]:
    """Return the median time of a message between two processes, by its bytes."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=_rank, args=(rank, devices, way, folder, theirs)) for rank in (0, 1)]
        for process in processes:
            process.start()
        try:
            if not ours.poll(_TIMEOUT_S):
                raise SystemExit(f"{way}: no answer in {_TIMEOUT_S:g} s")
            found = ours.recv()
        finally:
            for process in processes:
                process.join(10)
                process.kill()
    if isinstance(found, str):
        raise SystemExit(f"{way}: {found}")
    return found  # type: ignore[no-any-return]


def _rank(rank: int, devices: Sequence[str], way: str, folder: str, pipe: Any) -> None:
    """Be one of two processes; the first sends its times, or either what went wrong."""
    try:
        device = torch.device(devices[rank])
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if way == GLOO:
            neighbours.machine = lambda: ""
        choose_address(())
        join_world(folder_store(Path(folder)), rank, 2, _table(devices) if way == NCCL else NO_GPUS)
        transport = Transport(2, rank, 2 * len(SIZES_BYTES))
        pairs = [
            (
                transport.sender(1 - rank, 2 * place + 1, "float32", device),
                transport.receiver(1 - rank, 2 * place + 1, device, "the other process"),
            )
            for place in range(len(SIZES_BYTES))
        ]
        transport.connect_gpus(_TWO, ())
        took_s = {}
        for place, (size, (sender, receiver)) in enumerate(zip(SIZES_BYTES, pairs, strict=True)):
            content = torch.randint(256, (size,), dtype=torch.uint8).to(device)
            times_s = []
            for _ in range(_WARM_UP + _ROUNDS):
                _wait(device)
                began_s = time.perf_counter()
                if rank == 0:
                    sender.send(2 * place, ("content",), [content])
                (arrived,) = receiver.take(2 * place, 1)
                if rank == 1:
                    sender.send(2 * place, ("content",), [arrived])
                _wait(device)
                times_s.append((time.perf_counter() - began_s) / 2)
                sender.flush()
                if rank == 0 and not torch.equal(arrived, content):
                    raise ValueError(f"a message of {size} bytes came back as another one")
                del arrived
                receiver.let_go()
            took_s[size] = median(times_s[_WARM_UP:])
        if rank == 0:
            pipe.send(took_s)
        leave_world()
    except Exception as error:  # noqa: BLE001 - whatever it is, the benchmark shows it
        pipe.send(f"rank {rank}: {type(error).__name__}: {error}")


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def streams(device_name: str) -> str:
    """Return what two stages of one process take on streams of their own, against the time on one stream."""
    device = torch.device(device_name)
    if device.type != "cuda":
        return f"two stages of one process on {device_name}: no streams"
    torch.manual_seed(0)
    stages = [nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS))).to(device) for _ in range(2)]
    batches = [torch.randn(_SAMPLES, _WIDTH).to(device) for _ in range(_MICRO_BATCHES)]
    took_s: dict[bool, list[float]] = {False: [], True: []}
    results: dict[bool, list[Tensor]] = {}
    for turn in range(_WARM_UP + _ROUNDS):
        for apart in (False, True) if turn % 2 else (True, False):
            _wait(device)
            began_s = time.perf_counter()
            results[apart] = _forwards(stages, batches, device, apart=apart)
            _wait(device)
            took_s[apart].append(time.perf_counter() - began_s)
    same = all(torch.equal(one, other) for one, other in zip(*results.values(), strict=True))
    ratio = median(took_s[True][_WARM_UP:]) / median(took_s[False][_WARM_UP:])
    return f"two stages of one process on {device_name}: time on two streams / on one {ratio:.2f}; same bits: {same}"


def _forwards(
    stages: Sequence[nn.Module], batches: Sequence[Tensor], device: torch.device, *, apart: bool
) -> list[Tensor]:
    """Run the forwards of both stages on all micro-batches, the second stage on a stream of its own if ``apart``."""
    cuda: Any = torch.cuda
    main = cuda.current_stream(device)
    aside = cuda.Stream(device) if apart else main
    outputs = []
    with torch.no_grad():
        for batch in batches:
            value = stages[0](batch)
            aside.wait_stream(main)
            value.record_stream(aside)
            with cuda.stream(aside):
                outputs.append(stages[1](value))
    main.wait_stream(aside)
    return outputs
