"""Ask for the rows of the next micro-batch while this one is computed.

The data of a micro-batch is read one ahead of the engine, and its rows are asked for at once. Those of a step's first
micro-batch are asked for as soon as the step before is pushed: servers hold the answer back until the pushes that it
waits for are in, so that in the synchronous mode rows are those that the engine would have pulled when it got there.
With a staleness they may be older by a micro-batch, never by more than the staleness allows.

What goes wrong with data that is read ahead is told when the engine gets to it.

Left out: how rows are asked for (``client.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from heterps_compile.schedule.order import Action, Phase

from .client import Client

Read = Callable[[int, Sequence[str]], Mapping[str, Any]]
"""What an engine calls for a micro-batch of a step, with the names that it wants of it."""


class Reader(Protocol):
    """Reads the micro-batches of a rank."""

    def of_step(self, step: int) -> Read:
        """Return what the engine calls for the micro-batches of a step."""
        ...


class PullsAhead:
    """Stands between an engine and its reader; a step hook, to be called after the client."""

    def __init__(self, client: Client, actions: Sequence[Action], steps: range) -> None:
        """Ask for nothing yet.

        Args:
            client: Of the rank.
            actions: Of a step, in order, by the layout.
            steps: That will be run.
        """
        self._client, self._steps = client, steps
        self._order = tuple(dict.fromkeys(a.micro_batch for a in actions if a.phase is Phase.FORWARD))
        self._reader: Reader | None = None
        self._names: Sequence[str] = ()
        self._held: dict[tuple[int, int], Mapping[str, Any] | Exception] = {}

    def around(self, reader: Reader) -> "PullsAhead":
        """Read from this reader; give what the engine is to read from."""
        self._reader = reader
        return self

    def of_step(self, step: int) -> Read:
        """Return what the engine calls for the micro-batches of a step."""

        def read(micro_batch: int, names: Sequence[str]) -> Mapping[str, Any]:
            self._names = names
            self._look_at(step, micro_batch)
            place = self._order.index(micro_batch) + 1
            if place < len(self._order):
                self._look_at(step, self._order[place])
            found = self._held.pop((step, micro_batch))
            if isinstance(found, Exception):
                raise found
            return found

        return read

    def before_step(self, step: int) -> None:
        """Do nothing: the step's first rows are under way."""

    def after_backward(self, step: int) -> None:
        """Ask for the rows of the next step's first micro-batch."""
        if step + 1 in self._steps and self._names:
            self._look_at(step + 1, self._order[0])

    def _look_at(self, step: int, micro_batch: int) -> None:
        """Read a micro-batch and ask for its rows, once."""
        assert self._reader is not None, "around() was not called"  # noqa: S101 - a bug of the caller
        if (step, micro_batch) in self._held:
            return
        try:
            data = self._reader.of_step(step)(micro_batch, self._names)
            self._client.ask_ahead(data)
        except Exception as error:  # noqa: BLE001 - raised again when the engine asks for this micro-batch
            self._held[step, micro_batch] = error
        else:
            self._held[step, micro_batch] = data
