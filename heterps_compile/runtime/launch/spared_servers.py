"""Parameter servers whose end a run survives: those of whose shards another holder lives.

::

    worker      its connection to a server breaks    ->  store: given-up/RANK
    decider     the server's process has ended, or
                a worker has given it up             ->  store: lost/RANK, and what the server would say at its end
    the server  lives, and was only cut off          ->  reads lost/RANK, and ends

The launcher decides, or rank 0 where there is none: one process alone, so two holders of a shard that end at the same
moment are never both spared. Workers do not wait for it: what a server has not answered they ask of the next holder.

Left out: rows and who holds them (``servers/copies.py``); a server that takes the place of one that is gone.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from heterps_compile.runtime.servers.copies import Copies

from .faults import Fault, Place
from .heartbeats import done_key, heard_key, left_key
from .progress import SERVING

if TYPE_CHECKING:
    from heterps_compile.runtime.c10d import Store


EXIT_SPARED = 3
"""Exit code of a server that ends where the run goes on without it."""


def give_up(store: "Store", rank: int, by: int) -> None:
    """Say that a worker speaks no more to a server."""
    store.compare_set(_given_up_key(rank), "", str(by))


class SparedServers:
    """Which servers of a run are gone, and who may still go."""

    def __init__(self, store: "Store", copies: Copies | None, places: Sequence[Place]) -> None:
        """Begin with all of them.

        Args:
            store: A connection that the calling thread may use.
            copies: Who holds what; None where there are no servers, or no copies.
            places: Of all ranks.
        """
        self._store, self._copies = store, copies
        self._servers = [] if copies is None else [place for place in places if not place.stages]
        self.decided: set[int] = set()

    @property
    def lost(self) -> set[int]:
        """Return the ranks that are gone, as somebody decided."""
        return {place.rank for place in self._servers if self.is_lost(place.rank)}

    def is_lost(self, rank: int) -> bool:
        """Tell whether a rank is a server that is gone, as somebody decided."""
        if rank in self.decided:
            return True
        return any(place.rank == rank for place in self._servers) and self._store.check([_lost_key(rank)])

    def given_up(self) -> list[Place]:
        """Return the servers that a worker has given up, and nobody has decided on."""
        waiting = [place for place in self._servers if place.rank not in self.decided]
        return [place for place in waiting if self._store.check([_given_up_key(place.rank)])]

    def may_go(self, fault: Fault) -> bool:
        """Tell whether a run survives a fault: that of a server, of which others have all rows."""
        return self._copies is not None and fault.progress.doing == SERVING and bool(self._heirs(fault.place.rank))

    def spare(self, fault: Fault) -> str | None:
        """Decide that a run goes on without the server at fault; one process alone may.

        Returns:
            The sentence that tells it; None where the run cannot go on.
        """
        if self._copies is None or not self.may_go(fault):
            return None
        rank = fault.place.rank
        numbers = {place.rank: place.replica for place in self._servers}
        heirs = [f"{numbers[heir]}" for heir in self._heirs(rank)]
        shown = f"parameter server{'s' if len(heirs) > 1 else ''} {' and '.join(heirs)}"
        self.decided.add(rank)
        for key in (_lost_key(rank), done_key(rank), left_key(rank), heard_key(rank)):
            self._store.set(key, "1")
        return (
            f"{fault}; {shown} {'have' if len(heirs) > 1 else 'has'} its rows too: no step is lost, and the run goes "
            f"on with one copy of them fewer until it is started again"
        )

    def blamed(self, fault: Fault) -> Fault:
        """Return a fault of a server with those named whose end the run had survived before it."""
        lost = sorted(self.decided)
        if fault.place.stages or not lost:
            return fault
        before = " and ".join(str(place.replica) for place in self._servers if place.rank in lost)
        return replace(fault, cause=f"{fault.cause}, after parameter server {before}, which had a copy of its rows")

    def _heirs(self, rank: int) -> tuple[int, ...]:
        assert self._copies is not None  # noqa: S101 - both callers have looked
        lost = self.lost
        return () if rank in lost else self._copies.heirs(rank, lost)


def _lost_key(rank: int) -> str:
    return f"lost/{rank}"


def _given_up_key(rank: int) -> str:
    return f"given-up/{rank}"
