"""A local file that changes while a run reads it is refused by name, whether or not its rows were decoded before."""

import os
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heterps_compile.errors import RunError
from heterps_compile.runtime.data.data_file import local_file
from heterps_compile.runtime.data.open_source import open_source

ROWS = 20


def write(path, first):
    """Write ``ROWS`` rows whose column ``label`` counts from ``first``; files of one kind have one size."""
    if path.suffix == ".parquet":
        table = pa.table({"label": pa.array(range(first, first + ROWS), pa.int64())})
        pq.write_table(table, path, row_group_size=ROWS // 2, compression="none", use_dictionary=False)
    elif path.suffix == ".csv":
        path.write_text("".join(f"{text}\n" for text in ("label", *range(first, first + ROWS))))
    else:
        path.write_text(
            "".join("\t".join([str(n), *["1"] * 13, *["a"] * 26]) + "\n" for n in range(first, first + ROWS))
        )


def overwrite(path):
    """Write other rows in place, as a program that exports anew does."""
    write(path, 100)


def rename_over(path):
    """Rename another file of the same size and time of change to the path."""
    other = path.with_name(f"other{path.suffix}")
    write(other, 30)
    os.utime(other, ns=(0, path.stat().st_mtime_ns))
    assert other.stat().st_size == path.stat().st_size
    other.replace(path)


def append(path):
    """Append a byte."""
    with path.open("ab") as file:
        file.write(b"\n")


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".tsv"])
@pytest.mark.parametrize("change", [overwrite, rename_over, append, os.unlink])
def test_a_change_between_two_batches_is_refused_by_name(tmp_path, suffix, change):
    path = tmp_path / f"clicks{suffix}"
    write(path, 10)
    source = open_source(str(path))
    assert source.read(0, 4, ["label"])["label"].tolist() == [10, 11, 12, 13]
    change(path)
    for first in (4, 0, ROWS - 4):  # the group in the cache, rows read before, another group
        with pytest.raises(RunError, match=rf"clicks\{suffix}'"):
            source.read(first, 4, ["label"])


def test_other_files_of_a_folder_are_read_until_the_changed_one(tmp_path):
    for day in range(2):
        write(tmp_path / f"{day}.parquet", 10 + day * ROWS)
    source = open_source(str(tmp_path))
    overwrite(tmp_path / "1.parquet")
    assert source.read(0, ROWS, ["label"])["label"].tolist() == list(range(10, 10 + ROWS))
    with pytest.raises(RunError, match=r"1\.parquet'"):
        source.read(ROWS - 1, 2, ["label"])


def test_a_file_replaced_while_it_is_opened_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "x.parquet"
    write(path, 10)
    real = pq.read_metadata
    monkeypatch.setattr(pq, "read_metadata", lambda file: (rename_over(path), real(file))[1])
    with pytest.raises(RunError, match=r"x\.parquet'"):
        open_source(str(path))


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_what_is_kept_is_of_one_file(tmp_path, suffix):
    path, other = tmp_path / f"x{suffix}", tmp_path / f"other{suffix}"
    write(path, 10)
    assert open_source(str(path)).samples == ROWS
    lines = path.read_text().splitlines(keepends=True)
    other.write_text("".join([*lines[:1], *lines[:0:-1]]))
    os.utime(other, ns=(0, path.stat().st_mtime_ns))
    other.replace(path)
    found = open_source(str(path)).read(0, ROWS, ["label"])["label"]
    first = [] if suffix == ".csv" else [10]
    assert found.tolist() == [*first, *range(9 + ROWS, 9 + len(first), -1)]


def test_a_file_that_changed_since_it_was_opened_has_no_fingerprint(tmp_path):
    path = tmp_path / "x.csv"
    write(path, 10)
    file = local_file(path)
    shutil.copy(path, tmp_path / "same.csv")
    (tmp_path / "same.csv").replace(path)
    with pytest.raises(RunError, match=r"x\.csv'"):
        file.fingerprint()
