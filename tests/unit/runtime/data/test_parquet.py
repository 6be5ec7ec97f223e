"""Parquet files and folders: only what is asked for is read, and what is wrong is named with column and row."""

import sys

import pytest

from heterps_compile.errors import InputError, MissingPackageError
from heterps_compile.runtime.data.arrow import Conversion
from heterps_compile.runtime.data.parquet import ParquetSource

pa = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
pq = pytest.importorskip("pyarrow.parquet")


def table(first: int, rows: int):
    numbers = range(first, first + rows)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "ids": pa.array([[n, n + 1, n + 2] for n in numbers], pa.list_(pa.int32())),
            "grid": pa.array([[[n, 1], [2, 3], [4, 5]] for n in numbers], pa.list_(pa.list_(pa.float32(), 2))),
            "x": pa.array([n / 2 for n in numbers], pa.float64()),
            "is_even": pa.array([n % 2 == 0 for n in numbers]),
            "kind": pa.array([n % 3 for n in numbers], pa.int8()).dictionary_encode(),
            "word": pa.array(["w"] * rows),
        }
    )


@pytest.fixture
def folder(tmp_path):
    """Two files: groups of 4, 4, 2 rows and of 3 rows."""
    pq.write_table(table(0, 10), tmp_path / "a.parquet", row_group_size=4)
    pq.write_table(table(10, 3), tmp_path / "b.parquet")
    (tmp_path / "_SUCCESS").write_text("")
    return tmp_path


def test_columns_become_tensors_of_their_kind(folder):
    read = ParquetSource(folder).read(7, 2, ["ids", "grid", "x", "is_even", "kind"])
    assert {name: (str(t.dtype), t.tolist()) for name, t in read.items()} == {
        "ids": ("torch.int32", [[7, 8, 9], [8, 9, 10]]),
        "grid": ("torch.float32", [[[7, 1], [2, 3], [4, 5]], [[8, 1], [2, 3], [4, 5]]]),
        "x": ("torch.float64", [3.5, 4.0]),
        "is_even": ("torch.bool", [False, True]),
        "kind": ("torch.int8", [1, 2]),
    }


def test_only_the_row_groups_and_columns_of_a_range_are_decoded(folder, monkeypatch):
    read = []
    real = pq.ParquetFile.read_row_group

    def spy(self, index, columns, **options):
        read.append((index, tuple(columns)))
        return real(self, index, columns=columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", spy)
    source = ParquetSource(folder)
    source.read(5, 2, ["id", "x"])
    source.read(6, 2, ["x", "id"])  # the same group again
    source.read(7, 2, ["id"])  # its last row, and the first of the next
    assert read == [(1, ("id", "x")), (2, ("id",))]


def test_decoded_groups_are_dropped_beyond_the_cache(folder, monkeypatch):
    read = []
    real = pq.ParquetFile.read_row_group
    monkeypatch.setattr(
        pq.ParquetFile, "read_row_group", lambda self, i, **options: read.append(i) or real(self, i, **options)
    )
    source = ParquetSource(folder, cache_bytes=32)  # four numbers of eight bytes: one group
    for first in (0, 1, 4, 5, 0):
        source.read(first, 1, ["id"])
    assert read == [0, 1, 0]


def missing_values(path):
    content = {
        "x": pa.array([1.0, 2.0, None, 4.0, 5.0, None], pa.float32()),
        "ids": pa.array([[1, 2], [3, 4], [5, 6], [7, None], [9, 9], [0, 0]], pa.list_(pa.int64())),
        "lists": pa.array([[1], None, [2], [3], [4], [5]], pa.list_(pa.int64())),
    }
    pq.write_table(pa.table(content), path, row_group_size=2)
    return path


def test_missing_values_are_named_by_column_and_row(tmp_path):
    source = ParquetSource(missing_values(tmp_path / "m.parquet"))
    assert source.read(0, 2, ["x"])["x"].tolist() == [1, 2]
    with pytest.raises(InputError, match=r"'x'.*'.*m.parquet'.*row 2\b.*\b1\b"):
        source.read(2, 1, ["x"])
    with pytest.raises(InputError, match=r"'ids'.*row 3\b"):
        source.read(2, 1, ["ids"])
    with pytest.raises(InputError, match=r"'lists'.*row 1\b"):
        source.read(0, 1, ["lists"])


def test_missing_values_are_filled_on_request(tmp_path):
    source = ParquetSource(missing_values(tmp_path / "m.parquet"), how=Conversion(-1))
    assert source.read(0, 6, ["x"])["x"].tolist() == [1, 2, -1, 4, 5, -1]
    assert source.read(3, 1, ["ids"])["ids"].tolist() == [[7, -1]]


def test_a_fill_that_the_column_cannot_hold_is_refused(tmp_path):
    source = ParquetSource(missing_values(tmp_path / "m.parquet"), how=Conversion(0.5))
    with pytest.raises(InputError, match=r"'ids'.*int64.*0.5"):
        source.read(3, 1, ["ids"])


def test_lists_of_different_length_are_named_by_row(tmp_path):
    ragged = pa.table({"ids": pa.array([[1, 2], [3, 4], [5]], pa.list_(pa.int64()))})
    pq.write_table(ragged, tmp_path / "r.parquet")
    with pytest.raises(InputError, match=r"'ids'.*\b1\b.*row 2\b.*\b2\b"):
        ParquetSource(tmp_path / "r.parquet").read(0, 1, ["ids"])


@pytest.mark.parametrize("kept", [0.5, 0.99])
def test_a_truncated_file_is_named(folder, kept):
    content = (folder / "b.parquet").read_bytes()
    (folder / "b.parquet").write_bytes(content[: int(kept * len(content))])
    with pytest.raises(InputError, match=r"b.parquet'.*Parquet"):
        ParquetSource(folder)


def test_a_damaged_page_is_named(folder):
    path = folder / "a.parquet"
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"a.parquet'.*Parquet"):
        ParquetSource(path).read(0, 4, ["id"])


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("e.parquet", b"", "empty"),
        ("t.parquet", b"label,id\n1,2\n", "Parquet"),
        (None, b"", "'.*gone.parquet'.*No such file"),
    ],
)
def test_what_is_no_parquet_file_is_refused(tmp_path, name, content, fault):
    path = tmp_path / (name or "gone.parquet")
    if name:
        path.write_bytes(content)
    with pytest.raises(InputError, match=fault):
        ParquetSource(path)


