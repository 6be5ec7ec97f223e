"""tools/bench_sync.py prints what is expected beside what is measured, and fails where they differ."""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

TOOLS, DOCS = (Path(__file__).parents[4] / name for name in ("tools", "docs"))


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    yield importlib.import_module("bench_sync")
    for name in [name for name in sys.modules if name == "bench_sync" or name.startswith("sync_")]:
        sys.modules.pop(name, None)


@pytest.fixture
def tasks(bench):
    return importlib.import_module("sync_tasks")


def run(bench, monkeypatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["bench_sync.py", *words])
    return bench.main()


def test_the_laws_of_the_rules_hold(bench, monkeypatch, capsys):
    assert run(bench, monkeypatch, "--only", "blocks") == 0
    printed = capsys.readouterr().out
    assert "| local | blocks alike, 2 cycles: loss of mm over the last average | 2.88874 | 2.88874 | yes |" in printed
    assert re.search(r"^0 differ", printed, re.MULTILINE)


def test_a_line_that_does_not_hold_ends_with_1(bench, monkeypatch, capsys):
    monkeypatch.setitem(
        bench.LAWS, "blocks", lambda: iter([bench.Line.near("shadow", "time", 1.8, 1.7, 0.05, "a law")])
    )
    assert run(bench, monkeypatch, "--only", "blocks") == 1
    printed = capsys.readouterr().out
    assert "| shadow | time | 1.8 | 1.7 | **no** | a law |" in printed
    assert "1 differ" in printed


def small(tasks):
    """Return 16 steps of 8 samples a replica, whose losses say nothing."""
    draw = tasks.Clicks().draw
    return tasks.Task("clicks", tasks.ClickModel, draw, draw(64, 1_000_000), tasks.click_loss, 8, 16, 2e-2)


def test_a_short_training_counts_the_bytes_that_are_planned_and_is_drawn(bench, tasks):
    """Under every rule."""
    click_task = small(tasks)
    ended = [bench.train(click_task, rule) for rule in bench.RULES]
    assert [one.sent_bytes for one in ended] == [one.planned_bytes for one in ended]
    assert [one.sent_bytes > 0 for one in ended] == [one.rule.period_steps <= 16 for one in ended]
    assert [line.holds for line in bench.byte_lines(click_task, ended)] == [True]
    drawn = bench.run_picture({"clicks": ended})
    assert drawn.svg.count("<path") == 2 * 8


def test_the_day_is_that_of_the_page(tasks):
    source = re.search(
        r"^# make_data.py\n.*?^```", (DOCS / "training-day.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert source is not None
    known: dict[str, Any] = {"__name__": "make_data"}
    exec(source[0].removesuffix("```"), known)  # noqa: S102 - our own page
    day = tasks.Day(300, 100)
    for ours, theirs in zip((day.train, day.held_back), (known["clicks"](300), known["clicks"](100)), strict=True):
        for tensor, column in zip(ours, ("ids", "numbers", "label"), strict=True):
            assert tensor.tolist() == theirs[column].to_pylist()
    assert [part.tolist() for part in day.draw(100, 4)] == [part[100:200].tolist() for part in day.train]
