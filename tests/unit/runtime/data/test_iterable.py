"""Iterables are read from front to back, with samples numbered as they come."""

from itertools import cycle

import pytest
import torch

from heterps_compile.errors import InputError, RunError
from heterps_compile.runtime.data.iterable import IterableSource


def samples(count: int):
    return ({"id": n, "x": [n, n + 0.5]} for n in range(count))


def test_samples_are_put_together():
    read = IterableSource(samples(10), is_batched=False).read(2, 3, ["x", "id"])
    assert read["id"].tolist() == [2, 3, 4]
    assert read["id"].dtype == torch.int64
    assert read["x"].tolist() == [[2, 2.5], [3, 3.5], [4, 4.5]]
    assert read["x"].dtype == torch.float32


def test_batches_of_any_length_are_one_row_of_samples():
    batches = [{"id": torch.arange(0, 3)}, {"id": torch.arange(3, 4)}, {"id": torch.arange(4, 9)}]
    source = IterableSource(batches, is_batched=True)
    assert source.read(1, 6, ["id"])["id"].tolist() == [1, 2, 3, 4, 5, 6]


def test_a_list_begins_again_and_an_iterator_ends():
    again = IterableSource([{"id": n} for n in range(3)], is_batched=False)
    assert again.read(0, 7, ["id"])["id"].tolist() == [0, 1, 2, 0, 1, 2, 0]
    once = IterableSource(samples(3), is_batched=False)
    with pytest.raises(RunError, match=r"\b3\b.*Fix: .*iterable"):
        once.read(0, 4, ["id"])
    made = IterableSource(samples(3), is_batched=False, make_again=lambda: samples(3))
    assert made.read(0, 7, ["id"])["id"].tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_samples_are_counted_to_the_end_and_no_further_than_half_a_minute(monkeypatch):
    batches = [{"id": torch.arange(n)} for n in (3, 1, 5)]
    assert IterableSource(batches, is_batched=True).count() == 9
    assert IterableSource(iter(batches), is_batched=True).count() == 9
    monkeypatch.setattr("heterps_compile.runtime.data.iterable._COUNT_S", 0.01)
    with pytest.raises(RunError, match="--steps N"):
        IterableSource(cycle(batches), is_batched=True).count()


def test_going_back_is_possible_for_so_many_samples():
    source = IterableSource(samples(100), is_batched=False, keep_samples=10)
    assert source.read(40, 5, ["id"])["id"].tolist() == [40, 41, 42, 43, 44]
    assert source.read(36, 2, ["id"])["id"].tolist() == [36, 37]
    with pytest.raises(RunError, match=r"sample 20\b.*\b35\b"):
        source.read(20, 1, ["id"])


@pytest.mark.parametrize(
    ("items", "is_batched", "fault"),
    [
        (3, True, "data"),
        ([], False, "iterable.*items"),
        ([(1, 2)], False, r"sample 0\b.*tuple"),
        ([{"x": "word"}], False, "column 'x'"),
        ([{"x": torch.zeros(2), "y": torch.zeros(3)}], True, r"'x' \[2\].*'y' \[3\]"),
        ([{"x": 1.0}], True, r"'x' \[\]"),
    ],
)
def test_what_is_no_sample_is_refused(items, is_batched, fault):
    with pytest.raises(InputError, match=fault):
        IterableSource(items, is_batched=is_batched)


def test_a_later_item_with_other_columns_is_named():
    source = IterableSource([{"x": 1}, {"y": 1}], is_batched=False)
    with pytest.raises(InputError, match=r"sample 1\b"):
        source.read(0, 2, ["x"])


def test_what_an_iterable_raises_says_how_far_it_came():
    def broken():
        yield {"x": torch.zeros(3)}
        raise ValueError("shard 2 is broken")

    source = IterableSource(broken(), is_batched=True)
    with pytest.raises(ValueError, match=r"shard 2\b") as raised:
        source.read(0, 4, ["x"])
    assert raised.value.__notes__ == ["where the data went on after 3 samples"]
