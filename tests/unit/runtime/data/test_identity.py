"""Data are known again by what they hold, wherever they lie; other data are told apart in words."""

import hashlib
import json
import re
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from heterps_compile.runtime.data.data_file import SAMPLES, local_file
from heterps_compile.runtime.data.epochs import Epochs
from heterps_compile.runtime.data.identity import (
    Identity,
    Part,
    difference,
    identity_of,
    with_contents,
)
from heterps_compile.runtime.data.iterable import IterableSource
from heterps_compile.runtime.data.open_source import open_source
from heterps_compile.runtime.data.sample_source import TensorSource
from heterps_compile.strict_json import received

CLICKS = Identity("clicks", ("ids", "label"), (Part(300, "a"), Part(100, "b")))
GROWN = Identity("clicks", CLICKS.columns, (*CLICKS.parts, Part(50, "c")))


def days(folder: Path, *firsts: int) -> Path:
    """Write a file of ten samples for every number that its first sample has."""
    folder.mkdir()
    for day, first in enumerate(firsts):
        pq.write_table(pa.table({"x": list(range(first, first + 10))}), folder / f"day_{day}.parquet")
    return folder


def known(spec: object) -> Identity:
    return identity_of(open_source(str(spec)), Path(str(spec)).name)


def test_the_same_data_elsewhere_are_the_same(tmp_path):
    there, here = days(tmp_path / "a", 0, 10), days(tmp_path / "b", 0, 10)
    assert known(there).parts == known(here).parts
    assert difference(known(there), known(here)) is None
    assert received(Identity, json.dumps(asdict(known(there))), "data") == known(there)


@pytest.mark.parametrize("how", ["", "?fill=0"])
def test_64_bytes_in_the_middle_of_a_file_are_told_with_its_name(tmp_path, how):
    folder = tmp_path / "a"
    folder.mkdir()
    for day in (0, 1):
        pq.write_table(pa.table({"x": torch.rand(100_000).numpy() + day}), folder / f"day_{day}.parquet")
    then = contents(folder, how)
    assert difference(then, contents(folder, how), samples_read=5) is None
    path = folder / "day_1.parquet"
    content = bytearray(path.read_bytes())
    content[200_000:200_064] = hashlib.shake_128(b"other").digest(64)
    path.write_bytes(content)
    differ = difference(then, contents(folder, how), samples_read=5)
    assert differ is not None
    assert all(re.fullmatch(rf"'a{re.escape(how)}' with SHA-256 \w+… of 'day_1.parquet'", told) for told in differ)
    assert differ[0] != differ[1]
    assert difference(known(f"{folder}{how}"), then, samples_read=5) is None  # an earlier version had not looked


def contents(folder: Path, how: str) -> Identity:
    source = open_source(f"{folder}{how}")
    made = with_contents(identity_of(source, folder.name + how), source)
    return received(Identity, json.dumps(asdict(made)), "data")


def test_of_a_large_file_begin_end_and_samples_in_between_count(tmp_path):
    path = tmp_path / "large.tsv"
    size = 256 * SAMPLES * 2**10 * 2  # every other 256 KiB
    with path.open("wb") as file:
        file.truncate(size)
    seen = [local_file(path).fingerprint(whole_bytes=2**20)]
    for place in (0, size // 2, size - 1):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"x" * (1 if place == size - 1 else 300 * 2**10))
        seen.append(local_file(path).fingerprint(whole_bytes=2**20))
    assert len(set(seen)) == 4


def test_data_may_grow_until_they_are_gone_through():
    assert difference(CLICKS, GROWN, samples_read=400) is None
    more = ("'clicks' with 400 samples", "'clicks' with 450 samples")
    assert difference(CLICKS, GROWN, samples_read=401) == more  # of the second epoch: samples have other numbers now
    assert difference(CLICKS, GROWN) == more


def test_shuffled_data_may_not_grow(tmp_path):
    then, now = shuffled(days(tmp_path / "a", 0)), shuffled(days(tmp_path / "b", 0, 10))
    assert difference(then, now, samples_read=5) == ("'a' with 10 samples", "'b' with 20 samples")


def shuffled(spec: object, *, seed: int = 7, window: int | None = 5) -> Identity:
    return identity_of(Epochs(open_source(str(spec)), seed=seed, window_samples=window), Path(str(spec)).name)


def test_how_data_are_read_belongs_to_them(tmp_path):
    folder = days(tmp_path / "a", 0)
    then = shuffled(folder)
    others = [shuffled(folder, seed=8), shuffled(folder, window=4), shuffled(folder, window=None)]
    others.append(shuffled(f"{folder}?fill=1"))
    assert [difference(then, now, samples_read=5) is None for now in (shuffled(folder), *others)] == [
        True,
        *4 * [False],
    ]


def test_text_is_known_by_its_lines_and_by_the_rows_of_its_tables(tmp_path):
    line = "\t".join(["1", *(["5"] * 13), *(["68fd1e64"] * 26)])
    (tmp_path / "a.tsv").write_text(f"{line}\n" * 3)
    (tmp_path / "b.tsv").write_text(f"{line}\n" * 2 + line.replace("68fd1e64", "68fd1e65") + "\n")
    assert difference(known(tmp_path / "a.tsv"), known(tmp_path / "b.tsv")) is not None
    assert difference(known(tmp_path / "a.tsv"), known(f"{tmp_path / 'a.tsv'}?rows=10")) is not None
    assert difference(known(tmp_path / "a.tsv"), known(tmp_path / "a.tsv")) is None


def test_random_data_are_known_by_what_is_drawn():
    assert difference(known("random:x=int64<10"), known("random:x=int64<10")) is None
    assert difference(known("random:x=int64<10"), known("random:x=int64<11")) is not None
    assert difference(known("random:x=int64<10"), known("random:y=int64<10")) == (
        "'random:x=int64<10' with columns x",
        "'random:y=int64<10' with columns y",
    )


def test_of_objects_only_columns_and_length_are_known():
    tensors = TensorSource({"x": torch.zeros(4)})
    assert identity_of(Epochs(tensors), "t") == Identity("t", ("x",), (Part(4),))


def test_an_iterable_is_known_by_its_first_item():
    items = [{"x": torch.arange(4.0), "y": torch.ones(4, 2, dtype=torch.bfloat16)}, {"x": torch.ones(1), "y": None}]
    one, same, other = (
        identity_of(IterableSource(given, is_batched=True), name)
        for given, name in ((items, "one"), (items[:1], "same"), ([{**items[0], "x": torch.ones(4)}], "other"))
    )
    assert difference(one, same, samples_read=100) is None
    told = difference(one, other)
    assert told is not None
    assert told[1].startswith("'other' with content ")


def test_names_are_shown_without_control_characters():
    odd = Identity("a\x1b[2J", ("x",), (Part(1),))
    assert difference(odd, CLICKS) == (r"'a\x1b[2J' with columns x", "'clicks' with columns ids, label")
