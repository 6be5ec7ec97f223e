"""``launch --on slurm`` with Slurm's own controller and two nodes: the script that is submitted runs."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import PATIENCE_S, begin_command, end_of, wait_for_lines
from slurm_cluster import NoSlurmError, slurm_cluster
from written_ctrdnn import (
    BATCH,
    DATA,
    MICRO_BATCHES,
    largest_difference,
    trained_in_one_process,
    weights_in,
    write_ctrdnn,
)

pytestmark = pytest.mark.slow  # a scheduler of its own, and ranks that start cold

STEPS = 4
ROOT = Path(__file__).parents[2]
RUN = ("--train", "train.py", "--data", DATA, "--batch", str(BATCH), "--micro-batches", str(MICRO_BATCHES))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A compiled folder of two device types, and the environment that knows the cluster."""
    folder = tmp_path_factory.mktemp("slurm")
    write_ctrdnn(folder, dense_backend="torch")
    (folder / "shared").mkdir()
    try:
        with slurm_cluster(tmp_path_factory.mktemp("controller")) as environment:
            yield folder, environment
    except NoSlurmError as error:
        pytest.skip(f"no Slurm here: {error}")


def begin(cluster, *words: str) -> "subprocess.Popen[str]":
    folder, environment = cluster
    where = ("--partition", "cpu-core=batch", "--partition", "v100=accelerated", "--gpu-type", "v100=tesla")
    shared = ("--python", sys.executable, "--shared", "shared", "--replicas", "1,2")
    start = ("launch", "torch.heterps", "--on", "slurm", *where, *shared)
    return begin_command(folder, *start, *RUN, *words, environment=environment)


@pytest.mark.component("Slurm")
def test_a_heterogeneous_job_trains_as_one_process(cluster, tmp_path):
    process = begin(cluster, "--steps", str(STEPS), "--checkpoint", str(tmp_path / "ck"))
    code, out, err = end_of(process, PATIENCE_S)
    assert code == 0, err + out
    assert f"{STEPS} steps, {STEPS * BATCH} samples" in out
    ours = weights_in(tmp_path / "ck" / f"step-{STEPS:06d}")
    assert largest_difference(ours, trained_in_one_process(STEPS)) < 1e-6
    (run,) = (cluster[0] / "shared").iterdir()
    assert ((run / "hosts.toml").stat().st_mode & 0o777, run.stat().st_mode & 0o777) == (0o600, 0o700)
    secret = (run / "hosts.toml").read_text().split('"')[1]
    assert secret not in (run / "run.sbatch").read_text() + (run / "log.txt").read_text()


def test_ctrl_c_ends_the_job_after_the_step_with_a_checkpoint(cluster, tmp_path):
    log, ck = tmp_path / "log.jsonl", tmp_path / "ck"
    process = begin(cluster, "--steps", "1000000", "--log", str(log), "--checkpoint", str(ck))
    wait_for_lines(log, process)
    process.send_signal(signal.SIGINT)
    code, out, err = end_of(process, PATIENCE_S)
    assert code == 130, err + out
    assert list(ck.glob("step-*"))
    left = subprocess.run(["squeue", "--noheader"], env=cluster[1], capture_output=True, text=True, check=True)
    assert left.stdout == ""
