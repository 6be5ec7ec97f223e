"""Ranks that have met connect under watch: one store, one watcher a rank, one group of all.

Not covered: how they meet (``env_rank.py``, ``local_machine.py``); the watcher itself (``watch.py``).
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .addresses import check_reach, choose_address
from .faults import Place
from .machines_of_ranks import machines_of_ranks
from .membership import Membership, has_agent
from .progress import ProgressRecorder
from .run_store import Connect
from .stop_signals import stopping_on_signals
from .watch import Supervision, Watch

if TYPE_CHECKING:
    from heterps_compile.runtime.c10d import Store

    from .env_rank import Joined

_OUTSTAY_S = 5.0
_LATE_S = 60.0


def supervised_by_ranks(joined: "Joined", hang_after_s: float, checkpoints: Path | None = None) -> Supervision:
    """Return who watches over a rank without a launcher: rank 0 over all, and all over rank 0.

    Args:
        joined: The rank.
        hang_after_s: Seconds without a sign of life that count as a hang.
        checkpoints: The folder that the run writes checkpoints into.
    """
    member = joined.member
    return Supervision(
        hang_after_s=hang_after_s,
        monitored=range(1, member.world_size) if member.rank == 0 else (0,),
        parent=os.getppid() if has_agent(os.environ) else None,
        late_s=_LATE_S,
        host=joined.host,
        checkpoints=checkpoints,
    )


@contextmanager
def watched(
    member: Membership,
    connect: Connect,
    progress: ProgressRecorder,
    supervision: Supervision,
    *,
    has_steps: bool = True,
) -> Iterator[Watch]:
    """Watch over the other ranks in a block; a fault ends this process after the message.

    Args:
        member: This rank.
        connect: Connects to the store of the run.
        progress: What this rank does.
        supervision: Who watches over whom.
        has_steps: Whether a signal stops the ranks after a step; else Ctrl-C is a KeyboardInterrupt.

    Raises:
        RunError: if the store cannot be reached.
    """
    from heterps_compile.runtime.pipeline.world import leave_world  # noqa: PLC0415 - torch only in the processes of a run

    store = connect()
    store.set_timeout(timedelta(seconds=supervision.hang_after_s))
    watch = Watch(store, [Place(rank) for rank in range(member.world_size)], member.rank, progress, supervision)
    watch.start()
    with stopping_on_signals(watch.listen) if has_steps else nullcontext():
        try:
            yield watch
            watch.finish()
        except BaseException as error:  # the outermost frame of a rank: told to all, then the process ends
            watch.fail(error)
            raise
    leave_world()
    if supervision.host == member.rank:
        watch.outstay(_OUTSTAY_S)


def join_group(member: Membership, store: "Store", said: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """Join the world of the run, whose groups connect as they are made; return the machine of every rank.

    Tensors of GPUs go over NCCL between ranks with a GPU each. All else goes through memory that ranks of one machine
    map, or over gloo, and tensors of a GPU are copied through the CPU's memory.

    Args:
        member: This rank.
        store: Of the run.
        said: What each rank says of itself, with its ``host``, the ``address`` from which it reaches the first one, and
            its ``device`` and ``gpu`` (``pipeline/gpu_table.py``).
    """
    from heterps_compile.runtime.c10d import PrefixStore  # noqa: PLC0415 - torch only in the processes of a run
    from heterps_compile.runtime.pipeline.gpu_table import gpu_table  # noqa: PLC0415
    from heterps_compile.runtime.pipeline.world import join_world  # noqa: PLC0415

    machine_of = machines_of_ranks(said)
    own = choose_address([str(said_by.get("address", "")) for said_by in said] if machine_of else [])
    if own:
        check_reach(store, member.rank, member.world_size, own)
    join_world(PrefixStore("group", store), member.rank, member.world_size, gpu_table(said))
    return machine_of
