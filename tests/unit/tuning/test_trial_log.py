"""Validations of a trial are read as they come, whatever else its log has in it."""

import json
from pathlib import Path

from heterps_compile.tuning.trial_log import LOG_FILE, TrialLog, values_of


def line(steps: object, **metrics: object) -> str:
    return json.dumps({"validation": metrics, "after_steps": steps}) + "\n"


def test_only_what_is_new_is_read_and_half_a_line_waits(tmp_path: Path) -> None:
    log, path = TrialLog(tmp_path), tmp_path / LOG_FILE
    assert log.read() == []
    whole = line(8, loss=1.0, auc=0.7)
    path.write_text('{"step": 7}\n' + line(4, auc=0.5) + whole[:20])
    assert values_of(log.read(), "auc") == [(4, 0.5)]
    assert log.read() == []
    with path.open("a") as file:
        file.write(whole[20:])
    assert values_of(log.read(), "auc") == [(8, 0.7)]


def test_lines_that_are_no_validations_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / LOG_FILE).write_bytes(
        b'\xff\x00\n{"validation"\n'
        + line("many", auc=0.5).encode()
        + line(-1, auc=0.5).encode()
        + line(True, auc=0.5).encode()
        + line(1, auc="nan").encode()
        + line(2, other=0.5).encode()
        + b'{"validation": '
        + b"[" * 100_000
        + b"\n"
        + line(3, auc=0.6).encode()
    )
    assert values_of(TrialLog(tmp_path).read(), "auc") == [(3, 0.6)]
    assert [steps for steps, _ in TrialLog(tmp_path).read()] == [1, 2, 3]


def test_a_line_without_an_end_does_not_stop_what_follows(tmp_path: Path) -> None:
    log = TrialLog(tmp_path)
    (tmp_path / LOG_FILE).write_bytes(b"x" * 5_000_000 + b"\n" + line(3, auc=0.6).encode())
    assert log.read() == [(3, {"auc": 0.6})]
