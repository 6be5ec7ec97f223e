"""The training day with its table on parameter servers, which are killed; smaller than the page's.

After each kill the run goes on from its last checkpoint. It ends where the undisturbed day ends, to the last bit, and
every sample counts once an epoch.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from counted_rows import MODEL, TRAIN, times_seen
from processes import PATIENCE_S, end_of, ranks_of
from typed_pages import FILE

PAGE = Path(__file__).parents[2] / "docs" / "training-day.md"
STEPS, EVERY = 40, 10  # two epochs of 20 steps
SMALLER = """
import pyarrow.parquet as pq
from make_data import clicks
pq.write_table(clicks(20_000), "clicks.parquet")
pq.write_table(clicks(4_000), "held_back.parquet")
"""
BOTH = ("undisturbed", "disturbed")
ON_SERVERS = "--parameter-servers 2 --every 10 --keep 100"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # runs of five processes


def run_python(folder: Path, *words: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def run_killing(folder: Path, words: str, *kills: tuple[int, int]) -> str:
    """Run, and kill servers: of each pair, which from the end, once there is a checkpoint of so many steps.

    Returns:
        What was printed.
    """
    run = subprocess.Popen(
        [sys.executable, "-m", "heterps_compile", "run", *words.split()],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    checkpoints = folder / words.partition("--checkpoint ")[2].split()[0]
    for which, step in kills:
        deadline_s = time.monotonic() + PATIENCE_S
        while not (checkpoints / f"step-{step:06d}" / "state.json").exists() and run.poll() is None:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        os.kill(ranks_of(run.pid)[which], signal.SIGKILL)
    code, told, _ = end_of(run, PATIENCE_S)
    assert code == 0, told
    return told


@pytest.fixture(scope="module")
def day(tmp_path_factory) -> Path:
    """Return a folder with the page's files and model, and less data."""
    folder = tmp_path_factory.mktemp("day")
    for name, content in FILE.findall(PAGE.read_text("utf-8")):
        (folder / name).write_text(content, "utf-8")
    run_python(folder, "-c", SMALLER)
    run_python(folder, "compile_it.py")
    return folder


@pytest.mark.kill("a server of tables")
def test_the_day_ends_alike_when_each_server_is_killed_in_turn(day):
    words = (
        f"click.heterps --train train.py --data clicks.parquet --epochs 2 --replicas 1,1 --validate held_back.parquet "
        f"--validate-every 20 --keep-best auc:max {ON_SERVERS} --server-optimizer adagrad --server-learning-rate 0.1 -q"
    )
    run_killing(day, f"{words} --checkpoint {BOTH[0]}")
    told = run_killing(day, f"{words} --checkpoint {BOTH[1]} --restarts 2 --log log.jsonl", (-1, 10), (-2, 30))
    first, second, *_ = [line for line in told.splitlines() if "was killed by SIGKILL" in line]
    assert first.startswith("parameter server 1 (rank 3) was killed by SIGKILL")
    assert second.startswith("parameter server 0 (rank 2) was killed by SIGKILL")
    assert f"{STEPS} steps, {STEPS * 1000:,} samples\n2 restarts after a failed process\n" in told
    steps = [line["step"] for line in map(json.loads, (day / "log.jsonl").read_text().splitlines()) if "loss" in line]
    assert set(steps) == set(range(STEPS))
    for step in range(EVERY, STEPS + 1, EVERY):
        found = [json.loads((day / of / f"step-{step:06d}" / "servers" / "servers.json").read_text()) for of in BOTH]
        found = [[table["sha256"] for table in one["tables"]] for one in found]
        assert found[0] == found[1], step
    metrics = [json.loads((day / of / f"step-{STEPS:06d}" / "state.json").read_text())["metrics"] for of in BOTH]
    assert metrics[0] == metrics[1]
    assert metrics[0]["auc"] > 0.5


def test_every_sample_counts_once_an_epoch_where_the_only_holder_of_rows_is_killed(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "train.py").write_text(f"HOLD = {str(tmp_path / 'hold')!r}\n{TRAIN}")
    run_python(tmp_path, "model.py", "two")
    told = run_killing(
        tmp_path,
        "two --train train.py --data x.parquet --epochs 2 --batch 32 --micro-batches 2 --replicas 1,1 --checkpoint ck "
        f"{ON_SERVERS} --server-learning-rate 32 --restarts 1 -q",
        (-1, 10),
    )
    assert "96 steps, 3,072 samples\n1 restart after a failed process\n" in told
    assert times_seen(tmp_path / "ck" / "step-000096") == {2}
