"""Prefetch the rows of the next micro-batch while this one is computed.

The data of a micro-batch is read one ahead of the engine, and its rows are requested at once. Those of a step's first
micro-batch are requested as soon as the step before is pushed: servers hold the answer back until the pushes that it
waits for are in, so that in the synchronous mode rows are those that the engine would have pulled when it got there.
With a staleness they may be older by a micro-batch, never by more than the staleness allows.

An error of data that is read ahead is raised when the engine gets to it.

Left out: how rows are requested (``client.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from heterps_compile.errors import RunError
from heterps_compile.schedule.order import Action, Phase

from .client import Client

Read = Callable[[int, Sequence[str]], Mapping[str, Any]]
"""What an engine calls for a micro-batch of a step, with the names that it wants of it."""


class Reader(Protocol):
    """Reads the micro-batches of a rank."""

    def of_step(self, step: int) -> Read:
        """Return what the engine calls for the micro-batches of a step."""
        ...


class _NoReader:
    """Stands where no reader was given."""

    def of_step(self, step: int) -> Read:
        """Refuse.

        Raises:
            RunError: always.
        """
        raise RunError("rows are to be prefetched of no reader; give one with around(reader)")


class RowPrefetch:
    """Stands between an engine and its reader; a step hook, to be called after the client."""

    def __init__(self, client: Client, actions: Sequence[Action], steps: range) -> None:
        """Request nothing yet.

        Args:
            client: Of the rank.
            actions: Of a step, in order, by the layout.
            steps: That will be run.
        """
        self._client, self._steps = client, steps
        self._order = tuple(dict.fromkeys(a.micro_batch for a in actions if a.phase is Phase.FORWARD))
        self._reader: Reader = _NoReader()
        self._names: Sequence[str] = ()
        self._held: dict[tuple[int, int], Mapping[str, Any] | Exception] = {}

    def around(self, reader: Reader) -> "RowPrefetch":
        """Read from this reader; return what the engine is to read from."""
        self._reader = reader
        return self

    def of_step(self, step: int) -> Read:
        """Return what the engine calls for the micro-batches of a step."""

        def read(micro_batch: int, names: Sequence[str]) -> Mapping[str, Any]:
            self._names = names
            self._prefetch(step, micro_batch)
            place = self._order.index(micro_batch) + 1
            if place < len(self._order):
                self._prefetch(step, self._order[place])
            found = self._held.pop((step, micro_batch))
            if isinstance(found, Exception):
                raise found
            return found

        return read

    def before_step(self, step: int) -> None:
        """Do nothing: the step's first rows are under way."""

    def after_backward(self, step: int) -> None:
        """Request the rows of the next step's first micro-batch."""
        if step + 1 in self._steps and self._names:
            self._prefetch(step + 1, self._order[0])

    def _prefetch(self, step: int, micro_batch: int) -> None:
        """Read a micro-batch and request its rows, once."""
        if (step, micro_batch) in self._held:
            return
        try:
            data = self._reader.of_step(step)(micro_batch, self._names)
            self._client.prefetch(data)
        except Exception as error:  # noqa: BLE001 - raised again when the engine asks for this micro-batch
            self._held[step, micro_batch] = error
        else:
            self._held[step, micro_batch] = data
