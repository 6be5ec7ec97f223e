"""What gradients of tables take a processor: `python tools/bench_gradients.py [--rows 200000] [--width 16]`.

First what summing sparse gradients takes. Each of k replicas has a k-th of the rows of a batch. It puts its own in
order, each once (`coalesce`), and adds up all that it gathered, as PyTorch's all-reduce of sparse tensors over gloo
does. Both are told as the bytes that a copy would move in that time, over the bytes of the rows of the batch: a copy is
2. The cost model counts what is in the last column (`heterps_compile/sync_rules/sparse_rows.py`).

Then what a dense gradient takes, which is as large as its table: a backward makes it whole, and every micro-batch but a
replica's first adds it to the one before. Both are told in arrays as large as the table that are read or written, by
the time of a copy into memory at hand, which reads one and writes one; what the looked-up rows take is in them. The
cost model counts one array, and four (`heterps_compile/cost/roofline.py`); the process takes blocks above 32 MiB from
the system anew, page by page, as ranks do. One thread, by its own clock; the shortest of some rounds.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from heterps_compile.runtime.allocator import keep_freed_memory
from heterps_compile.sync_rules.all_reduce_rule import AllReduce
from heterps_compile.sync_rules.rule import SparseRows, SyncGroup
from heterps_compile.sync_rules.sparse_rows import handling

_TABLE_ROWS, _ROUNDS = 5_000_000, 7
_DENSE_ROWS, _LOOKED_UP = (400_000, 4_000_000), 256


def shortest_s(work: Callable[[], object]) -> float:
    """Return what some work takes."""
    found = []
    for _ in range(_ROUNDS):
        begun = time.thread_time()
        work()
        found.append(time.thread_time() - begun)
    return min(found)


def arrays(rows: int, width: int, *, adds: bool) -> float:
    """Return what a backward of some look-ups takes, over half the time of a copy of their table."""
    table, source = torch.zeros(rows, width, requires_grad=True), torch.randn(rows, width)
    kept = torch.empty_like(source)
    looked_up = torch.nn.functional.embedding(torch.randint(rows, (_LOOKED_UP,)), table).sum()

    def backward() -> None:
        if not adds:
            table.grad = None
        looked_up.backward(retain_graph=True)

    backward()
    return 2 * shortest_s(backward) / shortest_s(lambda: kept.copy_(source))


def gradient(rows: int, width: int) -> Tensor:
    """Return a gradient of random rows of a table."""
    ids = torch.randint(0, _TABLE_ROWS, (1, rows))
    return torch.sparse_coo_tensor(ids, torch.randn(rows, width), (_TABLE_ROWS, width), check_invariants=False)


def summed(parts: list[Tensor]) -> Tensor:
    """Return the sum of gradients, made as an all-reduce makes it."""
    pieces = [torch.sparse_coo_tensor(p.indices(), p.values(), p.shape, check_invariants=False) for p in parts]
    total = pieces[0]
    for piece in pieces[1:]:
        total = total + piece
    return total.coalesce()


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--width", type=int, default=16)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    values = torch.randn(asked.rows, asked.width)
    copy_s = shortest_s(values.clone)
    print(f"rows of a batch: {asked.rows:,} of {asked.width} numbers; copied in {1e3 * copy_s:.3g} ms\n")
    print("| replicas | own rows in order | all rows added up | both | counted |\n|---:|---:|---:|---:|---:|")
    for count in (2, 3, 4, 8):
        own = gradient(asked.rows // count, asked.width)
        parts = [gradient(asked.rows // count, asked.width).coalesce() for _ in range(count)]
        order, add = (2 * shortest_s(work) / copy_s for work in (own.coalesce, lambda parts=parts: summed(parts)))
        found = handling(AllReduce(), SyncGroup(count, (), (), sparse=(SparseRows(1, 1, _TABLE_ROWS),)))
        counted = found.once.moved + (count - 1) * found.each.moved
        print(f"| {count} | {order:.1f} | {add:.1f} | {order + add:.1f} | {counted:.1f} |")
    print("\n| table | made whole | and added | counted |\n|---:|---:|---:|---:|")
    keep_freed_memory()
    for rows in _DENSE_ROWS:
        made, added = (arrays(rows, asked.width, adds=adds) for adds in (False, True))
        print(f"| {rows * asked.width * 4 / 2**20:.3g} MiB | {made:.1f} | {added:.1f} | 1, 4 |")


if __name__ == "__main__":
    main()
