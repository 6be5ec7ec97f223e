"""Text becomes ids by the function of the documentation, in whatever way it is stored."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_compile import hash_ids
from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.runtime.data import hashed_ids
from heterps_compile.runtime.data.arrow import Conversion
from heterps_compile.runtime.data.csv_file import CsvSource
from heterps_compile.runtime.data.hashed_ids import TableRows
from heterps_compile.runtime.data.identity import name_with_rows
from heterps_compile.runtime.data.model_inputs import InputSpec
from heterps_compile.runtime.data.open_source import open_source
from heterps_compile.runtime.data.parquet import ParquetSource

TEXTS = st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=40), max_size=90)


def by_the_book(text: str | None, column: str, rows: int) -> int:
    """Hash one text as the head of ``hashed_ids.py`` writes it down."""
    if text is None:
        return 0
    h, mask = 0xCBF29CE484222325, 2**64 - 1
    for byte in column.encode() + b"\0" + text.encode():
        h = ((h ^ byte) * 0x100000001B3) & mask
    z = (h + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return 1 + (z ^ (z >> 31)) % (rows - 1)


@settings(max_examples=60, deadline=None)
@given(texts=TEXTS, column=st.sampled_from(["user", "", "Straße"]), rows=st.integers(2, 2**40))
def test_many_at_once_are_those_of_the_book_one_by_one(texts, column, rows):
    assert hash_ids(texts, column=column, rows=rows).tolist() == [by_the_book(text, column, rows) for text in texts]


def test_long_texts_among_short_ones_are_hashed_whole():
    texts = ["x" * 5000, *["y" * (n % 7) for n in range(200)], "x" * 4999 + "z"]
    assert hash_ids(texts, column="c", rows=10**9).tolist() == [by_the_book(text, "c", 10**9) for text in texts]


def test_the_ids_of_the_documentation():
    page = (Path(__file__).parents[4] / "docs" / "data.md").read_text("utf-8")
    told = re.findall(r"`hash_ids\((\[.*?\]), column=\"(\w+)\", rows=(\d+)\)` gives `\[([\d, ]+)\]`", page)
    assert len(told) == 1
    texts = [text.strip(' "') for text in told[0][0].strip("[]").split(",")]
    ids = hash_ids([None if text == "None" else text for text in texts], column=told[0][1], rows=int(told[0][2]))
    assert ids.tolist() == [int(number) for number in told[0][3].split(",")]


def test_a_float_that_is_not_a_number_is_a_missing_value_and_another_number_is_refused():
    assert hash_ids([float("nan"), np.nan], column="c", rows=9).tolist() == [0, 0]
    with pytest.raises(InputError, match=r"\b7\b"):
        hash_ids([7], column="c", rows=9)
    with pytest.raises(InputError, match="UTF-8"):
        hash_ids(["\ud800"], column="c", rows=9)


@pytest.mark.parametrize("rows", [1, 0, -4])
def test_a_table_needs_a_row_for_missing_values_and_another(rows):
    with pytest.raises(InputError, match=rf"{rows}.*\b2\b"):
        hash_ids(["a"], column="c", rows=rows)
    with pytest.raises(InputError, match=rf"'c'.*{rows}"):
        TableRows(None, {"c": rows})


@pytest.fixture
def words(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    words = ["Zürich", None, "", "Berlin", "Oslo"]
    columns = {
        "plain": pa.array(words),
        "large": pa.array(words, pa.large_string()),
        "coded": pa.array(words).dictionary_encode(),
        "view": pa.array(words, pa.string_view()),
        "tags": pa.array([["a", None], ["b", "a"], ["", "c"], ["d", "e"], ["f", "g"]]),
        "raw": pa.array([b"1"] * 5),
    }
    pq.write_table(pa.table(columns), tmp_path / "w.parquet", row_group_size=2)
    return tmp_path / "w.parquet", words


@pytest.mark.parametrize("column", ["plain", "large", "coded", "view"])
def test_text_of_a_parquet_file_is_what_hash_ids_gives(words, column):
    path, texts = words
    source = open_source(f"{path}?rows={column}:1000,7")
    assert source.read(0, 5, [column])[column].tolist() == hash_ids(texts, column=column, rows=1000).tolist()


def test_lists_of_text_are_hashed_each(words):
    found = open_source(f"{words[0]}?rows=50").read(0, 2, ["tags"])["tags"]
    assert found.tolist() == [hash_ids(pair, column="tags", rows=50).tolist() for pair in (["a", None], ["b", "a"])]


def test_text_without_rows_other_kinds_and_columns_that_are_none_are_refused(words):
    with pytest.raises(InputError, match=r"'plain'.*text.*say.*rows.*rows=plain:100000"):
        open_source(str(words[0])).read(0, 1, ["plain"])
    with pytest.raises(InputError, match=r"'raw'.*binary"):
        open_source(f"{words[0]}?rows=9").read(0, 1, ["raw"])
    with pytest.raises(UnknownNameError, match=r"'plane'.*'plain'"):
        open_source(f"{words[0]}?rows=plane:9")


def test_text_of_an_input_that_goes_into_one_table_has_its_rows_and_more_are_refused(words, tmp_path):
    path, texts = words
    wanted = {"plain": InputSpec("int64", (), 9), "raw": InputSpec("int64", (), 5)}
    ids = hash_ids(texts, column="plain", rows=9).tolist()
    assert open_source(str(path), wanted=wanted).read(0, 5, ["plain"])["plain"].tolist() == ids
    assert name_with_rows(open_source(str(path), wanted=wanted), "w") == "w?rows=plain:9", "for whoever serves it"
    assert name_with_rows(open_source(f"{path}?rows=plain:7", wanted=wanted), "w?rows=plain:7") == "w?rows=plain:7"
    fewer = open_source(f"{path}?rows=plain:7", wanted=wanted).read(0, 5, ["plain"])["plain"].tolist()
    assert fewer == hash_ids(texts, column="plain", rows=7).tolist(), "fewer rows than the table has are a choice"
    (tmp_path / "w.csv").write_text("plain,n\nBerlin,1\nOslo,2\n")
    csv = open_source(str(tmp_path / "w.csv"), wanted=wanted)
    assert csv.read(0, 2, ["plain"])["plain"].tolist() == hash_ids(["Berlin", "Oslo"], column="plain", rows=9).tolist()
    for name in (path, tmp_path / "w.csv"):
        with pytest.raises(InputError, match=r"'plain'.*\b10\b.*\b9\b.*rows="):
            open_source(f"{name}?rows=10", wanted=wanted)
    numbers = {"n": InputSpec("int64", (), 2)}
    plain = {name: replace(spec, rows=None) for name, spec in numbers.items()}
    (tmp_path / "n.csv").write_text("n\n1\n0\n")
    parts = [CsvSource(tmp_path / "n.csv", wanted=found).parts() for found in (numbers, plain)]
    assert parts[0] == parts[1], "tables of columns that are numbers change no digest"


def test_rows_are_part_of_what_is_read_and_data_without_text_keep_their_digest(words):
    numbers = [ParquetSource(words[0], how=how).parts() for how in (Conversion(), Conversion(rows=TableRows(9)))]
    assert numbers[0] != numbers[1]
    assert Conversion(fill=2.0).words() == (2.0,)


def test_few_values_and_many_take_the_two_ways_to_the_same_ids(monkeypatch):
    texts = [f"{n:x}" * (n % 5) for n in range(40)]
    few = hash_ids(texts, column="c", rows=10**6)
    monkeypatch.setattr(hashed_ids, "_FEW", 0)
    assert hash_ids(texts, column="c", rows=10**6).tolist() == few.tolist()
