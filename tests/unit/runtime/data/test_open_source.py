"""What a person writes after --data."""

import re
from pathlib import Path

import pytest

from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.runtime.data.criteo import CriteoSource
from heterps_compile.runtime.data.model_inputs import InputSpec
from heterps_compile.runtime.data.open_source import check_spec, open_source, random_columns
from heterps_compile.runtime.data.parquet import ParquetSource
from heterps_compile.runtime.data.random_source import RandomColumn

CTR = {"sparse": InputSpec("int64", (26,)), "dense": InputSpec("float32", (13,))}
LINE = "\t".join(["1", *["7"] * 13, *["68fd1e64"] * 26]) + "\n"


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("sparse<10000", [RandomColumn("sparse", "int64", (26,), 10000), RandomColumn("dense", "float32", (13,))]),
        (
            "sparse<10_000~1.05, label=float32<2",
            [
                RandomColumn("sparse", "int64", (26,), 10000, 1.05),
                RandomColumn("dense", "float32", (13,)),
                RandomColumn("label", "float32", (), 2),
            ],
        ),
        (
            "sparse=int32[2x3]<5,dense=bool[4]",
            [RandomColumn("sparse", "int32", (2, 3), 5), RandomColumn("dense", "bool", (4,))],
        ),
    ],
)
def test_random_columns_are_what_the_plan_knows_and_the_text_adds(text, columns):
    assert random_columns(text, CTR) == columns


def test_random_ids_lie_in_the_table_that_the_plan_knows():
    wanted = {"ids": InputSpec("int64", (26,), rows=3)}
    assert open_source("random", wanted=wanted).read(0, 64, ["ids"])["ids"].unique().tolist() == [0, 1, 2]
    assert [column.limit for column in random_columns("ids<2", wanted)] == [2]


def test_the_examples_of_the_documentation_are_read():
    page = (Path(__file__).parents[4] / "docs" / "data.md").read_text("utf-8")
    specs = [text for text in re.findall(r"`random:([^`]+)`", page) if text != "..."]
    assert len(specs) == 2
    for text in specs:
        assert {"ids", "label"} <= {column.name for column in random_columns(text, {"ids": InputSpec("int64", (26,))})}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "'sparse'.*int64.*sparse<10000"),
        ("sparse<x", "'sparse<x'.*'random:ids=int64"),
        ("other<9", "'other'"),
    ],
)
def test_what_random_data_lack_is_said(text, fault):
    with pytest.raises(InputError, match=fault):
        open_source(f"random:{text}", wanted=CTR)


def test_a_shape_the_plan_does_not_know_is_asked_for():
    with pytest.raises(InputError, match=r"'x'.*float32\[any\]"):
        open_source("random", wanted={"x": InputSpec("float32", (None,))})


def test_a_text_file_is_read_as_criteo(tmp_path):
    (tmp_path / "day_0.tsv").write_text(LINE * 3)
    source = open_source(f"{tmp_path}/day_0.tsv?rows=100")
    assert isinstance(source, CriteoSource)
    assert source.read(0, 3, ["sparse"])["sparse"].max() < 100


def test_a_parquet_file_is_filled(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"x": pa.array([1.0, None, 3.0])}), tmp_path / "x.parquet")
    assert isinstance(open_source(f"{tmp_path}"), ParquetSource)
    source = open_source(f"{tmp_path}/x.parquet?fill=2")
    assert source.read(0, 3, ["x"])["x"].tolist() == [1, 2, 3]


def test_a_file_may_have_a_question_mark_in_its_name(tmp_path):
    (tmp_path / "what?.tsv").write_text(LINE)
    assert open_source(f"{tmp_path}/what?.tsv").samples == 1


@pytest.mark.parametrize(
    ("spec", "kind", "fault"),
    [
        ("x.tsv?row=1", UnknownNameError, "--data 'row'.*'rows'"),
        ("x.tsv?rows=many", InputError, "'rows'.*--data.*'many'.*NAME:ROWS"),
        ("x.tsv?shuffle=7", InputError, "'shuffle'.*--data.*--shuffle WINDOW"),
        ("x.tsv?rows=a:2,a:3", InputError, "'rows'.*--data.*'a:2,a:3'"),
        ("x.tsv?fill=", InputError, "'fill'.*--data.*''"),
        ("gone.tsv", InputError, "'gone.tsv'.*No such file"),
        ("x.json", InputError, "'x.json'"),
        ("nul\0.tsv", InputError, r"'nul\\\\x00.tsv'"),
    ],
)
def test_what_cannot_be_opened_is_refused(spec, kind, fault):
    with pytest.raises(kind, match=fault):
        open_source(spec)


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ("gone.tsv", "'.*gone.tsv'.*No such file"),
        ("empty.parquet", "'.*empty.parquet'"),
        ("day.tsv?row=1", "'rows'"),
        ("day.json", "kind"),
        ("day.tsv.gz", "unpack"),
        ("random", "'sparse'.*int64"),
    ],
)
def test_what_a_spec_shows_is_refused_before_anything_is_read(tmp_path, spec, fault):
    for name, text in (("empty.parquet", ""), ("day.json", "x"), ("day.tsv.gz", "x"), ("day.tsv", "no Criteo")):
        (tmp_path / name).write_text(text)
    with pytest.raises((InputError, UnknownNameError), match=fault):
        check_spec(spec if spec == "random" else f"{tmp_path}/{spec}", lambda: CTR)
    check_spec(f"{tmp_path}/day.tsv?rows=7", dict)
    (tmp_path / "days").mkdir()
    (tmp_path / "days" / "day.parquet").write_text("no Parquet")
    check_spec(f"{tmp_path}/days", dict)
