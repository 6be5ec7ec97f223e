"""What one trial does, in a process of its own: it runs a compiled model under the training file, and says what came.

It is ``heterps-compile run`` with a validation at its end and a checkpoint. A trial that continues another one goes on
from a copy of that one's checkpoints (hard links), so that nothing is trained twice. Whatever it prints goes to
``output.txt`` in the folder of the attempt.

Left out: who starts it and when it must end (the engines, ``search_run.py``).
"""

import json
import math
import os
import shutil
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heterps_compile.errors import HeterpsError, RunError
from heterps_compile.escape import one_line, printable
from heterps_compile.strict_json import read_json, write_json

from .trial_job import OUTPUT_FILE, RESULT_FILE, TrialJob, TrialResult
from .trial_log import LOG_FILE, TrialLog
from .trial_values import VARIABLE

if TYPE_CHECKING:
    from heterps_compile.runtime.launch.run_options import RunOptions

_LONGEST = 1_500


def main() -> int:
    """Be the process of a trial; its one word is the file of its job. It ends with the process that started it."""
    from heterps_compile.runtime.launch.fork_server import end_with_parent  # noqa: PLC0415 - in the process of a trial

    end_with_parent(os.getppid())
    job = read_json(Path(sys.argv[1]), TrialJob)
    _print_to(Path(job.folder) / OUTPUT_FILE)
    print(f"process {os.getpid()}", flush=True)
    try:
        result = run_trial(job)
    except Exception as error:  # noqa: BLE001 - the user's files raise what they like; told, and kept in output.txt
        kind = "" if isinstance(error, HeterpsError) else f"{type(error).__name__}: "
        result = TrialResult(value=None, error=f"{kind}{one_line(str(error))}"[:_LONGEST])
        traceback.print_exc()
    write_json(Path(job.folder) / RESULT_FILE, result)
    return 0


def run_trial(job: TrialJob) -> TrialResult:
    """Run a trial here.

    Raises:
        HeterpsError: where it fails.
    """
    if job.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, job.cores)
    if job.gpus is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = job.gpus
    os.environ[VARIABLE] = json.dumps(dict(job.values))
    if job.continues is not None and job.done_value is not None and job.steps <= job.done_steps:
        _copy(Path(job.continues), Path(job.checkpoint))
        return TrialResult(value=job.done_value)
    return _trained(job)


def _trained(job: TrialJob) -> TrialResult:
    from heterps_compile.runtime.launch.run_api import launch, make_options  # noqa: PLC0415 - imported before the fork

    checkpoint = Path(job.checkpoint)
    if checkpoint.exists():
        shutil.rmtree(checkpoint)
    if job.continues is not None:
        _copy(Path(job.continues), checkpoint)
    options: dict[str, Any] = {
        **job.run,
        "steps": job.steps,
        "checkpoint": job.checkpoint,
        "keep": 1,
        "resume": job.continues is not None,
        "seed": job.seed,
        "log": str(Path(job.folder) / LOG_FILE),
        "quiet": True,
    }
    made = make_options(
        job.plan, train=job.train, data=job.data, validate=job.validate, given=_given(job, options), **options
    )
    if job.ray_address is not None:
        _run_on_ray(made, job.ray_address)
    else:
        result, _ = launch(made, sys.stderr, forks_this_process=True)
        if result.stopped_by:
            raise RunError(f"the trial was ended by signal {result.stopped_by} after {result.steps} steps")
    return _result(job)


def _run_on_ray(options: "RunOptions", address: str) -> None:
    """Run each rank of a trial in an actor on a Ray cluster.

    Raises:
        HeterpsError: if the run cannot start, or fails.
    """
    from heterps_compile.runtime.engines.job import Job, Streams  # noqa: PLC0415 - only for trials on Ray
    from heterps_compile.runtime.engines.ray_cluster import Ray  # noqa: PLC0415 - as above
    from heterps_compile.runtime.launch.prepare import prepare  # noqa: PLC0415 - as above

    job = Job(options, prepare(options), environment={VARIABLE: os.environ[VARIABLE]})
    engine = Ray(ray_address=address)
    engine.check(job)
    code = engine.start(job, Streams(sys.stdout, sys.stderr))
    if code:
        raise RunError(f"its run on Ray left with exit code {code}")


def _result(job: TrialJob) -> TrialResult:
    """Return the result of a run: its last validation.

    Raises:
        RunError: where the metric is not among them, or is no number.
    """
    validations = TrialLog(Path(job.folder)).read()
    if not validations:
        raise RunError(f"the metric {job.metric!r} was never reported: the trial ended without a validation")
    _, last = validations[-1]
    if job.metric not in last:
        known = ", ".join(map(printable, last))
        raise RunError(f"the metric {printable(job.metric)!r} was never reported; validations have {known}")
    if not math.isfinite(last[job.metric]):
        raise RunError(f"the metric {printable(job.metric)!r} is {last[job.metric]} at the end of the trial")
    return TrialResult(value=last[job.metric])


def _given(job: TrialJob, options: dict[str, Any]) -> set[str]:
    """Return the options that somebody asked for, which are refused where they mean nothing."""
    named = {name for name in options if name != "resume" or options["resume"]} | {"train"}
    return named | ({"data"} if job.data else set()) | ({"validate"} if job.validate is not None else set())


def _copy(source: Path, target: Path) -> None:
    """Copy the checkpoints of another trial, without their bytes where the file system can."""

    def link(one: str, other: str) -> str:
        try:
            os.link(one, other)
        except OSError:
            shutil.copy2(one, other)
        return other

    with suppress(FileNotFoundError):
        shutil.rmtree(target)
    shutil.copytree(source, target, copy_function=link)


def _print_to(path: Path) -> None:
    """Send what this process and those it starts print to a file."""
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for number in (1, 2):
        os.dup2(opened, number)
    os.close(opened)


if __name__ == "__main__":
    sys.exit(main())
