"""Time messages between two ranks, sent as the messages of a pipeline are.

A message goes to the peer and comes back; half of a round is one way. The lower rank decides by its warm-up how many
rounds follow::

    lower rank                     its peer
    warm-up rounds          <->    warm-up rounds
    number of rounds         ->    through the store
    timed rounds            <->    timed rounds

Not covered: statistics of the rounds (``link.py``, ``host_links.py``); directions that differ.
"""

import itertools
import math
import time
from collections.abc import Callable, Sequence

import torch

from heterps_compile.runtime.launch.store_values import read_number
from heterps_compile.runtime.pipeline.transport import Transport
from heterps_compile.runtime.pipeline.world import world

SIZES_BYTES = (1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22)
"""Sizes of the messages that a link is fitted to."""

_WARM_UP = 3
_LEAST_ROUNDS, _MOST_ROUNDS = 8, 200
_ROUNDS_S = 0.3  # of one way, unless these are fewer than the least rounds
_CPU, _NAMES = torch.device("cpu"), ("message",)


class Pair:
    """One of two ranks that send each other messages."""

    def __init__(self, transport: Transport, rank: int, peer: int) -> None:
        """Begin with tag 0; the peer does the same.

        Args:
            transport: Of this rank, with two tags for every size.
            rank: This one.
            peer: The other one.
        """
        self._transport, self._rank, self._peer, self._tags = transport, rank, peer, itertools.count(step=2)

    def to_and_fro(self, size_bytes: int, longest_s: float = math.inf) -> list[float]:
        """Time rounds of a message there and back; half is one way.

        Returns no times if messages take longer than ``longest_s``.
        """
        tag, header_tag = (first := next(self._tags)), first + 1
        sender = self._transport.sender(self._peer, header_tag, "float32", _CPU)
        receiver = self._transport.receiver(self._peer, header_tag, _CPU, "the other process")
        content = torch.zeros(size_bytes, dtype=torch.uint8)

        def one_way_s() -> float:
            receiver.post(tag)
            began = time.perf_counter()
            if self._rank < self._peer:
                sender.send(tag, _NAMES, [content])
                receiver.take(tag, 1)
            else:
                receiver.take(tag, 1)
                sender.send(tag, _NAMES, [content])
            took_s = (time.perf_counter() - began) / 2
            sender.flush()
            receiver.let_go()
            return took_s

        ranks = sorted((self._rank, self._peer))
        return timed_rounds(one_way_s, ranks, longest_s, leads=self._rank == ranks[0])


def timed_rounds(
    one_s: Callable[[], float], ranks: Sequence[int], longest_s: float = math.inf, *, leads: bool
) -> list[float]:
    """Time rounds after a warm-up; all their ranks call it.

    Args:
        one_s: Runs one round and returns its seconds.
        ranks: Those that take part.
        longest_s: If the warm-up of the leading rank takes longer, no rounds follow.
        leads: Whether this rank decides how many rounds follow.
    """
    store, key = world().next_store(ranks), "rounds"
    warm_s = max(1e-9, min(one_s() for _ in range(_WARM_UP)))
    if leads:
        rounds = 0 if warm_s > longest_s else min(_MOST_ROUNDS, max(_LEAST_ROUNDS, int(_ROUNDS_S / warm_s)))
        store.set(key, str(rounds))
    return [one_s() for _ in range(read_number(store, key, "a number of rounds"))]
