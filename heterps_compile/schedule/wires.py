"""Transfers between stages: one message at a time over a wire.

Every replica has a wire to the stages next to it, which works while the replica computes. It sends one message at a
time and receives one at a time, in the order of its actions. Between stages of one replica each, this is a link that
carries one message at a time; between wider stages, the side with fewer replicas limits the link::

    stage 0 | F0 F1 F2 .  .  .  .  .
    wire    |    0- -- 1- -- 2- -- .       a message takes two units of time
    stage 1 | .  .  .  F0 .  F1 .  F2

A message occupies wires for its whole way, its latency and its bytes. Where a part of that way overlaps with actions of
either stage, its values are there by so much earlier::

    arrives = max(end of the action, wire is free) + way - overlap

Forward and backward are two directions of the wire, which do not wait for each other. What a unit's network card
carries in both directions together is the data movement of the steady state (``cost/replicas.py``).

A value that skips stages crosses the link between every two of them.
"""

from collections.abc import Iterable


def sent_s(free_s: list[float], replica: int, ready_s: float, transfer_s: float) -> float:
    """Return when a replica has sent a message that is ready at some time; its wire is free then."""
    if transfer_s > 0:
        free_s[replica] = ready_s = max(ready_s, free_s[replica]) + transfer_s
    return ready_s


def received_s(free_s: list[float], replica: int, arrives_s: float, transfer_s: float) -> float:
    """Return when a replica has received a message that was sent at some time; its wire is free then."""
    if transfer_s > 0:
        free_s[replica] = arrives_s = max(arrives_s, free_s[replica] + transfer_s)
    return arrives_s


def link_bytes(values: Iterable[tuple[int, int, float]], stages: int) -> list[float]:
    """Return [S - 1], the bytes that cross the link behind every stage in one direction.

    Args:
        values: The stage that makes a value, the last stage that reads it, and its size.
        stages: S.
    """
    crossing = [0.0] * (stages - 1)
    for maker, last_reader, size_bytes in values:
        for link in range(maker, last_reader):
            crossing[link] += size_bytes
    return crossing
