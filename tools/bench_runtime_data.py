"""Time the readers of training data, and how much of reading hides behind the compute.

python tools/bench_runtime_data.py [SAMPLES]

First samples per second of every kind of source, in micro-batches. Then a loop of reading and computing, one after the
other and with reading ahead: the second should take about as long as the longer of the two, not as their sum. A slow
disk is a reader that sleeps; a busy one parses text, on a core that the compute does not use.
"""

import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pyarrow import csv
from torch import Tensor

from heterps_compile.runtime.data.arrow import Conversion
from heterps_compile.runtime.data.criteo import CriteoSource
from heterps_compile.runtime.data.csv_file import CsvSource
from heterps_compile.runtime.data.epochs import Epochs
from heterps_compile.runtime.data.hashed_ids import TableRows
from heterps_compile.runtime.data.iterable import IterableSource
from heterps_compile.runtime.data.open_source import open_source
from heterps_compile.runtime.data.parquet import ParquetSource
from heterps_compile.runtime.data.prefetch import Prefetcher, Request
from heterps_compile.runtime.data.random_source import RandomColumn, RandomSource
from heterps_compile.runtime.data.sample_source import Source, TensorSource

BATCH = 512
STEPS = 20
ROUNDS = 7
COLUMNS = ("label", "dense", "sparse")
DISK_S = 0.010  # a read of the slow disk


class SlowDisk(TensorSource):
    """A source whose every read waits."""

    def read(self, first: int, count: int, columns: Sequence[str]) -> dict[str, Tensor]:
        time.sleep(DISK_S)
        return super().read(first, count, columns)


def main(samples: int = 50_000) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        text, table = Path(folder, "day.tsv"), Path(folder, "day.parquet")
        words, flat = Path(folder, "words.parquet"), Path(folder, "flat.csv")
        write(text, table, samples)
        write_words(words, samples)
        write_csv(flat, samples)
        os.environ["XDG_CACHE_HOME"] = folder
        print(f"{samples:,} samples of a label, 13 numbers and 26 categories, {BATCH} at a time, samples/s:")
        criteo = CriteoSource(text)
        batches = [criteo.read(first, BATCH, COLUMNS) for first in range(0, samples - BATCH, BATCH)]
        sources: dict[str, Callable[[], Source]] = {
            "tsv": lambda: CriteoSource(text),
            "parquet": lambda: ParquetSource(table),
            "parquet, shuffled": lambda: Epochs(ParquetSource(table), window_samples=4096),
            "parquet, 26 as text": lambda: ParquetSource(words, how=Conversion(rows=TableRows(100_000))),
            "csv, 26 as text": lambda: CsvSource(flat, how=Conversion(rows=TableRows(100_000))),
            "random": generated,
            "iterable of batches": lambda: IterableSource(batches, is_batched=True),
        }
        for name, first in {"csv, first epoch": flat, "tsv, first epoch": text}.items():
            os.environ["XDG_CACHE_HOME"] = f"{folder}/{name}"  # without a copy
            began = time.perf_counter()
            read_all(open_source(f"{first}?rows=100000"), samples)
            print(f"  {name:20} {samples / (time.perf_counter() - began):>12,.0f}")
        for name, make in sources.items():
            print(f"  {name:20} {max(read_all(make(), samples) for _ in range(ROUNDS)):>12,.0f}")
        print(f"{STEPS} steps of reading and computing, seconds (best of {ROUNDS}):")
        print(f"  {'reader':20} {'read':>7} {'compute':>8} {'one after other':>16} {'ahead':>7} {'ahead / longer':>15}")
        print(f"  (two threads that compute did {parallel_speed():.2f} times the work of one: 2 is two free cores)")
        overlap("slow disk", SlowDisk(generated().read(0, STEPS * BATCH, COLUMNS)), compute_for(DISK_S))
        each_s = timed(lambda: read_steps(criteo)) / STEPS
        overlap("tsv", criteo, compute_for(each_s))
        overlap("tsv, light compute", criteo, compute_for(each_s / 2))


def generated() -> RandomSource:
    return RandomSource(
        [
            RandomColumn("label", "float32", (), 2),
            RandomColumn("dense", "float32", (13,)),
            RandomColumn("sparse", "int64", (26,), 100_000, 1.05),
        ]
    )


