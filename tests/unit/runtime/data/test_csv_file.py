"""CSV files: converted once, read by the range, and a fault is named with line and column."""

import csv
import os
import re
import subprocess
import sys
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_compile import hash_ids
from heterps_compile.errors import InputError, RunError, UnknownNameError
from heterps_compile.runtime.data import checked_text, to_parquet
from heterps_compile.runtime.data.arrow import Conversion
from heterps_compile.runtime.data.csv_file import CsvSource
from heterps_compile.runtime.data.data_file import local_file
from heterps_compile.runtime.data.hashed_ids import TableRows
from heterps_compile.runtime.data.model_inputs import InputSpec
from heterps_compile.runtime.data.open_source import open_source

pytest.importorskip("pyarrow", reason="pyarrow is an extra")

HASHED = Conversion(rows=TableRows(1000))
CITY = 'id,x,city,ok\n1,0.5,Berlin,true\n2,1e3,"a ""b"",\nc",false\n3,-2,,true\n4,.25,"",false\n'


def written(folder, text, name="x.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_columns_become_tensors_of_what_the_first_records_look_like(tmp_path):
    source = CsvSource(written(tmp_path, CITY), how=HASHED)
    assert (source.samples, source.columns) == (4, ("id", "x", "city", "ok"))
    read = source.read(0, 4, source.columns)
    assert {name: (str(t.dtype), t.tolist()) for name, t in read.items()} == {
        "id": ("torch.int64", [1, 2, 3, 4]),
        "x": ("torch.float32", [0.5, 1000, -2, 0.25]),
        "city": ("torch.int64", hash_ids(["Berlin", 'a "b",\nc', None, ""], column="city", rows=1000).tolist()),
        "ok": ("torch.bool", [True, False, True, False]),
    }
    assert source.read(1, 2, ["x"])["x"].tolist() == [1000, -2]


@pytest.mark.parametrize(
    "text",
    [
        CITY.replace("\n", "\r\n"),
        "\ufeff" + CITY,
        CITY.rstrip("\n"),
        CITY.replace(",", ";").replace('b"";', 'b"",'),
        '"id","x","city","ok"\n' + CITY.partition("\n")[2],
    ],
    ids=["CRLF", "BOM", "no last line end", "semicolons", "quoted header"],
)
def test_ways_to_write_the_same_are_read_alike(tmp_path, text):
    plain = CsvSource(written(tmp_path, CITY), how=HASHED)
    other = CsvSource(written(tmp_path, text, "other.csv"), how=HASHED)
    assert other.columns == plain.columns
    ours, theirs = (source.read(0, 4, ["id", "x", "ok"]) for source in (plain, other))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_mark_of_byte_order_may_stand_before_a_quoted_header(tmp_path):
    assert CsvSource(written(tmp_path, '\ufeff"a","b"\n1,2\n')).columns == ("a", "b")


def test_types_are_said_or_follow_from_the_model(tmp_path):
    path = written(tmp_path, "a,b,c\n1,2,3\n1,2.5,x\n")
    with pytest.raises(InputError, match=r"line 3\b.*'b'.*'.*x.csv'.*'2.5'"):
        CsvSource(path, types={"b": "int"}).read(0, 2, ["b"])
    source = open_source(f"{path}?types=c:text&rows=c:9", wanted={"a": InputSpec("float32"), "b": InputSpec("int64")})
    assert source.read(0, 1, ["a"])["a"].dtype == torch.float32
    assert open_source(f"{path}?types=b:double").read(1, 1, ["b"])["b"].dtype == torch.float64
    with pytest.raises(UnknownNameError, match=r"types=.*'d'"):
        open_source(f"{path}?types=d:int")
    with pytest.raises(UnknownNameError, match=r"'a' 'txt'.*'text'"):
        open_source(f"{path}?types=a:txt")


@pytest.mark.parametrize(
    ("text", "kind", "fault"),
    [
        ("a,b\n1,2\n1,1e3\n", "int", r"line 3\b.*'b'.*'1e3'.*\b64\b"),
        ("a,b\n1,99999999999999999999\n", "int", r"line 2\b.*'b'.*'99999999999999999999'"),
        ("a,b\n1,0.5\n1,nan\n", "float", r"line 3\b.*'b'.*'nan'"),
        ("a,b\n1,0.5\n1,1e999\n", "double", r"line 3\b.*'b'.*'1e999'"),
        ("a,b\n1,2\n1,\n", "int", r"line 3\b.*'b'.*fill=0"),
        ('a,b\n"x\ny",2\n"x\ny",\n', "int", r"line 4\b.*'b'"),
        ("a,b\n1,2\n1,2,3\n1,2\n", "int", r"line 3\b.*\b3\b.*\b2\b"),
        ("a,b\n1,2\n\n", "int", r"line 3\b.*empty"),
        (b"a,b\n1,x\n1,\xff\xfe\n", "text", r"line 3\b.*'b'.*'.*xff.*xfe'.*UTF-8"),
        ("a,b\n1,2\n1,maybe\n", "bool", r"line 2\b.*'b'.*'2'"),
    ],
)
def test_a_wrong_field_is_named_with_line_and_column(tmp_path, text, kind, fault):
    path = written(tmp_path, text)
    for _ in range(2):  # converted, and found again
        with pytest.raises(InputError, match=re.compile(fault, re.DOTALL)):
            CsvSource(path, types={"a": "text", "b": kind}, how=HASHED).read(0, 1, ["b"])


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('a,b\n1,5" pipe\n', r"line 2\b"),
        ('a,b\n1,2\n1,"5" pipe\n', r"line 3\b"),
        ('a,b\n1,"5"" pipe"x\n', r"line 2\b"),
        ('a,b\n1,2\n1,"open\n1,2\n', r"line 3\b"),
        ("a,b\n", "no rows"),
        ("a,b", "no rows"),
        ("a,b\n1,2\r3,4\n", "carriage"),
        ("a,b,a\n1,2,3\n", "'a'"),
        ("a,b\n1,2\n".encode("utf-16"), "read"),
        ("", "empty"),
    ],
)
def test_a_file_that_is_no_such_text_is_refused(tmp_path, text, fault):
    with pytest.raises(InputError, match=fault):
        CsvSource(written(tmp_path, text))