def test_a_file_without_rows_is_refused(tmp_path):
    pq.write_table(table(0, 0), tmp_path / "n.parquet")
    with pytest.raises(InputError):
        ParquetSource(tmp_path / "n.parquet")


def test_files_of_one_folder_must_have_the_same_columns(folder):
    pq.write_table(pa.table({"id": [1.5]}), folder / "c.parquet")
    with pytest.raises(InputError, match=r"c.parquet'.*double.*a.parquet'.*int64"):
        ParquetSource(folder)


def test_columns_of_one_name_are_refused(tmp_path):
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    pq.write_table(twice, tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"t.parquet'.*int64.*int64"):
        ParquetSource(tmp_path / "t.parquet")


def test_a_column_name_may_have_dots_and_is_printed_harmlessly(tmp_path):
    pq.write_table(pa.table({"a.b": [1, None], "\x1b[2J": ["w", "w"]}), tmp_path / "t.parquet")
    source = ParquetSource(tmp_path / "t.parquet", how=Conversion(5))
    assert source.read(0, 2, ["a.b"])["a.b"].tolist() == [1, 5]
    with pytest.raises(InputError, match=r"'\\\\x1b\[2J'"):
        source.read(0, 1, ["\x1b[2J"])


def test_without_pyarrow_the_extra_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackageError, match=r"'heterps-compile\[data\]'"):
        ParquetSource(folder)


def test_pages_are_checked_by_their_own_checksums(tmp_path):
    numbers = {"x": pa.array(range(10_000), pa.int64())}
    how = {"compression": "none", "use_dictionary": False, "row_group_size": 5_000}
    for name, has_checksums in (("with", True), ("without", False)):
        pq.write_table(pa.table(numbers), tmp_path / f"{name}.parquet", write_page_checksum=has_checksums, **how)
        content = bytearray((tmp_path / f"{name}.parquet").read_bytes())
        content[60_000:60_064] = bytes(range(64))
        (tmp_path / f"{name}.parquet").write_bytes(content)
    assert ParquetSource(tmp_path / "without.parquet").read(5_000, 5_000, ["x"])["x"].tolist() != list(
        range(5_000, 10_000)
    )
    source = ParquetSource(tmp_path / "with.parquet")
    assert source.read(0, 5_000, ["x"])["x"].tolist() == list(range(5_000))
    with pytest.raises(InputError, match=r"with.parquet'.*Parquet.*\b1\b.*CRC"):
        source.read(5_000, 1, ["x"])
