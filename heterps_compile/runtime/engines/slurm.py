"""Slurm: one batch job for a run, with a component for every device type (a heterogeneous job).

::

    SHARED/heterps-1f0c.../run.sbatch     the script, which ``--print`` shows
                           hosts.toml     the secret and the port of this run; mode 0600
                           log.txt        what its ranks print; followed from here
                           exit-code      of the run, once it is over

A task is a rank. The batch script runs on the first node of the first component, where rank 0 is, so ranks meet there.

Left out: starting anew after a fault (``sbatch --requeue`` with ``--resume`` does), arrays, accounting.
"""

import os
import secrets
import shlex
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from heterps_compile.errors import SIGNALLED, InputError, RunError
from heterps_compile.escape import one_line, printable
from heterps_compile.runtime.launch.run_folder import write_private
from heterps_compile.runtime.launch.stop_signals import collecting_signals

from .contract import Capabilities, Engine, Job, Streams, Written
from .device_parts import Part, by_type, need_mapping, parts_of
from .followed_file import FollowedFile

_NAMES = r"[A-Za-z0-9_.,+-]+"
_FEATURES = r"[A-Za-z0-9_.,&|*()\[\]+-]+"
_OPTION = r"--[a-z][a-z0-9-]*(?:=[^\x00-\x20\x7f\"'\\#]+)?"
_SECRET_BYTES = 32
_FIRST_PORT, _PORTS = 20_000, 10_000
_POLL_S = 0.5
_ASK_S = 2.0
_SETTLE_S = 30.0  # shared file systems show what other machines wrote after a while
_PENDING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "SUSPENDED"})
_WAYS = "--partition {type}=NAME, --constraint {type}=FEATURES or --gpu-type {type}=NAME"

_TASK = (
    "ranks=({ranks}); export RANK=${{ranks[$SLURM_PROCID]}} LOCAL_RANK=$SLURM_LOCALID "
    'MASTER_ADDR=$SLURM_LAUNCH_NODE_IPADDR; exec "$@"'
)
"""What a task does: tasks are numbered through all components, in their order."""


@dataclass(frozen=True, slots=True)
class Slurm(Engine):
    """Submits a batch job; fields are its options (``launch_options.py``)."""

    name: ClassVar[str] = "slurm"
    capabilities: ClassVar[Capabilities] = Capabilities(programs=("sbatch", "squeue", "scancel"))

    python: str = "python3"
    shared: str | None = None
    partitions: tuple[tuple[str, str], ...] = ()
    constraints: tuple[tuple[str, str], ...] = ()
    gpu_types: tuple[tuple[str, str], ...] = ()
    sbatch: tuple[str, ...] = ()

    def check(self, job: Job) -> None:
        """Check that every device type has nodes, and that there is a folder for the files of the run."""
        if job.options.hosts is not None:
            raise InputError("--hosts means nothing for --on slurm, which finds the machines itself; leave it out")
        self._script(job)
        if not os.path.isdir(self._shared):
            raise InputError(f"there is no folder {printable(self._shared)!r} (--shared DIR)")

    def write(self, job: Job) -> Sequence[Written]:
        """Return the script, and the lines that submit it."""
        folder = shlex.quote(os.path.join(self._shared, "heterps-run"))
        new = 'printf "secret = \'%s\'\\nport = 29500\\n" "$(openssl rand -hex 32)"'
        return [
            Written("run.sbatch", self._script(job).rstrip("\n")),
            Written(
                "to submit it by hand, the script in that folder",
                f"(umask 077; mkdir {folder} && {new} > {folder}/hosts.toml)\n"
                f"sbatch --output={folder}/log.txt {folder}/run.sbatch {folder}",
            ),
        ]

    def start(self, job: Job, streams: Streams) -> int:
        """Submit the job, follow its log until it is over, and cancel it when this process is told to."""
        folder = Path(self._shared) / f"heterps-{secrets.token_hex(8)}"
        try:
            folder.mkdir(mode=0o700)
            port = _FIRST_PORT + secrets.randbelow(_PORTS)
            secret = secrets.token_hex(_SECRET_BYTES)
            write_private(folder / "hosts.toml", f'secret = "{secret}"\nport = {port}\n')
            (folder / "run.sbatch").write_text(self._script(job), "utf-8")
        except OSError as error:
            raise RunError(f"cannot write to {printable(str(folder))!r} (--shared): {error.strerror}") from error
        submitted = _call(
            "sbatch", "--parsable", f"--output={folder / 'log.txt'}", str(folder / "run.sbatch"), str(folder)
        )
        number = submitted.strip().partition(";")[0]
        if not number.isdigit():
            raise RunError(f"sbatch did not tell the number of the job, but {one_line(submitted)!r}")
        streams.err.write(f"job {number}, files in {printable(str(folder))}\n")
        streams.err.flush()
        return _follow(number, folder, streams)

    @property
    def _shared(self) -> str:
        if self.shared is None:
            raise InputError(
                "slurm needs a folder that all nodes and this machine share, for the script, the secret and the log "
                "of the run (--shared DIR)"
            )
        return os.path.abspath(self.shared)

    def _script(self, job: Job) -> str:
        """Return the batch script.

        Raises:
            InputError: where a device type has no nodes, or an option cannot stand in a script.
        """
        parts = parts_of(job)
        partitions = by_type("--partition", self.partitions, parts, _NAMES)
        constraints = by_type("--constraint", self.constraints, parts, _FEATURES)
        gpus = by_type("--gpu-type", self.gpu_types, parts, _NAMES)
        need_mapping(parts, (partitions, constraints, gpus), _WAYS)
        by_type("--sbatch", [(parts[0].device, option) for option in self.sbatch], parts[:1], _OPTION)
        heads, steps = [], []
        for number, part in enumerate(parts):
            tasks = [f"--ntasks={len(part.ranks)}", f"--cpus-per-task={job.options.threads}"]
            if part.kind == "gpu":
                tasks.append(f"--gpus-per-task={''.join(f'{name}:' for name in gpus[part.device][-1:])}1")
            nodes = [f"--partition={name}" for name in partitions[part.device][-1:]]
            nodes += [f"--constraint={features}" for features in constraints[part.device][-1:]]
            heads.append([f"#SBATCH {option}" for option in ("--job-name=heterps", *tasks, *nodes, *self.sbatch)])
            group = [f"--het-group={number}"] if len(parts) > 1 else []
            steps.append(" ".join([*group, *tasks, "--distribution=block", "--wait=60", '"${rank[@]}"']))
        task = _TASK.format(ranks=" ".join(str(rank) for part in parts for rank in part.ranks))
        words = [self.python, "-m", "heterps_compile", *job.run_words("--hosts")]
        return "\n".join(
            [
                "#!/bin/bash",
                *"\n#SBATCH hetjob\n".join("\n".join(head) for head in heads).splitlines(),
                "# Components: " + "; ".join(_titled(part) for part in parts),
                f"export WORLD_SIZE={job.prepared.world_size} MASTER_PORT=29500 OMP_NUM_THREADS={job.options.threads}",
                f'rank=(bash -c {shlex.quote(task)} rank {shlex.join(words)} "$1/hosts.toml")',
                f"srun {' : '.join(steps)}",
                "code=$?",
                'echo "$code" > "$1/exit-code"',
                'exit "$code"',
                "",
            ]
        )


