"""However the ranges are cut, and in whatever order they are asked for, every source gives the same samples."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_compile.runtime.data.criteo import CriteoSource
from heterps_compile.runtime.data.csv_file import CsvSource
from heterps_compile.runtime.data.epochs import Epochs
from heterps_compile.runtime.data.iterable import IterableSource
from heterps_compile.runtime.data.parquet import ParquetSource
from heterps_compile.runtime.data.random_source import RandomColumn, RandomSource
from heterps_compile.runtime.data.sample_source import Source, TensorSource

SAMPLES = 40
RANGES = st.lists(st.tuples(st.integers(0, SAMPLES - 1), st.integers(1, 12)), min_size=1, max_size=8)


def of_kind(kind: str, folder) -> tuple[Source, str]:
    """Return a source of forty samples at least, and one of its columns."""
    if kind == "parquet":
        pa = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
        pq = pytest.importorskip("pyarrow.parquet")
        path = folder / "x.parquet"
        if not path.exists():
            pq.write_table(pa.table({"x": list(range(SAMPLES))}), path, row_group_size=7)
        return ParquetSource(path), "x"
    if kind == "criteo":
        pytest.importorskip("pyarrow", reason="pyarrow is an extra")
        path = folder / "x.tsv"
        if not path.exists():
            lines = ["\t".join([str(n), *["1"] * 13, *["a"] * 26]) for n in range(SAMPLES)]
            path.write_text("\n".join(lines))
        return CriteoSource(path), "label"
    if kind == "csv":
        pytest.importorskip("pyarrow", reason="pyarrow is an extra")
        path = folder / "x.csv"
        if not path.exists():
            path.write_text("".join(f"{text}\n" for text in ("x", *range(SAMPLES))))
        return CsvSource(path), "x"
    numbers = TensorSource({"x": torch.arange(SAMPLES)})
    if kind == "shuffled":
        return Epochs(numbers, seed=3, window_samples=7), "x"
    if kind == "iterable":
        return IterableSource([{"x": n} for n in range(SAMPLES)], is_batched=False), "x"
    return (RandomSource([RandomColumn("x", "float32", (3,))]), "x") if kind == "random" else (numbers, "x")


KINDS = ["parquet", "csv", "criteo", "shuffled", "iterable", "random", "tensors"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_may_be_changed_in_place(kind, tmp_path):
    """prepare() or a model may do so; who reads the range again finds it as it was."""
    source, column = of_kind(kind, tmp_path)
    read = source.read(3, 5, [column])[column]
    before = read.clone()
    read += 1
    assert torch.equal(source.read(3, 5, [column])[column], before)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(ranges=RANGES)
def test_ranges_are_parts_of_the_whole(kind, ranges, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    whole, column = of_kind(kind, folder)
    expected = whole.read(0, SAMPLES, [column])[column]
    source, _ = of_kind(kind, folder)
    for first, count in ranges:
        inside = min(count, SAMPLES - first)
        assert torch.equal(source.read(first, inside, [column])[column], expected[first : first + inside])
