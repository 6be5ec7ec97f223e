"""Random sample n is the same whoever reads it, and has the range and dtype asked for."""

import pytest
import torch

from heterps_compile.errors import InputError
from heterps_compile.runtime.data.random_source import RandomColumn, RandomSource

COLUMNS = [
    RandomColumn("ids", "int64", (3,), limit=1000),
    RandomColumn("rows", "int32", (), limit=1_000_000, zipf=1.05),
    RandomColumn("dense", "float32", (5,)),
    RandomColumn("label", "float32", (), limit=2),
    RandomColumn("mask", "bool", (7,)),
    RandomColumn("half", "bfloat16", (2, 3)),
]
NAMES = [column.name for column in COLUMNS]


def test_sample_n_is_the_same_in_every_range():
    source = RandomSource(COLUMNS, seed=3)
    whole = source.read(0, 50, NAMES)
    for first, count in ((37, 9), (0, 1), (49, 1)):
        part = RandomSource(COLUMNS, seed=3).read(first, count, NAMES)
        assert all(torch.equal(part[name], whole[name][first : first + count]) for name in NAMES)


def test_shapes_and_dtypes_are_those_asked_for():
    read = RandomSource(COLUMNS).read(10, 4, NAMES)
    assert {name: (str(t.dtype), tuple(t.shape)) for name, t in read.items()} == {
        "ids": ("torch.int64", (4, 3)),
        "rows": ("torch.int32", (4,)),
        "dense": ("torch.float32", (4, 5)),
        "label": ("torch.float32", (4,)),
        "mask": ("torch.bool", (4, 7)),
        "half": ("torch.bfloat16", (4, 2, 3)),
    }


def test_numbers_are_spread_as_promised():
    read = RandomSource(COLUMNS).read(0, 20_000, NAMES)
    assert read["ids"].min() == 0
    assert read["ids"].max() == 999
    assert set(read["label"].tolist()) == {0.0, 1.0}
    assert abs(read["dense"].mean().item()) < 0.02
    assert abs(read["dense"].std().item() - 1) < 0.02
    assert abs(read["mask"].float().mean().item() - 0.5) < 0.02


def test_zipf_draws_small_numbers_more_often():
    rows = RandomSource(COLUMNS).read(0, 20_000, ["rows"])["rows"]
    assert 0 <= rows.min() <= rows.max() < 1_000_000
    shares = [((rows >= low) & (rows < 10 * low)).float().mean().item() for low in (1, 10, 100, 1000)]
    assert all(0.1 < share < 0.3 for share in shares)  # at exponent 1.05 decades draw nearly alike
    assert (rows < 10).float().mean() > 100 * (rows >= 999_000).float().mean()


def test_columns_and_seeds_are_independent():
    pair = [RandomColumn("a", "float32"), RandomColumn("b", "float32")]
    read = RandomSource(pair).read(0, 8, ["a", "b"])
    assert not torch.equal(read["a"], read["b"])
    assert not torch.equal(read["a"], RandomSource(pair, seed=1).read(0, 8, ["a"])["a"])


@pytest.mark.parametrize(
    ("column", "fault"),
    [
        (RandomColumn("ids", "int64"), "ids<10000"),
        (RandomColumn("ids", "int8", limit=200), "int8.*127"),
        (RandomColumn("ids", "int64", limit=0), r"\b0\b.*\b0\b"),
        (RandomColumn("x", "complex64"), "complex64"),
        (RandomColumn("x", "nn"), r"\bnn\b"),
        (RandomColumn("x", "float32", zipf=1.0), r"Zipf's.*\b0\b"),
        (RandomColumn("x", "float32", (0,)), r"\[0\]"),
    ],
)
def test_what_cannot_be_drawn_is_refused(column, fault):
    with pytest.raises(InputError, match=fault):
        RandomSource([column])