def _titled(part: Part) -> str:
    return f"{printable(part.device)}: ranks {', '.join(map(str, part.ranks))}"


def _call(*words: str) -> str:
    """Run a program of Slurm; return what it prints.

    Raises:
        RunError: with what it says, where it fails.
    """
    done = subprocess.run(  # noqa: S603 - our own words
        words, capture_output=True, text=True, check=False, errors="replace", stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise RunError(f"{words[0]} failed: {one_line(done.stderr or done.stdout) or f'exit code {done.returncode}'}")
    return done.stdout


def _state(number: str) -> str:
    """Return a job's state; "" once Slurm has no more of it."""
    with suppress(RunError):
        return _call("squeue", "--noheader", "--jobs", number, "--format=%T").partition("\n")[0].strip()
    return ""


def _follow(number: str, folder: Path, streams: Streams) -> int:
    log, code_path = FollowedFile(folder / "log.txt", streams.out), folder / "exit-code"
    passed_on, due_s, gone_s = 0, 0.0, None
    caught: list[int]
    with collecting_signals() as caught:
        while True:
            log.poll()
            for _ in caught[passed_on:]:
                _end(number, at_once=passed_on > 0)
                passed_on += 1
            now = time.monotonic()
            if gone_s is not None and (code_path.exists() or now > gone_s + _SETTLE_S or passed_on):
                break
            if gone_s is None and now >= due_s:
                due_s = now + _ASK_S
                if not _state(number):
                    gone_s = now
            time.sleep(_POLL_S)
    log.poll(last=True)
    return _result(number, code_path, caught)


def _end(number: str, *, at_once: bool) -> None:
    """End a job: its ranks after the step, by the signal that they heed; one that waits for nodes, at once."""
    waits = _state(number) in _PENDING
    with suppress(RunError):  # it is over
        _call("scancel", *([] if at_once or waits else ["--signal=INT"]), number)


def _result(number: str, code_path: Path, caught: Sequence[int]) -> int:
    try:
        return int(code_path.read_text("ascii"))
    except (OSError, ValueError):
        if caught:
            return SIGNALLED + caught[0]
    raise RunError(
        f"job {number} ended and left no exit code in {printable(str(code_path.parent))!r}: it was cancelled, ran out "
        f"of its time, or lost a node; sacct -j {number} tells more where accounting is on"
    )