def write_words(path: Path, samples: int) -> None:
    """Write the same columns with categories as text of 8 letters."""
    read = generated().read(0, samples, COLUMNS)
    letters = pa.array(f"{number:08x}" for number in read["sparse"].flatten().tolist())
    arrays = {
        "label": pa.array(read["label"].numpy()),
        "dense": pa.FixedSizeListArray.from_arrays(read["dense"].numpy().ravel(), 13),
        "sparse": pa.FixedSizeListArray.from_arrays(letters, 26),
    }
    pq.write_table(pa.table(arrays), path, row_group_size=10_000)


def write_csv(path: Path, samples: int) -> None:
    """Write the same as CSV, a column for each number and category."""
    read = generated().read(0, samples, COLUMNS)
    arrays = {"label": pa.array(read["label"].numpy())}
    arrays |= {f"n{i}": pa.array(column) for i, column in enumerate(read["dense"].numpy().T)}
    arrays |= {f"c{i}": pa.array([f"{n:08x}" for n in column]) for i, column in enumerate(read["sparse"].T.tolist())}
    csv.write_csv(pa.table(arrays), path)


def write(text: Path, table: Path, samples: int) -> None:
    """Write the same kind of data as text and as Parquet."""
    rng = random.Random(0)  # noqa: S311 - test data
    with text.open("w") as file:
        for _ in range(samples):
            numbers = (str(rng.randrange(1000)) if rng.random() < 0.8 else "" for _ in range(13))
            categories = (f"{rng.getrandbits(32):08x}" if rng.random() < 0.9 else "" for _ in range(26))
            file.write("\t".join([str(rng.randrange(2)), *numbers, *categories]) + "\n")
    read = generated().read(0, samples, COLUMNS)
    arrays = {"label": pa.array(read["label"].numpy())}
    for name in ("dense", "sparse"):
        arrays[name] = pa.FixedSizeListArray.from_arrays(pa.array(read[name].flatten().numpy()), read[name].shape[1])
    pq.write_table(pa.table(arrays), table, row_group_size=8192)


def read_all(source: Source, samples: int) -> float:
    """Return samples per second."""
    began = time.perf_counter()
    for first in range(0, samples - BATCH, BATCH):
        source.read(first, BATCH, source.columns)
    return (samples - BATCH) // BATCH * BATCH / (time.perf_counter() - began)


def read_steps(source: Source) -> None:
    for step in range(STEPS):
        source.read(step * BATCH, BATCH, COLUMNS)


def timed(work: Callable[[], None]) -> float:
    """Return the seconds of the fastest of some rounds."""

    def once() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return min(once() for _ in range(ROUNDS))


def compute_for(time_s: float) -> Callable[[], None]:
    """Return a matrix product, repeated as often as takes so long."""
    left, right = torch.rand(256, 256), torch.rand(256, 256)
    each_s = timed(lambda: [left @ right for _ in range(20)] and None) / 20
    repeats = max(1, round(time_s / each_s))

    def compute() -> None:
        for _ in range(repeats):
            torch.mm(left, right)

    return compute


def parallel_speed() -> float:
    """Return the work that two threads do in the time that one takes for its own, twice at best."""
    compute = compute_for(0.05)

    def both() -> None:
        threads = [threading.Thread(target=compute) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return 2 * timed(compute) / timed(both)


def overlap(name: str, source: Source, compute: Callable[[], None]) -> None:
    def in_turn() -> None:
        for step in range(STEPS):
            source.read(step * BATCH, BATCH, COLUMNS)
            compute()

    def ahead() -> None:
        requests = [Request(step * BATCH, BATCH, COLUMNS) for step in range(STEPS)]
        with closing(Prefetcher(source, requests)) as reader:
            for step in range(STEPS):
                reader.read(step * BATCH, BATCH, COLUMNS)
                compute()

    read_s = timed(lambda: read_steps(source))
    compute_s = timed(lambda: [compute() for _ in range(STEPS)] and None)
    turn_s, ahead_s = timed(in_turn), timed(ahead)
    ratio = ahead_s / max(read_s, compute_s)
    print(f"  {name:20} {read_s:7.3f} {compute_s:8.3f} {turn_s:16.3f} {ahead_s:7.3f} {ratio:15.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
