"""Short forms of names: distinct, no wider than their room, and abbreviations of the names."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_compile.columns.short_names import short_names
from heterps_compile.escape import printable
from heterps_compile.fit_lines import cells

PART = st.sampled_from(["model", "encoder", "layers", "self_attn", "q_proj", "k_proj", "0", "1", "11", "x" * 30])
PATHS = st.lists(st.lists(PART, min_size=1, max_size=7).map(".".join), min_size=1, max_size=40)


@given(names=st.lists(st.text(max_size=60), max_size=30) | PATHS, width=st.integers(8, 40))
def test_names_that_differ_stay_so_and_fit(names, width):
    short = short_names(dict.fromkeys(names, width))
    assert list(short) == list(dict.fromkeys(names))
    assert len(set(short.values())) == len(short)
    assert max(map(cells, short.values()), default=0) <= width
    assert all(text.isprintable() for text in short.values())


@given(names=PATHS, width=st.integers(20, 40))
def test_a_short_form_is_the_name_or_abbreviates_it(names, width):
    short = short_names(dict.fromkeys(names, width))
    for name, text in short.items():
        kept = re.sub(r"#\d+$", "", text)
        if cells(printable(name)) <= width:
            assert text == name
        else:
            assert re.fullmatch(".*".join(map(re.escape, kept.split("…"))), name) or kept != text


@settings(max_examples=20)
@given(layers=st.integers(2, 110), width=st.integers(20, 30))
def test_siblings_need_no_number(layers, width):
    names = [
        f"model.encoder.layers.{i}.{part}" for i in range(layers) for part in ("self_attn.q_proj", "self_attn.k_proj")
    ]
    short = short_names(dict.fromkeys(names, width))
    assert not any("#" in text for text in short.values())
    assert all(f"…{name.split('.')[3]}." in text or f".{name.split('.')[3]}." in text for name, text in short.items())


def test_forms_that_people_see():
    names = [f"model.encoder.layers.0.self_attn.{part}_proj" for part in "qk"]
    assert list(short_names(dict.fromkeys(names, 20)).values()) == ["…0.self_attn.q_proj", "…0.self_attn.k_proj"]
    names = [f"/tower/blocks.{i}/mlp/dense/MatMul" for i in (0, 1)]
    assert list(short_names(dict.fromkeys(names, 18)).values()) == ["…0/…dense/MatMul", "…1/…dense/MatMul"]
