"""A plan as commands and print show it: at a glance in 25 lines, in full, in one line."""

import io
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import PLAN, with_stage

from heterps_compile.columns.column import Medium, pairs
from heterps_compile.compiled_model import CompiledModel
from heterps_compile.console import make_console
from heterps_compile.fit_lines import cells
from heterps_compile.ir.default_size import DefaultSize
from heterps_compile.plan.plan import Artifact, notes_of
from heterps_compile.plan.plan_view import plan_text, print_at_a_glance, print_in_full
from heterps_compile.plan.total_columns import TOTALS, Summary

SAVED = replace(PLAN, artifacts=((Artifact("stage_0.onnx", "d" * 64),), (Artifact("stage_1.onnx", "e" * 64),)))
MANY = replace(
    PLAN, stages=tuple(replace(PLAN.stages[i % 2], index=i, layers=(f"fc{i}",)) for i in range(300))
)  # more stages than a screen has lines


def totals(plan, medium=Medium.DETAILS) -> dict[str, str]:
    return dict(pairs(TOTALS, Summary(plan), medium, plan.currency))


def at_a_glance(plan=SAVED, width=80, **facts) -> str:
    stream = io.StringIO()
    print_at_a_glance(make_console(stream, width), Summary(plan, **facts))
    return stream.getvalue()


def in_full(plan=SAVED, width=120) -> str:
    stream = io.StringIO()
    print_in_full(make_console(stream, width), Summary(plan, "ctr.heterps"), layers=None, file_sha256="f" * 64)
    return stream.getvalue()


def test_a_plan_at_a_glance(golden):
    chosen = replace(SAVED, bindings={**SAVED.bindings, "N": DefaultSize(64, is_batch=True)})
    golden("report/glance.txt", at_a_glance(chosen, directory="ctr.heterps"))


def test_a_plan_in_full(golden):
    golden("report/in_full.txt", in_full())


def test_print_shows_the_glance():
    printed = at_a_glance(PLAN).rstrip("\n").replace("more note: -v", "more note: heterps-compile show -v")
    assert str(PLAN) == plan_text(Summary(PLAN)) == printed
    compiled = CompiledModel(PLAN, (), signature=cast(Any, None))
    assert str(compiled) == str(PLAN)
    assert repr(compiled) == f"CompiledModel({PLAN!r})"


def test_of_many_stages_the_first_and_the_last_ones_are_shown():
    lines = at_a_glance(MANY, directory="out").splitlines()
    assert len(lines) <= 25
    (more,) = (line.strip() for line in lines if "more;" in line)
    shown = [int(line.split()[0]) for line in lines if line.split()[:1] and line.split()[0].isdecimal()]
    hidden = 300 - len(shown)
    assert more == f"… {hidden} more; -v shows all"
    first = next(i for i, stage in enumerate(shown) if stage != i)
    assert shown[first:] == [*range(first + hidden, 300)]


def test_in_full_shows_every_stage_and_every_note():
    notes = tuple(f"note number {i} " + "of so many words " * 20 for i in range(9))
    text = in_full(replace(MANY, notes=notes), 80)
    assert all(f"fc{i}" in text for i in range(300))
    words = " ".join(text.split())
    assert all(" ".join(note.split()) in words for note in notes)
    assert f"--expect-sha256: {'f' * 64}" in words


def test_a_note_that_is_cut_says_where_it_is_whole():
    plan = replace(PLAN, notes=("word " * 100,), unused_devices=(), replicated=(), other=None)
    assert at_a_glance(plan).splitlines()[-1] == "notes in full: -v"
    assert " …\n" in at_a_glance(plan)


def test_warnings_are_whole_and_come_before_notes():
    warning = "not verified: " + "because of this " * 12
    text = at_a_glance(replace(PLAN, verification=None, notes=("one", "two", "three", "four", warning)))
    assert " ".join(warning.split()) in " ".join(text.split())
    assert text.index("warning: not verified") < text.index("note: one")
    assert "verified         no (see the notes)" in text


names = st.one_of(st.text(min_size=1, max_size=8), st.just("a/b." * 100), st.just("x" * 500))


@settings(max_examples=12)
@given(
    stages=st.integers(2, 60),
    words=st.lists(names, min_size=2, max_size=6, unique=True),
    notes=st.lists(st.text(max_size=400), max_size=8),
    budget=st.none() | st.just(123456.0),
    mode=st.sampled_from(["training", "inference"]),
)
def test_any_plan_fits_25_lines(stages, words, notes, budget, mode):
    plan = replace(
        PLAN,
        model=words[0],
        notes=tuple(f"n {note}" for note in notes),
        request=replace(PLAN.request, budget_per_hour=budget, mode=mode),
        stages=tuple(
            replace(PLAN.stages[i % 2], index=i, device=words[i % len(words)], layers=tuple(f"{w}{i}" for w in words))
            for i in range(stages)
        ),
    )
    for width in (80, 120):
        lines = at_a_glance(plan, width, directory="out").splitlines()
        assert len(lines) <= 25
        assert max(map(cells, lines)) <= width