def test_missing_numbers_are_filled_on_request_and_wild_ones_are_not(tmp_path):
    path = written(tmp_path, "a,b\n1,0.5\n,\n")
    source = CsvSource(path, how=Conversion(fill=7))
    assert source.read(0, 2, ["a", "b"])["b"].tolist() == [0.5, 7]
    wild = CsvSource(written(tmp_path, "b\n0.5\n\n-inf\n", "wild.csv"), how=Conversion(fill=7))
    with pytest.raises(InputError, match=r"line 4\b.*'b'.*'-inf'"):
        wild.read(0, 1, ["b"])


def test_text_needs_rows(tmp_path):
    with pytest.raises(InputError, match=r"'city'.*text.*rows=city:100000"):
        CsvSource(written(tmp_path, CITY)).read(0, 1, ["city"])


def test_a_folder_is_one_row_of_samples_in_any_order_of_columns(tmp_path):
    written(tmp_path, "a,b\n1,2\n3,4\n", "0.csv")
    written(tmp_path, "b,a\n6,5\n", "1.csv")
    source = open_source(str(tmp_path))
    assert isinstance(source, CsvSource)
    assert source.read(0, 3, ["a", "b"])["a"].tolist() == [1, 3, 5]
    written(tmp_path, "b,c\n6,5\n", "2.csv")
    with pytest.raises(InputError, match=r"2.csv'.*0.csv'.*'a'"):
        open_source(str(tmp_path))
    written(tmp_path, "", "x.parquet")
    with pytest.raises(InputError, match=r"\b2\b.*parquet"):
        open_source(str(tmp_path))


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ("x.csv?delimiter=ab", "'ab'"),
        ("x.csv?types=a", "'a'.*NAME:TYPE"),
        ("x.tsv?fill=0", "'fill'.*--data.*'x.tsv'"),
        ("x.csv.gz", r"'x\.csv\.gz'"),
    ],
)
def test_options_of_csv(spec, fault):
    with pytest.raises(InputError, match=fault):
        open_source(spec)


