"""Under torchrun: two agents on this machine stand for two machines."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from processes import PATIENCE_S, free_port, wait_for_lines
from written_ctrdnn import (
    BATCH,
    DATA,
    MICRO_BATCHES,
    largest_difference,
    trained_in_one_process,
    weights_in,
    write_ctrdnn,
)

STEPS = 4
RUN = ("--data", DATA, "--batch", str(BATCH), "--micro-batches", str(MICRO_BATCHES), "--replicas", "1,2")
TRAIN = ("--train", "train.py", "--steps", str(STEPS), *RUN)


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    write_ctrdnn(folder)
    return folder


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    modules = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PATH": path, "PYTHONPATH": modules}


def agents(lines: list[list[str]], cwd: Path) -> list[tuple[int, str, str]]:
    """Run what is to be typed on every host; give exit codes and what was printed."""
    started = [
        subprocess.Popen(words, cwd=cwd, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for words in lines
    ]
    try:
        said = [process.communicate(timeout=PATIENCE_S) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    return [(process.returncode, out, err) for process, (out, err) in zip(started, said, strict=True)]


def torchrun(processes: int, *words: str, agent: Sequence[str] = ()) -> list[str]:
    start = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(processes),
        "--master-addr",
        "127.0.0.1",
        *agent,
    ]
    return [*start, "--master-port", str(free_port()), "-m", "--", "heterps_compile", "run", "model2.heterps", *words]


def two_agents(folder: Path, first: Sequence[str], second: Sequence[str], program: Sequence[str]) -> list[list[str]]:
    """Return the lines of two agents: one process, and two, each with words of its own."""
    meeting = ["--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    head = [sys.executable, "-m", "torch.distributed.run", *meeting]
    run = ["-m", "--", "heterps_compile", "run", *program]
    return [
        [*head, f"--node-rank={number}", f"--nproc-per-node={processes}", *run, *words]
        for number, (processes, words) in enumerate(((1, first), (2, second)))
    ]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> Path:
    """A folder with a plan of two device types."""
    folder = tmp_path_factory.mktemp("mixed")
    write_ctrdnn(folder, dense_backend="torch")
    return folder


@pytest.mark.slow  # agents and ranks that start cold, as on machines of their own
@pytest.mark.component("torchrun")
@pytest.mark.parametrize("in_order", [True, False])
def test_agents_of_unlike_hosts_get_the_stages_of_their_types(mixed, tmp_path, in_order):
    """The embeddings are planned for cpu-core, the dense layers for v100; hosts join in both orders."""
    few, many = ("cpu-core", "v100") if in_order else ("v100", "cpu-core")
    log, ck = tmp_path / "log.jsonl", tmp_path / "ck"
    words = ["torch.heterps", *TRAIN, "--log", str(log), "--checkpoint", str(ck)]
    words[words.index("--replicas") + 1] = "1,2" if in_order else "2,1"
    ends = agents(two_agents(mixed, ["--device-type", few], ["--device-type", many], words), mixed)
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert sum(f"{STEPS} steps, {STEPS * BATCH} samples" in out for _, out, _ in ends) == 1
    assert len(log.read_text().splitlines()) == STEPS
    assert largest_difference(weights_in(ck / f"step-{STEPS:06d}"), trained_in_one_process(STEPS)) < 1e-6


@pytest.mark.slow  # agents and ranks that start cold, as on machines of their own
@pytest.mark.parametrize(
    ("first", "second", "more", "told"),
    [
        (["v100"], ["v100"], [], "3 of 3 processes report the device type 'v100'; expected at most 2"),
        (
            ["a100"],
            ["v100"],
            [],
            "rank 0: --device-type is 'a100'; expected a device type of this run (cpu-core, v100)",
        ),
        (["cpu-core"], ["v100"], ["--batch", "7"], "a batch of 7 samples"),
        (["cpu-core"], ["v100"], ["--replicas", "2,2"], "3 processes were started, and the plan has 4 replicas"),
    ],
)
def test_a_world_that_does_not_fit_the_plan_is_refused_alike(mixed, first, second, more, told):
    types = [["--device-type", *words] for words in (first, second)]
    ends = agents(two_agents(mixed, *types, ["torch.heterps", *TRAIN, *more]), mixed)
    assert [code for code, _, _ in ends] == [1, 1]
    assert any(told in err for _, _, err in ends)  # an agent ends its other ranks once one has refused


@pytest.mark.slow  # agents and ranks that start cold, as on machines of their own
def test_a_dead_rank_is_named_by_the_others(written):
    (written / "dies.py").write_text(
        (written / "train.py").read_text() + "\ncalls = 0\n\ndef prepare(batch):\n    import os, signal\n"
        "    global calls\n    calls += 1\n"
        "    if calls == 12 and os.environ['RANK'] == '2':\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n    return batch\n"
    )
    ((code, _, err),) = agents([torchrun(3, "--train", "dies.py", "--steps", "1000000", *RUN)], written)
    assert code == 1
    assert "Error: stage 1, replica 1 (rank 2) gave no sign of life for" in err


SCRIPT = f"""
import sys
import torch
from torch.nn import functional as F
from written_ctrdnn import DATA, LEARNING_RATE, MOMENTUM
from heterps_compile.runtime.launch.training_file import Training
from heterps_compile.runtime.launch.run_api import run

