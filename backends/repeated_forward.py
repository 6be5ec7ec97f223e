"""The forward that is running now where its stage will run again for its backward, and whether this is that repetition.

What a stage fetches from elsewhere in a forward, it notes here, and finds it in the repetition instead of fetching it
again.

Left out: who repeats forwards (``torch/recomputing.py``), what is fetched (``runtime/servers/client.py``).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class RepeatedForward:
    """A forward that is run, and run again.

    Attributes:
        fetched: What was fetched, in order.
        taken: How much of it the repetition that is running has taken; None in the forward itself.
        waiting: What the repetition has taken and not used yet.
    """

    fetched: list[Any] = field(default_factory=list)
    taken: int | None = None
    waiting: list[Any] = field(default_factory=list)

    @property
    def is_repetition(self) -> bool:
        """Say whether it runs for the second time."""
        return self.taken is not None

    def take(self) -> Any:
        """Return what the forward fetched at this place."""
        assert self.taken is not None, "nothing is taken but in a repetition"  # noqa: S101 - see current_forward
        self.taken += 1
        return self.fetched[self.taken - 1]


_RUNNING: ContextVar[RepeatedForward | None] = ContextVar("_RUNNING", default=None)


def running_forward() -> RepeatedForward | None:
    """Return the forward that is running; None where it will not be repeated."""
    return _RUNNING.get()


@contextmanager
def running(forward: RepeatedForward, *, again: bool) -> Iterator[None]:
    """Run a forward inside, or its repetition."""
    forward.taken = 0 if again else None
    forward.waiting.clear()
    before = _RUNNING.set(forward)
    try:
        yield
    finally:
        _RUNNING.reset(before)
