"""One process of a link: ``python -m heterps_compile.profiling.link_process FOLDER WORLD BYTES,BYTES,...``.

It reads its rank as a line. The bytes are moved by one pair of ranks, then by two that share them, and so on. Ranks 0
and 1 are the first pair, 2 and 3 the second. Rank 0 prints the times as JSON.

Not covered: what is fitted to the times (``link.py``).
"""

import itertools
import json
import sys
from pathlib import Path

import torch

from heterps_compile.runtime.launch.addresses import choose_address
from heterps_compile.runtime.launch.run_store import folder_store
from heterps_compile.runtime.pipeline.transport import Transport
from heterps_compile.runtime.pipeline.world import join_world, leave_world, make_group

from .pair import SIZES_BYTES, Pair


def main() -> None:
    """Measure."""
    folder, world = sys.argv[1], int(sys.argv[2])
    moved_bytes = [int(size) for size in sys.argv[3].split(",")]
    torch.set_num_threads(1)
    print("ready", flush=True)
    rank = int(sys.stdin.readline())
    choose_address(())
    join_world(folder_store(Path(folder)), rank, world)
    everyone = make_group(range(world))
    transport = Transport(world, rank, 2 * (len(SIZES_BYTES) + len(moved_bytes) * (world // 2)))
    pair = Pair(transport, rank, rank ^ 1)
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
        print(json.dumps({"times_s": times_s, "moves_s": moves_s}), flush=True)


if __name__ == "__main__":
    main()
