"""The text that ``launch`` prints, started for real: by torchrun's agents, and by Slurm's own controller and two nodes.

A script stands for the command that the text starts: it writes its rank and its words to a file of its own.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from processes import PATIENCE_S, begin_command, end_of, free_port
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

pytestmark = pytest.mark.slow  # a scheduler, and agents that start cold

SEEN = """#!{python}
import os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
with open(f"seen-{{os.environ[names[0]]}}", "w") as file:
    print(*(os.environ[name] for name in names), *sys.argv[1:], file=file)
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Path:
    """A compiled folder of two device types, in a folder with the stand-in."""
    folder = tmp_path_factory.mktemp("lines")
    write_ctrdnn(folder, dense_backend="torch")
    (folder / "bin").mkdir()
    (folder / "bin" / "heterps-compile").write_text(SEEN.format(python=sys.executable))
    (folder / "bin" / "heterps-compile").chmod(0o700)
    return folder


@pytest.fixture
def seen(compiled) -> Iterator[list[Path]]:
    """The files of the stand-ins, which are removed afterwards."""
    found: list[Path] = []
    yield found
    for file in compiled.glob("seen-*"):
        file.unlink()


def printed(compiled: Path, *words: str) -> str:
    data = () if "--data" in words else ("--data", "random")
    process = begin_command(compiled, "launch", "torch.heterps", "--replicas", "1,2", *data, *words)
    code, out, err = end_of(process, PATIENCE_S)
    assert code == 0, err
    return out


def environment_of(compiled: Path, **more: str) -> dict[str, str]:
    path = os.pathsep.join([str(compiled / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, **more}


def words_seen(compiled: Path) -> list[list[str]]:
    """Return the words of every process, sorted by rank."""
    return [file.read_text().split() for file in sorted(compiled.glob("seen-*"))]


@pytest.mark.usefixtures("seen")
def test_the_lines_of_torchrun_start_one_world_of_unlike_hosts(compiled):
    text = printed(compiled, "--slots", "v100=2").replace(":29500", f":{free_port()}")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) == 2
    with ExitStack() as stack:
        agents = [
            stack.enter_context(
                subprocess.Popen(
                    ["sh", "-c", line],
                    cwd=compiled,
                    env=environment_of(compiled, MASTER_ADDR="127.0.0.1", NODE_RANK=str(host)),
                )
            )
            for host, line in enumerate(lines)
        ]
        assert [agent.wait(PATIENCE_S) for agent in agents] == [0, 0]
    found = words_seen(compiled)
    assert [(rank, size) for rank, _, size, *_ in found] == [("0", "3"), ("1", "3"), ("2", "3")]
    assert sorted((words[-1], words[1]) for words in found) == [("cpu-core", "0"), ("v100", "0"), ("v100", "1")]
    assert all(words[3:5] == ["run", str(compiled / "torch.heterps")] for words in found)


@pytest.mark.component("Slurm")
def test_the_script_of_slurm_trains_in_a_heterogeneous_job(compiled, tmp_path):
    ck = tmp_path / "ck"
    names = ("--on", "slurm", "--resource", "cpu-core=partition=batch", "--resource", "v100=partition=accelerated")
    size = ("--batch", str(BATCH), "--micro-batches", str(MICRO_BATCHES), "--steps", "4", "--checkpoint", str(ck))
    text = printed(compiled, *names, "--train", "train.py", *size, "--data", DATA)
    (compiled / "run.sbatch").write_text(text)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    try:
        with slurm_cluster(tmp_path) as environment:
            done = subprocess.run(
                ["sbatch", "--wait", "--output=log.txt", "run.sbatch"],
                cwd=compiled, env={**environment, "PATH": f"{path}:/usr/sbin"},
                capture_output=True, text=True, check=False, timeout=PATIENCE_S,
            )  # fmt: skip
    except NoSlurmError as error:
        pytest.skip(f"no Slurm here: {error}")
    log = (compiled / "log.txt").read_text()
    assert done.returncode == 0, done.stderr + log
    assert f"4 steps, {4 * BATCH} samples" in log
    assert largest_difference(weights_in(ck / "step-000004"), trained_in_one_process(4)) < 1e-6
