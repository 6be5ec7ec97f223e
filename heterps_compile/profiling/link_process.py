"""One process of a link: ``python -m heterps_compile.profiling.link_process FOLDER WORLD RANK BYTES,BYTES,...``.

The bytes are what is moved by one pair, by two that share it, and so on. Ranks 0 and 1 are the first pair, 2 and 3 the
second; messages go the way that those of a pipeline go. Rank 0 prints what it measured as JSON.

Left out: what is made of it (``link.py``).
"""

import itertools
import json
import sys
import time

import torch

from heterps_compile.runtime.c10d import FileStore
from heterps_compile.runtime.pipeline.transport import Transport
from heterps_compile.runtime.pipeline.world import join_world, leave_world, make_group

SIZES_BYTES = (1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22)
_ROUNDS = 40
_WARM_UP = 3
_CPU, _NAMES = torch.device("cpu"), ("message",)


class Pair:
    """One of two ranks that send each other messages."""

    def __init__(self, world: int, rank: int, layouts: int) -> None:
        """Connect; every rank does the same.

        Args:
            world: Ranks.
            rank: This one.
            layouts: How many sizes of messages there will be.
        """
        self._transport = Transport(world, rank, 2 * layouts)
        self._rank, self._peer, self._tags = rank, rank ^ 1, itertools.count(step=2)

    def to_and_fro(self, size_bytes: int) -> list[float]:
        """Send a message and get it back; return half of each round's time."""
        tag, header_tag = (first := next(self._tags)), first + 1
        sender = self._transport.sender(self._peer, header_tag, "float32", _CPU)
        receiver = self._transport.receiver(self._peer, header_tag, _CPU, "the other process")
        content = torch.zeros(size_bytes, dtype=torch.uint8)
        times_s = []
        for _ in range(_WARM_UP + _ROUNDS):
            receiver.post(tag)
            began = time.perf_counter()
            if self._rank < self._peer:
                sender.send(tag, _NAMES, [content])
                receiver.take(tag, 1)
            else:
                receiver.take(tag, 1)
                sender.send(tag, _NAMES, [content])
            times_s.append((time.perf_counter() - began) / 2)
            sender.flush()
            receiver.let_go()
        return times_s[_WARM_UP:]


def main() -> None:
    """Measure."""
    folder, world, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    moved_bytes = [int(size) for size in sys.argv[4].split(",")]
    torch.set_num_threads(1)
    store = FileStore(f"{folder}/store", world)
    join_world(store, rank, world)
    everyone = make_group(range(world))
    pair = Pair(world, rank, len(SIZES_BYTES) + len(moved_bytes) * (world // 2))
    times_s = {}
    if rank < 2:
        times_s = {size: pair.to_and_fro(size) for size in SIZES_BYTES}
    moves_s: dict[int, dict[int, list[float]]] = {size: {} for size in moved_bytes}
    for size, pairs in itertools.product(moved_bytes, range(1, world // 2 + 1)):
        everyone.sum(torch.zeros(1)).wait()  # nobody begins before the others
        if rank < 2 * pairs:
            moves_s[size][pairs] = pair.to_and_fro(-(-size // pairs))
    everyone.sum(torch.zeros(1)).wait()
    leave_world()
    if rank == 0:
        print(json.dumps({"times_s": times_s, "moves_s": moves_s}))


if __name__ == "__main__":
    main()
