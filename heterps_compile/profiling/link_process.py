"""One process of a link that is measured: ``python -m heterps_compile.profiling.link_process FOLDER WORLD RANK``.

Ranks 0 and 1 are the first pair, 2 and 3 the second, and so on. Rank 0 prints what it measured as JSON.

Left out: what is made of it (``link.py``).
"""

import json
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

SIZES_BYTES = (1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22)
MOVED_BYTES = 1 << 23
_ROUNDS = 40
_WARM_UP = 3
_TIMEOUT = timedelta(seconds=200)


def to_and_fro(rank: int, peer: int, size_bytes: int) -> list[float]:
    """Send a message and get it back; give half of each round's time."""
    sent, received = torch.zeros(size_bytes, dtype=torch.uint8), torch.zeros(size_bytes, dtype=torch.uint8)
    times_s = []
    for _ in range(_WARM_UP + _ROUNDS):
        began = time.perf_counter()
        if rank < peer:
            dist.send(sent, peer)
            dist.recv(received, peer)
        else:
            dist.recv(received, peer)
            dist.send(sent, peer)
        times_s.append((time.perf_counter() - began) / 2)
    return times_s[_WARM_UP:]


def main() -> None:
    """Measure."""
    folder, world, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    store = FileStore(f"{folder}/store", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=_TIMEOUT)
    peer = rank ^ 1
    times_s = {}
    if rank < 2:
        times_s = {size: to_and_fro(rank, peer, size) for size in SIZES_BYTES}
    moves_s = {}
    for pairs in range(1, world // 2 + 1):
        dist.barrier()
        if rank < 2 * pairs:
            moves_s[pairs] = to_and_fro(rank, peer, MOVED_BYTES // pairs)
    dist.barrier()
    if rank == 0:
        print(json.dumps({"times_s": times_s, "moves_s": moves_s}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
