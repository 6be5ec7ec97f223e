"""Ranks that have met connect under watch: one store, one watcher a rank, one group of all.

Not covered: how they meet (``env_rank.py``, ``local_ranks.py``); the watcher itself (``watch.py``).
"""

import atexit
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heterps_compile.runtime.pipeline.strangers import connect_without_strangers

from .addresses import check_reach, choose_address
from .faults import Place
from .membership import Membership, has_agent
from .progress import ProgressRecorder
from .stop_signals import stopping_on_signals
from .store_client import StorePlace, connect_store, host_store
from .watch import Supervision, Watch

if TYPE_CHECKING:
    from heterps_compile.runtime.c10d import Store

_OUTSTAY_S = 5.0
_PATIENCE = timedelta(days=7)  # a rank that waits for ever is the watchers' affair


def supervised_by_ranks(
    member: Membership, place: StorePlace, hang_after_s: float, checkpoints: Path | None = None
) -> Supervision:
    """Return who watches over a rank without a launcher: rank 0 over all, and all over rank 0.

    Args:
        member: The rank.
        place: Of the store of the run.
        hang_after_s: Seconds without a sign of life that count as a hang.
        checkpoints: The folder that the run writes checkpoints into.
    """
    return Supervision(
        hang_after_s=hang_after_s,
        monitored=range(1, member.world_size) if member.rank == 0 else (0,),
        parent=os.getppid() if has_agent(os.environ) else None,
        late_s=place.patience_s,
        host=0,
        checkpoints=checkpoints,
    )


@contextmanager
def watched(
    member: Membership,
    place: StorePlace,
    progress: ProgressRecorder,
    supervision: Supervision,
    *,
    hosts: bool,
    has_steps: bool = True,
) -> Iterator[Watch]:
    """Watch over the other ranks in a block; a fault ends this process after the message.

    Args:
        member: This rank.
        place: Of the store of the run.
        progress: What this rank does.
        supervision: Who watches over whom.
        hosts: Whether this process hosts the store.
        has_steps: Whether a signal stops the ranks after a step; else Ctrl-C is a KeyboardInterrupt.

    Raises:
        RunError: if the store cannot be reached.
    """
    from heterps_compile.runtime.c10d import leave_world  # noqa: PLC0415 - torch only in the processes of a run

    hosted = host_store(place) if hosts else None
    places = [Place(rank) for rank in range(member.world_size)]
    watch = Watch(connect_store(place, f"rank {member.rank}"), places, member.rank, progress, supervision)
    if hosted is not None and place.folder is not None:
        watch.before_end(remove := partial(shutil.rmtree, place.folder, ignore_errors=True))
        atexit.register(remove)
    watch.start()
    with stopping_on_signals(watch.listen) if has_steps else nullcontext():
        try:
            yield watch
            watch.finish()
        except BaseException as error:  # the outermost frame of a rank: told to all, then the process ends
            watch.fail(error)
            raise
    leave_world()
    if hosted is not None:
        watch.outstay(_OUTSTAY_S)
        hosted.close()


def join_group(member: Membership, store: "Store", said: Sequence[Mapping[str, Any]]) -> None:
    """Join the group of all ranks.

    Ranks of one machine talk through memory that both map, others over gloo, which copies tensors of a GPU through the
    CPU's memory; nothing goes over NCCL.

    Args:
        member: This rank.
        store: Of the run.
        said: What each rank says of itself, with the ``address`` from which it reaches the first host.
    """
    import torch.distributed as dist  # noqa: PLC0415 - torch only in the processes of a run

    from heterps_compile.runtime.c10d import PrefixStore, cpu_group_of_world, leave_world  # noqa: PLC0415

    own = choose_address([str(said_by.get("address", "")) for said_by in said])
    if own:
        check_reach(store, member.rank, member.world_size, own)

    def join(tried: "Store", timeout: timedelta) -> Any:
        dist.init_process_group("gloo", store=tried, rank=member.rank, world_size=member.world_size, timeout=timeout)
        return cpu_group_of_world()

    group = PrefixStore("group", store)
    connect_without_strangers(join, leave_world, group, member.rank, member.world_size, patience=_PATIENCE)