@pytest.mark.parametrize("width", [20, 80, 99, 100, 120, 300])
def test_no_line_is_wider_than_the_terminal_and_none_ends_in_spaces(width):
    names = ("encoder.layer.10." * 20, "x" * 500)
    plan = with_stage(SAVED, 1, layers=names, device="d" * 64)
    for text in (at_a_glance(plan, width, directory="out"), in_full(plan, width)):
        assert max(map(len, text.splitlines())) <= max(80, width)
        assert [line for line in text.splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize("evil", ["\x1b[31mred\x07", "[red]x[/red]", "[/]", "a\nb", ":smile:", "\u202eabc", "\ud800"])
def test_a_name_is_text_and_nothing_else(evil):
    plan = replace(with_stage(SAVED, 0, layers=(evil,), device=evil), model=evil, unused_devices=(evil,), notes=(evil,))
    for text in (at_a_glance(plan, None, directory=evil), in_full(plan, None)):
        assert text.replace("\n", "").isprintable()
        assert evil in text or not evil.isprintable()


def test_an_ascii_terminal_gets_ascii_lines():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="backslashreplace")
    print_at_a_glance(make_console(stream, None), Summary(SAVED))
    stream.flush()
    assert b"\\u" not in stream.buffer.getvalue()


@pytest.mark.parametrize(
    ("changes", "line", "said"),
    [
        ({}, "proven bound", "0.05 USD per million samples: no plan that keeps these 3 layers in this order is more"),
        ({"bound": PLAN.value}, "proven bound", "0.0503 USD per million samples: no plan that keeps these 3 layers"),
        ({"bound": 0.0}, "proven bound", "none"),
        ({"verification": None}, "verified", "no (--no-verify)"),
        ({"currency": "EUR"}, "price", "2.90 EUR/h, 0.0503 EUR per million samples (steady state)"),
        ({}, "steady state", "16,000 samples/s, a batch every 4 ms (floor 1,000)"),
        ({}, "one batch alone", "7,111 samples/s, step 9 ms"),
        ({}, "verified", "equal on 1 input, largest difference 1.5e-07 (2.5e-07 of the scale)"),
    ],
)
def test_the_totals_say(changes, line, said):
    assert totals(replace(SAVED, **changes))[line].startswith(said)


def test_readings_that_agree_are_one_line():
    one = replace(PLAN.stages[0], times=())
    plan = replace(PLAN, stages=(one,), schedule=replace(PLAN.schedule, step_s=one.time_s, micro_batches=1))
    rows = totals(plan, Medium.GLANCE)
    assert rows["throughput"] == "16,000 samples/s, a batch every 4 ms (floor 1,000)"
    assert not {"steady state", "one batch alone"} & set(rows)
    assert not {"throughput"} & set(totals(PLAN))


def test_a_training_run_below_the_floor_is_said_to_be_below_it():
    asked = replace(PLAN.request, mode="training", reading="steady-state", min_throughput=8000.0)
    rows = totals(replace(PLAN, request=asked))
    assert rows["one batch alone"].endswith("(a training step, below the floor)")
    assert rows["steady state"].endswith("(floor 8,000)")


def test_a_plan_of_the_best_step_is_held_to_the_floor_there_and_says_what_the_steady_state_proves():
    asked = replace(PLAN.request, mode="training", min_throughput=7000.0)
    rows = totals(replace(PLAN, request=asked))
    assert rows["one batch alone"].endswith("(a training step, floor 7,000)")
    assert "floor" not in rows["steady state"]
    assert rows["price"].endswith("0.113 USD per million samples (one batch alone)")
    assert rows["steady bound"] == "the steady state alone proves 0.01 USD per million samples"


def test_the_latency_of_the_search_is_told_from_one_batch_alone():
    rows = totals(replace(PLAN, value=0.02, request=replace(PLAN.request, objective="latency")))
    assert rows["latency"] == "20 ms a batch, undivided, computation and data one after the other"
    assert "step 9 ms" in rows["one batch alone"]


def test_every_surprise_is_a_note():
    plan = replace(PLAN, replicated=("a", "b", "c", "d", "e"))
    assert notes_of(plan) == [
        "layer 'fc2': float8 runs at its float32 rate on 'cpu'",
        "no stage uses 't4'",
        "several stages hold 'a', 'b', 'c' and 2 more",
        "the cheapest hourly bill that meets the floor is 0.8 USD/h (-72.4 %), on 20 x cpu at 1,100 samples/s: "
        "--objective price",
    ]


def test_a_repr_is_one_line():
    assert repr(PLAN) == "Plan('ctr', inference, 12 x cpu | 1 x v100, 2.90 USD/h)"
    assert repr(MANY).startswith("Plan('ctr', inference, 12 x cpu | 1 x v100 | 12 x cpu | 297 more, ")
    assert len(repr(replace(PLAN, model="a\x1b[31m\nb" + "x" * 300))) < 120
