"""Run a function on several ranks: processes of a gloo group on this machine, ended whatever happens."""

import os
import tempfile
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from warm import be_in, warm_processes

TIMEOUT_S = 180.0


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    timeout_s: float = TIMEOUT_S,
) -> list[Any]:
    """Call ``function(rank, *arguments)`` on every rank and give what each returned, in the order of ranks.

    Every process is a rank of a world and of a group of gloo's, and has one thread. The function stands at the top of a
    module; its arguments and results are sent between processes of this very test (pickled), so keep them small.

    Raises:
        AssertionError: with the traceback of the first rank that failed, or where one takes too long.
    """
    context = warm_processes()
    with tempfile.TemporaryDirectory() as folder:
        pipes = [context.Pipe(duplex=False) for _ in range(world_size)]
        processes = [
            context.Process(
                target=_rank,
                args=(function, rank, world_size, Path(folder), pipes[rank][1], dict(os.environ), arguments),
            )
            for rank in range(world_size)
        ]
        try:
            for process, (_, sender) in zip(processes, pipes, strict=True):
                process.start()
                sender.close()  # so that a rank that dies ends its pipe
            return _collect([receiver for receiver, _ in pipes], timeout_s)
        finally:
            for process in processes:
                if process.pid is not None:
                    process.kill()
                    process.join()
            for receiver, _ in pipes:
                receiver.close()


def _collect(receivers: list[Connection], timeout_s: float) -> list[Any]:
    results: dict[int, Any] = {}
    waiting = {id(receiver): rank for rank, receiver in enumerate(receivers)}
    while len(results) < len(receivers):
        ready = wait([r for r in receivers if id(r) in waiting], timeout_s)
        assert ready, f"ranks {sorted(waiting.values())} did nothing for {timeout_s:g} s"
        for receiver in ready:
            rank = waiting.pop(id(receiver))
            try:
                succeeded, result = receiver.recv()
            except EOFError:
                raise AssertionError(f"rank {rank} died without a word") from None
            assert succeeded, f"rank {rank} failed:\n{result}"
            results[rank] = result
    return [results[rank] for rank in range(len(receivers))]


def _rank(  # noqa: PLR0917 - the process's arguments
    function: Callable[..., Any],
    rank: int,
    world_size: int,
    folder: Path,
    sender: Connection,
    environment: Mapping[str, str],
    arguments: tuple[Any, ...],
) -> None:
    be_in(environment)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch  # noqa: PLC0415 - in the ranks alone
    import torch.distributed as dist  # noqa: PLC0415

    from heterps_compile.runtime.pipeline.world import join_world, leave_world  # noqa: PLC0415

    torch.set_num_threads(1)
    try:
        store = dist.FileStore(str(folder / "store"), world_size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=60))
        join_world(dist.PrefixStore("world", store), rank, world_size)
        result = function(rank, *arguments)
        if store.add("ended", 1) == world_size:
            store.set("all ended", "")
        store.wait(["all ended"], timedelta(seconds=TIMEOUT_S))  # a rank that leaves resets connections of the others
        sender.send((True, result))
        leave_world()
        dist.destroy_process_group()
    except BaseException:  # noqa: BLE001 - whatever it is, the test shows it
        sender.send((False, traceback.format_exc()))
