"""The script, and Slurm's programs in the hands of a shell that runs it at once; for real: tests/e2e."""

import io
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from engine_jobs import HOSTILE, make_job

from heterps_compile.errors import InputError, RunError
from heterps_compile.runtime.engines import slurm
from heterps_compile.runtime.engines.contract import Streams
from heterps_compile.runtime.engines.slurm import Slurm

FAKES = {
    "sbatch": 'echo 7; for last; do :; done; SLURM_JOB_ID=7 bash "${@:(-2):1}" "$last" > "$last/log.txt" 2>&1; exit 0',
    "srun": (
        'tail=("$@"); for word in "$@"; do [ "$word" = bash ] && break; tail=("${tail[@]:1}"); done; words=(); '
        'for word in "${tail[@]}"; do [ "$word" = : ] && break; words+=("$word"); done; '
        'for id in 0 1 2; do SLURM_PROCID=$id SLURM_LOCALID=0 SLURM_LAUNCH_NODE_IPADDR=10.0.0.1 "${words[@]}"; done'
    ),
    "squeue": "exit 0",
    "scancel": "exit 0",
    "python3": 'echo "rank $RANK of $WORLD_SIZE at $MASTER_ADDR: $@"; exit 0',
}
TYPES = (("cpu", "batch"), ("v100", "accelerated"))


@pytest.fixture
def fakes(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, script in FAKES.items():
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(slurm, "_POLL_S", 0.01)
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


def script(job, **options) -> str:
    return Slurm(shared="/shared", **({"partitions": TYPES} | options)).write(job)[0].text


def test_a_component_for_every_device_type_with_its_ranks():
    text = script(make_job(threads=2), constraints=(("v100", "nvlink&big"),), gpu_types=(("v100", "tesla"),))
    heads = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]
    assert heads == [
        "--job-name=heterps", "--ntasks=2", "--cpus-per-task=2", "--partition=batch", "hetjob",
        "--job-name=heterps", "--ntasks=1", "--cpus-per-task=2", "--gpus-per-task=tesla:1", "--partition=accelerated",
        "--constraint=nvlink&big",
    ]  # fmt: skip
    assert "# Components: cpu: ranks 0, 1; v100: ranks 2" in text
    assert "export WORLD_SIZE=3 " in text
    assert text.count("--het-group=") == 2


def test_whatever_a_path_holds_the_shell_takes_it_for_a_word(fakes):
    job = make_job(directory=HOSTILE, data=HOSTILE)
    streams = Streams(io.StringIO(), io.StringIO())
    assert Slurm(shared=str(fakes), partitions=TYPES).start(job, streams) == 0
    out = streams.out.getvalue()
    assert re.findall(r"rank (\d) of 3 at 10\.0\.0\.1", out) == ["0", "1", "2"]
    assert "'\"`;#{}.heterps" in out
    assert not Path("/tmp/owned").exists()  # noqa: S108 - what the name would make a shell do
    (run,) = fakes.iterdir()
    assert (run / "hosts.toml").stat().st_mode & 0o777 == 0o600
    secret = (run / "hosts.toml").read_text().split('"')[1]
    written = (run / "run.sbatch").read_text() + out + streams.err.getvalue()
    assert (len(secret), secret in written) == (64, False)


def test_the_lines_for_a_hand_make_a_file_that_is_ones_own(tmp_path, fakes):
    lines = Slurm(shared=str(tmp_path), partitions=TYPES).write(make_job())[1].text
    (tmp_path / "bin" / "sbatch").write_text("#!/bin/bash\necho $@")
    subprocess.run(["bash", "-ec", lines], check=True, capture_output=True)
    made = tmp_path / "heterps-run" / "hosts.toml"
    assert made.stat().st_mode & 0o777 == 0o600
    assert re.fullmatch(r"secret = '[0-9a-f]{64}'\nport = 29500\n", made.read_text())
    assert shlex.split(lines)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"partitions": ()}, r"'cpu'.*ranks 0\b.*\b1\b.*--partition"),
        (
            {"partitions": TYPES[:1]},
            r"'v100'.*ranks 2\b.*--partition v100=NAME.*--constraint v100=",
        ),
        ({"partitions": (*TYPES, ("tpu", "x"))}, "--partition.*'tpu'"),
        ({"partitions": (("cpu", "a b"), TYPES[1])}, "--partition cpu='a b'"),
        ({"sbatch": ("--time=1:00\n#SBATCH --uid=0",)}, "--sbatch"),
        ({"sbatch": ("hetjob",)}, "--sbatch"),
    ],
)
def test_a_type_without_nodes_and_words_that_would_leave_their_line_are_refused(options, said):
    with pytest.raises(InputError, match=said):
        script(make_job(), **options)


def test_servers_are_a_component_of_their_own():
    with pytest.raises(InputError, match=r"'parameter-server'.*ranks 3\b.*--partition parameter-server="):
        script(make_job(servers=1))
    assert "parameter-server: ranks 3" in script(
        make_job(servers=1), partitions=(*TYPES, ("parameter-server", "batch"))
    )


def test_what_is_missing_is_told_before_anything_is_written(fakes):
    with pytest.raises(InputError, match=r"share.*\(--shared DIR"):
        Slurm(partitions=TYPES).check(make_job())
    with pytest.raises(InputError, match=r"'/no/such'.*--shared DIR"):
        Slurm(shared="/no/such", partitions=TYPES).check(make_job())
    with pytest.raises(InputError, match=r"--hosts.*--on"):
        Slurm(shared=str(fakes), partitions=TYPES).check(make_job(hosts="h.toml"))


def test_a_job_that_leaves_no_exit_code_and_a_refusal_are_told(fakes, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "_SETTLE_S", 0.1)
    (tmp_path / "bin" / "sbatch").write_text("#!/bin/bash\necho 7\n")
    streams = Streams(io.StringIO(), io.StringIO())
    with pytest.raises(RunError, match=r"job 7\b"):
        Slurm(shared=str(fakes), partitions=TYPES).start(make_job(), streams)
    (tmp_path / "bin" / "sbatch").write_text("#!/bin/bash\necho 'no such partition' >&2\nexit 1\n")
    with pytest.raises(RunError, match="partition"):
        Slurm(shared=str(fakes), partitions=TYPES).start(make_job(), streams)
