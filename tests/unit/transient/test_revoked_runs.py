"""Runs that lost machines, as `tools/bench_transient.py --runs` reads and scores them."""

import importlib
import sys
from pathlib import Path

import pytest

from heterps_compile.errors import InputError

TOOLS = Path(__file__).parents[3] / "tools"
HEADER = (
    "run,steps,steps_per_s,machines,checkpoint_every,checkpoint_s,checkpoint_mb,write_mb_per_s,start_up_s,lost_h,"
    "measured_s"
)


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    yield importlib.import_module("revoked_runs")
    sys.modules.pop("revoked_runs", None)


def file_of(tmp_path, *rows, header=HEADER):
    path = tmp_path / "runs.csv"
    path.write_text("\n".join([header, *rows]) + "\n", "utf-8")
    return path


def test_a_run_is_predicted_from_speed_sizes_and_lifetimes(tool, tmp_path):
    # 1000 steps of 1 s; a checkpoint of 200 MB at 20 MB/s behind every 100 of them; lost 0.1 h after it is up: 3
    # stretches of 110 s are kept of 360 s, 30 s are done again; another machine takes 60 s
    rows = list(
        tool.read_revoked(
            file_of(
                tmp_path,
                "stops,1000,1,2,100,,200,20,60,0.1|,1250",
                "nothing,1000,1,2,100,10,,,60,,1150",
            )
        )
    )
    assert [run.replayed_s() for run in rows] == pytest.approx([60 + 1000 + 90 + 30 + 60, 1150.0])
    assert [run.losses for run in rows] == [1, 0]
    assert [run.expected() for run in rows] == [None] * 2
    table = list(tool.print_revoked(rows))
    assert table[4] == "| stops | 1 | 1250.0 s | 1240.0 s | -0.8 % | - |"
    assert table[-1] == "Mean error 0.4 % with the lifetimes seen (wanted: 3 %); signed -0.4 %."


def test_rows_that_are_written_are_read_again_with_their_law(tool, tmp_path):
    row = {
        "run": "one", "steps": 500, "steps_per_s": 2.5, "machines": 1, "checkpoint_every": 50, "checkpoint_s": 1.5,
        "start_up_s": 4.0, "lost_h": "0.01 0.02", "measured_s": 300.0, "lifetime": "100s,0.9",
    }  # fmt: skip
    path = tmp_path / "runs.csv"
    path.write_text(tool.rows_text([row]), "utf-8")
    (run,) = tool.read_revoked(path)
    assert run.lives_hours == ((0.01, 0.02),)
    assert run.work.work_s == 200.0
    assert run.lifetime.shape == 0.9
    assert run.expected().time_s.mean > 200.0
    assert "by the law: mean" in list(tool.print_revoked([run]))[2]


@pytest.mark.parametrize(
    "row",
    [
        "a,1000,0,1,,,,,60,,100",
        "a,1000,1,1,100,,,,60,,100",
        "a,1000",
    ],
)
def test_rows_that_are_no_runs_are_refused_by_number(tool, tmp_path, row):
    with pytest.raises(InputError, match=r"runs\.csv.*row 2\b"):
        list(tool.read_revoked(file_of(tmp_path, row)))


def test_a_run_whose_rest_goes_on_is_refused(tool, tmp_path):
    with pytest.raises(InputError, match=r"row 2\b.*stops"):
        list(tool.read_revoked(file_of(tmp_path, "a,1000,1,1,,,,,60,,100,no", header=f"{HEADER},stops")))
