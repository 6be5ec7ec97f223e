"""tools/bench_sync.py prints what is expected beside what is measured, and fails where they differ."""

import importlib
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

TOOLS = Path(__file__).parents[5] / "tools"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    yield importlib.import_module("bench_sync")
    for name in ("bench_sync", "sync_laws", "sync_runs", "sync_tasks", "sync_picture", "sync_processes"):
        sys.modules.pop(name, None)


def run(bench, monkeypatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["bench_sync.py", *words])
    return bench.main()


def test_lines_that_hold_end_with_0(bench, monkeypatch, capsys):
    assert run(bench, monkeypatch, "--only", "norms,shadow") == 0
    printed = capsys.readouterr().out
    assert "| shadow | foreground over shadow, 10 ms, 40 ms, every 5 | 1.8 | 1.8 | yes |" in printed
    assert re.search(r"^0 differ", printed, re.MULTILINE)


def test_a_line_that_does_not_hold_ends_with_1(bench, monkeypatch, capsys):
    monkeypatch.setitem(
        bench.LAWS, "shadow", lambda: iter([bench.Line.near("shadow", "time", 1.8, 1.7, 0.05, "a law")])
    )
    assert run(bench, monkeypatch, "--only", "shadow") == 1
    printed = capsys.readouterr().out
    assert "| shadow | time | 1.8 | 1.7 | **no** | a law |" in printed
    assert "1 differ" in printed


def test_a_law_that_nobody_knows_is_refused(bench, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(bench, monkeypatch, "--only", "shadows")
    assert "unknown law 'shadows'" in capsys.readouterr().err


def test_a_short_training_counts_the_bytes_that_are_planned_and_is_drawn(bench):
    """Under every rule; losses of 16 steps say nothing, and are not looked at."""
    click_task = replace(bench.tasks(0.016)[0], samples=8)
    ended = [bench.train(click_task, rule) for rule in bench.RULES]
    assert [one.sent_bytes for one in ended] == [one.planned_bytes for one in ended]
    assert [one.sent_bytes > 0 for one in ended] == [one.rule.period_steps <= 16 for one in ended]
    assert [line.holds for line in bench.byte_lines(click_task, ended)] == [True]
    drawn = bench.run_picture({"clicks": ended})
    assert drawn.svg.count("<path") == 2 * 8


def test_areas_under_curves(bench):
    """Of the pairs of a positive and a negative, how many are in order: 3 of 4."""
    auc = sys.modules["sync_runs"].auc
    scores, labels = torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0.0, 0.0, 1.0, 1.0])
    assert auc(scores, labels) == pytest.approx(0.75)