def test_a_delimiter_may_be_said(tmp_path):
    path = written(tmp_path, "a,b\tc\n1\t2\n")
    assert open_source(f"{path}?delimiter=tab").columns == ("a,b", "c")


def test_what_is_read_is_known_by_content_and_options(tmp_path):
    path = written(tmp_path, "a,b\n1,2\n")
    plain = open_source(str(path)).parts()  # type: ignore[attr-defined]
    assert open_source(str(path)).parts() == plain  # type: ignore[attr-defined]
    assert open_source(f"{path}?types=b:float").parts() != plain  # type: ignore[attr-defined]
    assert open_source(f"{path}?fill=1").parts() != plain  # type: ignore[attr-defined]


def test_a_column_that_is_not_read_may_have_any_fault(tmp_path):
    rows = "".join(f"{n},{n},{'x' if n == 5000 else n}\n" for n in range(9000))
    source = CsvSource(written(tmp_path, f"a,b,c\n{rows}7,,\n"))
    assert source.read(4999, 4001, ["a"])["a"].tolist() == [*range(4999, 9000)]
    with pytest.raises(InputError, match=r"line 5,002\b.*'c'.*'x'"):
        source.read(0, 1, ["c"])
    with pytest.raises(InputError, match=r"line 9,002\b.*'b'.*fill=0"):
        source.read(0, 1, ["b"])


def test_a_file_is_converted_once_for_this_user_alone_and_again_if_it_changes(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = written(tmp_path, CITY)
    for _ in range(2):
        assert CsvSource(path, how=HASHED).samples == 4
    (copy,) = (tmp_path / "cache").rglob("*.parquet")
    said = capsys.readouterr().err
    assert said.count("x.csv") == said.count(str(copy)) == 1
    assert (copy.stat().st_mode & 0o777, copy.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    stamp = path.stat().st_mtime_ns
    path.write_text(CITY.replace("0.5", "7.5"))
    os.utime(path, ns=(stamp, stamp))  # same inode, size and time of change: the hash differs
    assert CsvSource(path).read(0, 1, ["x"])["x"].tolist() == [7.5]
    assert "converted" in capsys.readouterr().err


@pytest.mark.parametrize("damage", [b"", b"PAR1 no such file", None])
def test_a_copy_that_cannot_be_read_is_written_again(tmp_path, monkeypatch, damage):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = written(tmp_path, CITY)
    CsvSource(path)
    (copy,) = (tmp_path / "cache").rglob("*.parquet")
    copy.write_bytes(copy.read_bytes()[:-20] if damage is None else damage)
    assert CsvSource(path).read(0, 1, ["id"])["id"].tolist() == [1]


def test_a_copy_that_is_gone_during_the_run_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = CsvSource(written(tmp_path, CITY))
    (copy,) = (tmp_path / "cache").rglob("*.parquet")
    copy.unlink()
    with pytest.raises(InputError, match=rf"{copy.name}'.*x\.csv'"):
        source.read(0, 1, ["id"])


def test_a_cache_that_cannot_be_written_is_one_message_and_nothing_is_left(tmp_path, monkeypatch):
    path = written(tmp_path, "a,b\n" + "1,2\n" * 1000)
    monkeypatch.setenv("HETERPS_DATA_CACHE", str(path))
    with pytest.raises(RunError, match=r"x\.csv'.*HETERPS_DATA_CACHE"):
        CsvSource(path)
    monkeypatch.setenv("HETERPS_DATA_CACHE", str(tmp_path / "full"))
    child = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))\n"
    child += f"from heterps_compile.runtime.data.csv_file import CsvSource; CsvSource({str(path)!r})"
    run = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=False)
    assert re.search(r"RunError: .*x\.csv'.*full.*HETERPS_DATA_CACHE", run.stderr)
    assert {found.name for found in (tmp_path / "full" / "csv").iterdir()} == {"lock"}