training = Training(
    loss=lambda outputs, batch: F.binary_cross_entropy_with_logits(outputs, batch["label"]),
    optimizer=lambda parameters: torch.optim.SGD([p for _, p in parameters], lr=LEARNING_RATE, momentum=MOMENTUM),
)
result = run(
    "model2.heterps", train=training, data=DATA, steps={STEPS}, batch={BATCH}, micro_batches={MICRO_BATCHES},
    replicas=(1, 2), checkpoint="ck-api", quiet=True,
)
again = run("model2.heterps", data=DATA, steps=1, batch=12, micro_batches=3, replicas=(1, 2), quiet=True)
sys.stdout.write(f"steps {{result.steps}} {{again.steps}}\\n")
"""


@pytest.mark.slow  # agents and ranks that start cold, as on machines of their own
def test_a_script_of_ones_own_trains_with_objects(written):
    (written / "script.py").write_text(SCRIPT)
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=3", "--master-addr=127.0.0.1"]
    ((code, out, err),) = agents([[*start, f"--master-port={free_port()}", "script.py"]], written)
    assert code == 0, err
    assert out == f"steps {STEPS} 1\n" * 3
    ours = weights_in(written / "ck-api" / f"step-{STEPS:06d}")
    assert largest_difference(ours, trained_in_one_process(STEPS)) < 1e-6


@pytest.mark.slow  # agents and ranks that start cold, as on machines of their own
def test_ranks_do_not_outlive_the_agent_of_their_machine(written, tmp_path):
    words = ("--log", str(tmp_path / "log.jsonl"), "--train", "train.py", "--steps", "1000000", *RUN)
    lines = two_agents(written, (), (), ["model2.heterps", *words])
    said = [(tmp_path / f"host-{number}").open("w+") for number in range(2)]
    first, second = (
        subprocess.Popen(line, cwd=written, env=environment(), stdout=file, stderr=subprocess.STDOUT)
        for line, file in zip(lines, said, strict=True)
    )
    try:
        wait_for_lines(tmp_path / "log.jsonl", first)
        second.kill()
        assert first.wait(PATIENCE_S) == 1
        said[0].seek(0)
        assert re.search(r"stage 1, replica . \(rank .\) lost its launcher, which is gone", said[0].read())
    finally:
        for process, file in zip((first, second), said, strict=True):
            process.kill()
            process.wait()
            file.close()


@pytest.mark.slow  # agents and ranks that start cold, as on machines of their own
def test_an_agent_that_is_interrupted_ends_the_run_with_a_checkpoint(written, tmp_path):
    log, ck = tmp_path / "log.jsonl", tmp_path / "ck"
    words = ("--train", "train.py", "--steps", "1000000", *RUN, "--log", str(log), "--checkpoint", str(ck))
    process = subprocess.Popen(
        torchrun(3, *words),
        cwd=written, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        wait_for_lines(log, process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode != 0
    assert out.count("stopped by SIGINT after") == 1, err
    assert len(list(ck.glob("step-*"))) == 1


@pytest.mark.slow  # agents and ranks that start cold, as on machines of their own
def test_an_agent_that_restarts_its_ranks_goes_on_from_the_last_checkpoint(written, tmp_path):
    (written / "dies_once.py").write_text(
        (written / "train.py").read_text()
        + "\ncalls = 0\n\ndef prepare(batch):\n    import os, signal\n    from pathlib import Path\n    global calls\n"
        f"    calls += 1\n    flag = Path({str(tmp_path / 'died')!r})\n"
        "    if calls == 12 and os.environ['RANK'] == '2' and not flag.exists():\n"
        "        flag.touch()\n        os.kill(os.getpid(), signal.SIGKILL)\n    return batch\n"
    )
    ck = tmp_path / "ck"
    words = ("--train", "dies_once.py", "--steps", "8", "--checkpoint", str(ck), "--every", "2", "--resume", *RUN)
    ((code, out, err),) = agents([torchrun(3, *words, agent=("--max-restarts=2",))], written)
    assert code == 0, err
    assert (tmp_path / "died").exists()
    assert "after the" in out
    assert largest_difference(weights_in(ck / "step-000008"), trained_in_one_process(8)) < 1e-6
