"""A search of the example of ``docs/tuning.md``, begun as a process that tests kill parts of."""

import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

from processes import PATIENCE_S, end_of, wait_for

from heterps_compile.tuning.journal import Failed, Started, Told, read_journal
from heterps_compile.tuning.search_state import SearchState, read_search

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tuning.md").read_text("utf-8")
FILES = {
    name: PAGE.partition(f"`{name}`:\n\n```")[2].partition("\n")[2].partition("```")[0]
    for name in ("space.toml", "model.py", "train.py")
}
"""The files of the page's example."""

TRAIN = FILES["train.py"]
WORDS = (
    "tune", "space.toml", "--model", "model.py", "--train", "train.py", "--metric", "accuracy", "--max",
    "--fidelity", "4:16:steps", "--eta", "2", "-o", "run",
)  # fmt: skip


def written(folder: Path, train: str = TRAIN) -> Path:
    for name, text in {**FILES, "train.py": train}.items():
        (folder / name).write_text(text)
    return folder


def told(folder: Path) -> list[int]:
    return [event.trial for event in read_journal(folder / "run").events if isinstance(event, Told)]


def process_of(folder: Path, trial: int) -> int | None:
    """Return the process of a trial that began, as its output says it."""
    output = folder / "run" / "trials" / str(trial) / "attempt-0" / "output.txt"
    lines = output.read_text().splitlines() if output.exists() else []
    return int(lines[0].removeprefix("process ")) if lines else None


def kill_trial(folder: Path, trial: int, process: "subprocess.Popen[str]") -> None:
    wait_for(lambda: process_of(folder, trial) is not None, process)
    found = process_of(folder, trial)
    assert found is not None, end_of(process, PATIENCE_S)
    os.kill(found, signal.SIGKILL)


def check_nothing_ran_twice(folder: Path) -> SearchState:
    events = read_journal(folder / "run").events
    ended = Counter(event.trial for event in events if isinstance(event, Told))
    assert set(ended.values()) == {1}
    after: set[int] = set()
    for event in events:
        if isinstance(event, Told):
            after.add(event.trial)
        elif isinstance(event, Started | Failed):
            assert event.trial not in after
    return read_search(folder / "run")