def test_copies_that_are_not_read_any_more_are_removed_when_all_take_too_much(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "heterps-compile" / "csv"
    folder.mkdir(parents=True)
    sizes = {"oldest": 30 * 2**30, "old": 30 * 2**30, "read": 40 * 2**30, "small": 2**20}
    for days, (name, size) in zip((30, 20, 1, 15), sizes.items(), strict=True):
        with (folder / f"{name}.parquet").open("wb") as file:
            file.truncate(size)  # takes no room on the disk
        os.utime(folder / f"{name}.parquet", (0, time.time() - days * 86400))
    path = written(tmp_path, CITY)
    CsvSource(path)
    said = capsys.readouterr().err
    assert {copy.stem for copy in folder.glob("*.parquet")} & {*sizes} == {"read", "small"}
    assert said.count("removed") == 1
    assert f"{60 * 2**30:,} bytes" in said
    (copy,) = (copy for copy in folder.glob("*.parquet") if copy.stem not in sizes)
    os.utime(copy, (0, 0))
    os.truncate(folder / "read.parquet", 70 * 2**30)
    os.utime(folder / "read.parquet")
    CsvSource(path).read(0, 1, ["id"])
    CsvSource(written(tmp_path, "a\n1\n", "other.csv"))
    assert {found.stem for found in folder.glob("*.parquet")} > {"read", copy.stem}
    assert not (folder / "small.parquet").exists()


@pytest.mark.parametrize("block_bytes", range(20, 30))
def test_text_after_a_closing_mark_is_refused_wherever_a_block_ends(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(to_parquet, "BLOCK_BYTES", block_bytes)
    path = written(tmp_path, 'a,b\n"1","2"\n"5" ,6\n')
    with pytest.raises(InputError, match=r"line 3\b.*mark"):
        CsvSource(path, types={"a": "text", "b": "int"})


def test_processes_that_start_together_convert_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = written(tmp_path, "a,b\n" + "1,2\n" * 200_000)
    child = f"from heterps_compile.runtime.data.csv_file import CsvSource; print(CsvSource({str(path)!r}).samples)"
    command = [sys.executable, "-c", child]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    out, err = zip(*(rank.communicate() for rank in ranks), strict=True)
    assert out == ("200000\n",) * 2
    assert "".join(err).count("converted") == 1


def test_a_record_that_is_too_long_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(to_parquet, "BLOCK_BYTES", 64)
    with pytest.raises(InputError, match=r"x\.csv'.*\b64\b"):
        CsvSource(written(tmp_path, f"a\n{'1' * 200}\n"))


FIELDS = st.text(st.sampled_from('ab",;\n\r é'), max_size=6)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.tuples(FIELDS, FIELDS), min_size=1, max_size=20),
    block_bytes=st.integers(40, 120),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_what_python_writes_is_read_back_in_ranges_whatever_the_blocks(rows, block_bytes, end, tmp_path_factory):
    path = tmp_path_factory.mktemp("csv") / "x.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator=end, quoting=csv.QUOTE_ALL).writerows([("p", "q"), *rows])
    with pytest.MonkeyPatch.context() as patched:
        for module in (to_parquet, checked_text):
            patched.setattr(module, "BLOCK_BYTES", block_bytes)
        source = CsvSource(path, types={"p": "text", "q": "text"}, how=HASHED)
        found = [source.read(n, 1, ["q"])["q"].item() for n in range(len(rows))]
        lines = [checked_text.line_of(local_file(path), n) for n in range(len(rows) + 1)]
    assert found == hash_ids([q for _, q in rows], column="q", rows=1000).tolist()
    texts = [("p", "q"), *rows]
    assert lines == [1 + sum("".join(text).count("\n") + 1 for text in texts[:n]) for n in range(len(texts))]
