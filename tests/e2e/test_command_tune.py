"""``heterps-compile tune`` for real: trials of a small model of clicks, workers and drivers that are killed."""

import json
import os
import runpy
import signal
from pathlib import Path

import pytest
import torch
from commands import heterps
from processes import PATIENCE_S, begin_command, end_of, wait_for
from safetensors.torch import load_file
from tuned import TRAIN, WORDS, check_nothing_ran_twice, kill_trial, told, written
from wording import names

from heterps_compile.tuning.search_state import FAILED, TOLD, read_search

pytestmark = pytest.mark.slow  # every trial is a training run


def test_a_search_runs_and_its_best_weights_are_those_of_its_best_trial(tmp_path):
    done = heterps(*WORDS, "--trials", "7", "--workers", "core=1x1", "--report", "page.html", cwd=written(tmp_path))
    assert done.returncode == 0, done.stderr
    state = read_search(tmp_path / "run")
    assert (state.count(TOLD), state.ended_why) == (7, "all 7 trials ended")
    assert any(trial.continues is not None for trial in state.trials)
    assert "7 of 7 finished" in done.stdout
    assert "<svg" in (tmp_path / "page.html").read_text("utf-8")
    best = state.best
    assert best is not None
    assert names(done.stderr, f"trial {best.number}")
    weights = load_file(tmp_path / "run" / "best.safetensors")
    assert accuracy_of(tmp_path, best.config["model.width"], weights) == pytest.approx(best.value, abs=1e-6)
    shown = heterps("tune", "--show", "run", cwd=tmp_path)
    assert (shown.returncode, shown.stdout) == (0, done.stdout)


def accuracy_of(folder: Path, width: object, weights: dict[str, torch.Tensor]) -> float:
    """Return the accuracy of the whole model with some weights, by the files of the search alone."""
    files = {name: runpy.run_path(str(folder / f"{name}.py")) for name in ("model", "train")}
    model, _ = files["model"]["build"]({"width": width})
    model.load_state_dict(weights)
    with torch.no_grad():
        right = [
            ((model(batch["ids"], batch["numbers"]) > 0) == (batch["label"] > 0)).float().mean()
            for batch in files["train"]["validation_data"]()
        ]
    return float(torch.stack(right).mean())


def test_a_promoted_trial_ends_where_a_whole_one_ends(tmp_path):
    """What trains on from checkpoints sees the same batches as one that trains at once."""
    done = heterps(*WORDS, "--trials", "9", "--method", "hyperband", "--workers", "core=1x1", cwd=written(tmp_path))
    assert done.returncode == 0, done.stderr
    state = read_search(tmp_path / "run")
    promoted = next(trial for trial in state.trials if trial.continues is not None)
    values = {name.partition(".")[2]: value for name, value in promoted.config.items() if name.startswith("train.")}
    log = tmp_path / "log.jsonl"
    (plan,) = {
        json.loads((tmp_path / "run" / "trials" / str(promoted.number) / "attempt-0" / "job.json").read_text())["plan"]
    }
    whole = heterps(
        "run", plan, "--train", "train.py", "--steps", f"{promoted.fidelity:.0f}", "--log", log, "-q",
        cwd=tmp_path, HETERPS_TRIAL_VALUES=json.dumps(values),
    )  # fmt: skip
    assert whole.returncode == 0, whole.stderr
    found = [json.loads(line) for line in log.read_text().splitlines() if "validation" in line]
    assert found[-1]["validation"]["accuracy"] == pytest.approx(promoted.value, abs=1e-6)


def test_a_killed_trial_is_started_again_and_a_broken_one_is_left(tmp_path):
    """The process of the first trial is killed once; trials of SGD raise an error in their second step."""
    slow = tmp_path / "slow"
    train = TRAIN + (
        "\nimport os, time\n\ndef on_step(report):\n"
        f"    while os.path.exists({str(slow)!r}):\n        time.sleep(0.01)\n"
        '    if values["optimizer"] == "sgd" and report.step == 2:\n        raise ValueError("no such gradient")\n'
    )
    slow.touch()
    process = begin_command(
        written(tmp_path, train), *WORDS, "--trials", "4", "--workers", "core=1x1", "--method", "random"
    )
    kill_trial(tmp_path, 0, process)
    slow.unlink()
    code, out, err = end_of(process, PATIENCE_S)
    assert code == 0, err + out
    state = read_search(tmp_path / "run")
    assert "its process was killed by signal 9" in err
    assert state.trials[0].attempts[0].reason == "its process was killed by signal 9"
    for trial in state.trials:
        if trial.config["train.optimizer"] == "sgd":
            assert trial.status == FAILED
            assert "no such gradient" in trial.reason
        else:
            assert trial.status == TOLD
    assert {trial.status for trial in state.trials} == {FAILED, TOLD}


def test_after_sigkill_of_everything_nothing_that_ended_is_lost_or_run_again(tmp_path):
    process = begin_command(written(tmp_path), *WORDS, "--trials", "6", "--method", "random")
    wait_for(lambda: len(told(tmp_path)) >= 2, process)
    os.kill(process.pid, signal.SIGKILL)
    end_of(process, PATIENCE_S)
    before = told(tmp_path)
    assert before
    done = heterps("tune", "-o", "run", "--resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    state = check_nothing_ran_twice(tmp_path)
    assert state.count(TOLD) == 6
    assert told(tmp_path)[: len(before)] == before
    assert len(state.resumed_at_s) == 1


def test_ctrl_c_ends_with_how_to_go_on(tmp_path):
    process = begin_command(written(tmp_path), *WORDS, "--trials", "500", "--workers", "core=1x1")
    wait_for(lambda: bool(told(tmp_path)), process)
    second = heterps("tune", "-o", "run", "--resume", cwd=tmp_path)
    process.send_signal(signal.SIGINT)
    code, out, err = end_of(process, PATIENCE_S)
    assert code == 130, err + out
    assert "the search goes on with: heterps-compile tune -o run --resume\n" in err
    assert "Traceback" not in err
    assert second.returncode == 1
    assert names(second.stderr, "Error: ", "process", "run")
    assert read_search(tmp_path / "run").ended_why == "it was interrupted"
