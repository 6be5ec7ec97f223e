"""What works on the state of the whole process goes one at a time; the rest side by side.

PyTorch's tracers and exporters replace methods of ``nn.Module`` while they work, and seeded runs set the one random
generator. In several threads at once they fail, or take another thread's work for the model's. So tracing, building,
verifying and writing are done :func:`alone`; what calls modules meanwhile, such as a search with a policy or a compiled
model that runs, is done :func:`beside` others of its kind, and waits while somebody is alone.

Left out: modules that a user's own threads call while another thread compiles.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .packages import PYTORCH
from .progress import LEAST_S, check, is_watched


class _Turns:
    """Who works on the state now; all fields are read and written under the condition."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.owner: int | None = None  # the thread that is alone
        self.depth = 0
        self.waiting = 0  # threads that want to be alone
        self.beside: dict[int, int] = {}  # how deep each thread is in blocks that go side by side


_turns = _Turns()


@contextmanager
def _when(is_free: Callable[[], bool]) -> Iterator[None]:
    """Hold the condition once something is true of it; ask meanwhile whether the caller still waits.

    Raises:
        CancelledError: where the caller cancelled the work.
    """
    while True:
        with _turns.changed:
            if _turns.changed.wait_for(is_free, LEAST_S if is_watched() else None):
                yield
                return
        check()


@contextmanager
def alone() -> Iterator[None]:
    """Be the only one in this process that works on its state; blocks may be nested, also in one of :func:`beside`."""
    me, turns = threading.get_ident(), _turns
    with turns.changed:
        turns.waiting += 1
    try:
        with _when(lambda: turns.owner in (None, me) and set(turns.beside) <= {me}):
            turns.owner, turns.depth = me, turns.depth + 1
    finally:
        with turns.changed:
            turns.waiting -= 1
            turns.changed.notify_all()
    try:
        yield
    finally:
        with turns.changed:
            turns.depth -= 1
            if not turns.depth:
                turns.owner = None
            turns.changed.notify_all()


@contextmanager
def beside() -> Iterator[None]:
    """Work beside others that do not change the state of the process; those who want to be alone go first."""
    me, turns = threading.get_ident(), _turns
    with _when(lambda: turns.owner == me or me in turns.beside or (turns.owner is None and not turns.waiting)):
        turns.beside[me] = turns.beside.get(me, 0) + 1
    try:
        yield
    finally:
        with turns.changed:
            turns.beside[me] -= 1
            if not turns.beside[me]:
                del turns.beside[me]
            turns.changed.notify_all()


@contextmanager
def gradients_on() -> Iterator[None]:
    """Record gradients, whether or not the caller is in ``no_grad``: a search learns, and gradients are compared."""
    torch = sys.modules.get(PYTORCH)
    if torch is None:  # nobody can have changed its modes
        yield
        return
    with torch.inference_mode(mode=False), torch.enable_grad():
        yield
