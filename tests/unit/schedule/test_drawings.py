"""Schedules against the drawings in their docstrings."""

from collections.abc import Sequence

import pytest
from simulated import simulate

from heterps_compile.errors import UnknownNameError
from heterps_compile.schedule import gpipe, interleaved, one_f_one_b, zero_bubble
from heterps_compile.schedule.names import SCHEDULES, orders
from heterps_compile.schedule.order import deal

GPIPE_TRAINING = """\
stage 0 | F0 F1 F2 F3 .  .  .  .  B0 B1 B2 B3
stage 1 | .  F0 F1 F2 F3 .  .  B0 B1 B2 B3 .
stage 2 | .  .  F0 F1 F2 F3 B0 B1 B2 B3 .  ."""

GPIPE_INFERENCE = """\
stage 0 | F0 F1 F2 F3 .  .
stage 1 | .  F0 F1 F2 F3 .
stage 2 | .  .  F0 F1 F2 F3"""

ONE_F_ONE_B = """\
stage 0 | F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3
stage 1 | .  F0 F1 .  B0 F2 B1 F3 B2 .  B3 .
stage 2 | .  .  F0 B0 F1 B1 F2 B2 F3 B3 .  ."""

ONE_F_ONE_B_REPLICAS = """\
stage 0, replica 0 | F0 -- F2 -- B0 -- .  .  B2 -- .  .
stage 0, replica 1 | F1 -- F3 -- .  .  B1 -- .  .  B3 --
stage 1            | .  .  F0 B0 F1 B1 F2 B2 F3 B3 .  ."""

ZERO_BUBBLE = """\
stage 0 | F0 -- F1 -- .  .  .  B0 -- -- -- F2 -- B1 -- -- -- F3 -- B2 -- -- -- .  .  .  B3 -- -- --
stage 1 | .  .  F0 -- B0 -- -- F1 -- B1 -- -- W0 -- F2 -- B2 -- -- W1 -- F3 -- B3 -- -- W2 -- W3 --"""

INTERLEAVED_TRAINING = """\
stage 0 | F0 F1 f0 f1 F2 b0 F3 b1 f2 B0 f3 B1 .  b2 .  b3 B2 B3
stage 1 | .  F0 F1 f0 b0 f1 b1 F2 B0 F3 B1 f2 b2 f3 b3 B2 B3 ."""

INTERLEAVED_INFERENCE = """\
stage 0 | F0 F1 f0 f1 F2 F3 f2 f3 .
stage 1 | .  F0 F1 f0 f1 F2 F3 f2 f3"""


def drawn(
    name: str,
    times_s: Sequence[int],
    replicas: Sequence[int],
    *,
    training: bool = True,
    backward_s: Sequence[int] | None = None,
) -> str:
    """Draw four micro-batches whose forward and, unless given, backward take so many slots in each stage."""
    timeline = simulate(
        orders(name, replicas, 4, training=training),
        times_s,
        (backward_s or times_s) if training else None,
        replicas=replicas,
    )
    slots = round(timeline.makespan_s)
    rows: dict[str, list[str]] = {}
    for span in timeline.spans:
        stage = f"stage {span.action.stage}"
        label = f"{stage}, replica {span.replica}" if replicas[span.action.stage] > 1 else stage
        row = rows.setdefault(label, ["."] * slots)
        row[round(span.start_s)] = str(span.action)
        for slot in range(round(span.start_s) + 1, round(span.end_s)):
            row[slot] = "--"
    width = max(map(len, rows))
    return "\n".join(
        f"{label:{width}} | " + " ".join(f"{cell:2}" for cell in row).rstrip() for label, row in rows.items()
    )


def in_docstring(drawing: str, module: object) -> bool:
    return "\n".join("    " + line for line in drawing.splitlines()) in (module.__doc__ or "")


@pytest.mark.parametrize(
    ("name", "times_s", "replicas", "training", "drawing"),
    [
        ("gpipe", (1, 1, 1), (1, 1, 1), True, GPIPE_TRAINING),
        ("gpipe", (1, 1, 1), (1, 1, 1), False, GPIPE_INFERENCE),
        ("1f1b", (1, 1, 1), (1, 1, 1), True, ONE_F_ONE_B),
        ("1f1b", (1, 1, 1), (1, 1, 1), False, GPIPE_INFERENCE),
        ("1f1b", (2, 1), (2, 1), True, ONE_F_ONE_B_REPLICAS),
    ],
)
def test_a_schedule_runs_as_drawn(name, times_s, replicas, training, drawing):
    assert drawn(name, times_s, replicas, training=training) == drawing


def test_zero_bubble_runs_as_drawn():
    assert drawn("zero-bubble", (2, 2), (1, 1), backward_s=(4, 4)) == ZERO_BUBBLE
    assert drawn("zero-bubble", (1, 1, 1), (1, 1, 1), training=False) == GPIPE_INFERENCE


def test_interleaved_runs_as_drawn():
    assert drawn("interleaved-1f1b", (2, 2), (1, 1)) == INTERLEAVED_TRAINING
    assert drawn("interleaved-1f1b", (2, 2), (1, 1), training=False) == INTERLEAVED_INFERENCE


def test_the_docstrings_show_the_same_drawings():
    assert in_docstring(GPIPE_TRAINING, gpipe)
    assert in_docstring(GPIPE_INFERENCE, gpipe)
    assert in_docstring(ONE_F_ONE_B, one_f_one_b)
    assert in_docstring(ONE_F_ONE_B_REPLICAS, one_f_one_b)
    assert in_docstring(ZERO_BUBBLE, zero_bubble)
    assert in_docstring(INTERLEAVED_TRAINING, interleaved)
    assert in_docstring(INTERLEAVED_INFERENCE, interleaved)


def test_replicas_are_dealt_micro_batches_in_turn():
    order = orders("1f1b", (2, 1), 4, training=True)[0]
    assert [" ".join(map(str, part)) for part in (order, deal(order, 0, 2), deal(order, 1, 2))] == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F2 B0 B2",
        "F1 F3 B1 B3",
    ]


def test_an_unknown_schedule_is_named_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"'1f1'.*'1f1b'"):
        orders("1f1", (1,), 1, training=False)


def test_schedules_are_found_by_the_names_plans_use():
    assert set(SCHEDULES) == {"gpipe", "1f1b", "interleaved-1f1b", "zero-bubble"}
