"""``launch --on ray`` on a cluster of Ray's own making: two nodes of this machine, with a custom resource each."""

import signal
import subprocess
from pathlib import Path

import pytest
from processes import PATIENCE_S, begin_command, end_of, wait_for, wait_for_lines, wait_until_gone
from written_ctrdnn import (
    BATCH,
    DATA,
    MICRO_BATCHES,
    largest_difference,
    trained_in_one_process,
    weights_in,
    write_ctrdnn,
)

pytestmark = pytest.mark.slow  # Ray's own processes take long to start

STORE_BYTES = 80 * 2**20
ROOT = Path(__file__).parents[2]
RUN = ("--train", "train.py", "--data", DATA, "--batch", str(BATCH), "--micro-batches", str(MICRO_BATCHES))


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """A compiled folder of two device types, and a cluster that has them."""
    folder = tmp_path_factory.mktemp("ray")
    write_ctrdnn(folder, dense_backend="torch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        cluster_utils = pytest.importorskip("ray.cluster_utils")
        cluster = cluster_utils.Cluster()
        try:
            cluster.add_node(
                num_cpus=2,
                resources={"heterps_cpu-core": 2},
                object_store_memory=STORE_BYTES,
                include_dashboard=False,
            )
            volta = cluster.add_node(num_cpus=2, resources={"volta": 2}, object_store_memory=STORE_BYTES)
            yield folder, cluster, volta
        finally:
            cluster.shutdown()


def begin(there, *words: str, resource: str = "volta") -> "subprocess.Popen[str]":
    folder, cluster, _ = there
    where = ("--on", "ray", "--ray-address", cluster.address, "--resource", f"v100={resource}")
    return begin_command(folder, "launch", "torch.heterps", *where, "--replicas", "1,2", *RUN, *words)


def slow_training_file(folder: Path, *, while_there: Path) -> None:
    """Write a training file beside the other, whose batches take half a second while there is a file."""
    (folder / "slow.py").write_text(
        (folder / "train.py").read_text() + "\ndef prepare(batch):\n    import os, time\n"
        f"    time.sleep(0.5 if os.path.exists({str(while_there)!r}) else 0.0)\n    return batch\n"
    )


@pytest.mark.component("Ray")
def test_ctrl_c_ends_the_ranks_after_the_step_with_a_checkpoint_of_what_one_process_has(there, tmp_path):
    log, ck = tmp_path / "log.jsonl", tmp_path / "ck"
    slow_training_file(there[0], while_there=tmp_path)
    process = begin(there, "--train", "slow.py", "--steps", "1000000", "--log", str(log), "--checkpoint", str(ck))
    wait_for_lines(log, process)
    process.send_signal(signal.SIGINT)
    code, out, err = end_of(process, PATIENCE_S)
    assert code == 130, err + out
    (checkpoint,) = ck.glob("step-*")
    steps = int(checkpoint.name.removeprefix("step-"))
    assert f"[stage 0, replica 0] {steps} steps, {steps * BATCH} samples" in out
    assert largest_difference(weights_in(checkpoint), trained_in_one_process(steps)) < 1e-6


def test_an_elastic_run_goes_on_without_a_node_and_takes_one_that_joins(there, tmp_path):
    """Two nodes have one resource each for the two replicas of the second stage."""
    folder, cluster, _ = there
    slow, ck = tmp_path / "slow", tmp_path / "ck"
    slow_training_file(folder, while_there=slow)
    more = {"num_cpus": 1, "resources": {"turing": 1}, "object_store_memory": STORE_BYTES}
    kept, lost = cluster.add_node(**more), cluster.add_node(**more)
    slow.touch()
    words = ("--train", "slow.py", "--steps", "30", "--checkpoint", str(ck), "--every", "2", "-q")
    process = begin(there, "--elastic", "2:3", "--max-restarts", "2", *words, resource="turing")
    wait_for((ck / "step-000002" / "state.json").exists, process)
    cluster.remove_node(lost, allow_graceful=False)
    told: list[str] = []
    assert process.stderr is not None
    for line in process.stderr:
        told.append(line)
        if line.startswith("restart 1 of 2"):
            come = cluster.add_node(**more)
        if " came: " in line:
            slow.unlink()
    code, out, _ = end_of(process, PATIENCE_S)
    assert code == 0, "".join(told) + out
    assert ": replicas 1, 2 on 3 hosts (" in (restart := next(line for line in told if line.startswith("restart 1")))
    assert ", replicas 1, 1 on 2 hosts (" in restart
    assert told[-1] == "done, after 1 restart and 1 change of widths\n"
    assert largest_difference(weights_in(ck / "step-000030"), trained_in_one_process(30)) < 1e-6
    for node in (kept, come):
        cluster.remove_node(node)


def test_a_node_that_is_killed_ends_the_run_in_one_sentence(there, tmp_path):
    """It is the last test: the cluster has one node after it."""
    log = tmp_path / "log.jsonl"
    process = begin(there, "--steps", "1000000", "--log", str(log))
    wait_for_lines(log, process)
    _, cluster, volta = there
    cluster.remove_node(volta, allow_graceful=False)
    code, out, err = end_of(process, PATIENCE_S)
    assert code == 1, err + out
    told = [line for line in err.splitlines() if "Error: " in line]
    assert len(told) == 1, err
    assert "Traceback" not in err
    wait_until_gone(str(log))
