"""Criteo's text format: fields parsed, categories hashed, and lines that are wrong named."""

import random

import pytest
import torch

from heterps_compile.errors import InputError
from heterps_compile.runtime.data.criteo import CriteoSource

pytest.importorskip("pyarrow", reason="pyarrow is an extra")


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
    ("bad", "column", "fault"),
    [
        (line(number="1.5"), "dense", r"line 2\b.*field 2\b.*'.*day.tsv'.*'1.5'"),
        (line(label="yes"), "label", r"line 2\b.*field 1\b.*'yes'"),
        (line(number="9" * 19), "dense", r"line 2\b.*field 2\b.*'9999999999999999999'"),
        (line(category="xyz"), "sparse", r"line 2\b.*field 15\b.*'xyz'.*\b8\b"),
        (line(category="0x12"), "sparse", r"line 2\b.*field 15\b.*'0x12'"),
        (line(category="123456789"), "sparse", r"line 2\b.*field 15\b.*'123456789'"),
        (line(category="\x1b[2J"), "sparse", r"line 2\b.*field 15\b.*x1b\[2J"),
    ],
)
def test_a_wrong_field_is_named_where_its_column_is_read(tmp_path, bad, column, fault):
    source = CriteoSource(written(tmp_path, line(), bad, line()))
    for name in source.columns:
        if name != column:
            assert len(source.read(0, 3, [name])[name]) == 3
    with pytest.raises(InputError, match=fault) as raised:
        source.read(0, 1, [column])
    assert "\x1b" not in str(raised.value)


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (line() + "\t1", r"line 2\b.*'.*day.tsv'.*\b41\b.*\b40\b"),
        ("", r"line 2\b.*'.*day.tsv'.*empty"),
        (line(category='6"8'), r"line 2\b.*'.*day.tsv'.*mark"),
    ],
)
def test_a_wrong_line_is_named_when_the_file_is_opened(tmp_path, bad, fault):
    with pytest.raises(InputError, match=fault):
        CriteoSource(written(tmp_path, line(), bad, line()))


def test_another_format_is_refused_when_it_is_opened(tmp_path):
    with pytest.raises(InputError, match=r"\b2\b.*\b13\b.*\b26\b"):
        CriteoSource(written(tmp_path, "a\tb"))
