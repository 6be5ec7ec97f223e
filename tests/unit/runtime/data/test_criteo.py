"""Criteo's text format: fields parsed, categories hashed, and lines that are wrong named."""

import random

import numpy as np
import pytest
import torch

from heterps_compile.errors import InputError, RunError
from heterps_compile.runtime.data.criteo import CriteoSource
from heterps_compile.runtime.data.data_file import local_file
from heterps_compile.runtime.data.line_index import LINES_A_STEP, line_index


def line(label: str = "1", number: str = "7", category: str = "68fd1e64") -> str:
    return "\t".join([label, *[number] * 13, *[category] * 26])


def written(tmp_path, *lines: str, end: str = "\n"):
    path = tmp_path / "day.tsv"
    path.write_bytes(end.join(lines).encode() + end.encode())
    return path


@pytest.fixture
def generated(tmp_path):
    """A thousand random lines, the last without its end, and their fields."""
    rng = random.Random(0)  # noqa: S311 - test data
    rows = [
        [
            str(n % 2),
            *[rng.choice(["", str(rng.randrange(-3, 10**6))]) for _ in range(13)],
            *[rng.choice(["", f"{rng.randrange(16**8):x}"]) for _ in range(26)],
        ]
        for n in range(1000)
    ]
    path = tmp_path / "day.tsv"
    path.write_bytes("\n".join("\t".join(row) for row in rows).encode())
    return path, rows


def test_every_field_is_what_the_text_says(generated):
    path, rows = generated
    source = CriteoSource(path, rows=50)
    assert source.samples == 1000
    assert source.columns == ("label", "dense", "sparse")
    read = source.read(200, 800, ["label", "dense", "sparse"])
    for sample, row in enumerate(rows[200:]):
        assert read["label"][sample] == float(row[0])
        assert read["dense"][sample].tolist() == [float(text or 0) for text in row[1:14]]
        assert [found == 0 for found in read["sparse"][sample].tolist()] == [text == "" for text in row[14:]]
    assert {name: t.dtype for name, t in read.items()} == {
        "label": torch.float32,
        "dense": torch.float32,
        "sparse": torch.int64,
    }
    assert read["sparse"].max() == 49


def test_the_hash_stays_what_it_is(tmp_path):
    """Trained tables depend on it; one category has another id in every field."""
    source = CriteoSource(written(tmp_path, line()), rows=100_000)
    ids = source.read(0, 1, ["sparse"])["sparse"][0]
    assert ids[:3].tolist() == [81312, 21233, 45556]
    assert len(set(ids.tolist())) == 26


def test_a_file_without_labels_has_two_columns(tmp_path):
    source = CriteoSource(written(tmp_path, line().partition("\t")[2]))
    assert source.columns == ("dense", "sparse")
    assert source.read(0, 1, ["dense"])["dense"].tolist() == [[7.0] * 13]


def test_a_mark_of_byte_order_before_the_first_line_is_no_part_of_it(tmp_path):
    source = CriteoSource(written(tmp_path, "\ufeff" + line(label="1"), line(label="0")), rows=10)
    assert source.read(0, 2, ["label"])["label"].tolist() == [1, 0]
    assert source.read(1, 1, ["label"])["label"].tolist() == [0]


def test_windows_line_ends_and_large_digits_are_read(tmp_path):
    source = CriteoSource(written(tmp_path, line(category="FF"), line(category=""), end="\r\n"), rows=50)
    ids = source.read(0, 2, ["sparse"])["sparse"]
    small = CriteoSource(written(tmp_path, line(category="ff")), rows=50).read(0, 1, ["sparse"])["sparse"]
    assert torch.equal(ids[:1], small)
    assert not ids[1].any()


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (line(number="1.5"), r"line 2\b.*field 2\b.*'.*day.tsv'.*'1.5'"),
        (line(label="yes"), r"line 2\b.*field 1\b.*'yes'"),
        (line(number="9" * 19), r"line 2\b.*field 2\b.*'9999999999999999999'"),
        (line(category="xyz"), r"line 2\b.*field 15\b.*'xyz'.*\b8\b"),
        (line(category="\x1b[2J"), r"line 2\b.*field 15\b.*'\\\\x1b\[2J'"),
        (line() + "\t1", r"line 2\b.*'.*day.tsv'.*\b41\b.*\b40\b"),
        ("", r"line 2\b.*'.*day.tsv'.*\b1\b.*\b40\b"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, bad, fault):
    source = CriteoSource(written(tmp_path, line(), bad, line()))
    assert source.read(0, 1, ["label", "dense", "sparse"])["label"].tolist() == [1.0]
    with pytest.raises(InputError, match=fault):
        source.read(0, 3, ["label", "dense", "sparse"])


def test_another_format_is_refused_when_it_is_opened(tmp_path):
    with pytest.raises(InputError, match=r"\b2\b.*\b13\b.*\b26\b"):
        CriteoSource(written(tmp_path, "a\tb"))


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "day.tsv").write_bytes(b"")
    with pytest.raises(InputError, match=r"day.tsv'"):
        CriteoSource(tmp_path / "day.tsv")


@pytest.mark.parametrize("rows", [1, [100] * 25])
def test_tables_need_rows(tmp_path, rows):
    with pytest.raises(InputError, match=r"\b26\b.*\b2\b"):
        CriteoSource(written(tmp_path, line()), rows=rows)


def test_a_file_that_grows_during_the_run_is_named(tmp_path):
    path = written(tmp_path, line(), line())
    source = CriteoSource(path)
    with path.open("a") as file:
        file.write(line() + "\n")
    with pytest.raises(RunError, match=r"day.tsv'.*524.*786"):
        source.read(0, 1, ["label"])


@pytest.mark.parametrize("lines", [1, LINES_A_STEP - 1, LINES_A_STEP, LINES_A_STEP + 1, 3 * LINES_A_STEP])
@pytest.mark.parametrize("end", ["", "\n"])
def test_the_index_finds_every_line(tmp_path, lines, end):
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(str(n) for n in range(lines)) + end)
    index = line_index(local_file(path), chunk_bytes=100)
    assert index.lines == lines
    for first in {0, lines // 2, lines - 1}:
        text = index.read(first, 1).splitlines()
        assert text[first % LINES_A_STEP] == str(first).encode()


def test_a_kept_index_is_used_until_the_file_is_another_one(tmp_path, monkeypatch):
    path, kept = written(tmp_path, line(), line()), tmp_path / "kept" / "day.tsv.index.npy"
    assert CriteoSource(path, index_folder=kept.parent).samples == 2
    numbers = np.load(kept)
    with monkeypatch.context() as patched:
        patched.setattr("heterps_compile.runtime.data.line_index._make_index", None)
        assert CriteoSource(path, index_folder=kept.parent).samples == 2
    written(tmp_path, line(), line(), line())
    assert CriteoSource(path, index_folder=kept.parent).samples == 3
    assert not np.array_equal(np.load(kept), numbers)


@pytest.mark.parametrize("content", [b"", b"no array", b"\x93NUMPY\x01\x00"])
def test_a_damaged_index_is_made_anew(tmp_path, content):
    path, kept = written(tmp_path, line(), line()), tmp_path / "day.tsv.index.npy"
    kept.write_bytes(content)
    assert CriteoSource(path, index_folder=kept.parent).samples == 2
    assert CriteoSource(path, index_folder=kept.parent).samples == 2
