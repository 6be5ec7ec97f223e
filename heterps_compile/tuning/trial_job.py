"""What a trial is asked to do, and what came of it: two files of JSON in the folder of the attempt.

Left out: doing it (``trial_run.py``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pydantic import ConfigDict

from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.strict_json import STRICT, write_json

from .parameters import Value

JOB_FILE, RESULT_FILE, OUTPUT_FILE = "job.json", "result.json", "output.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialJob:
    """What to run. Paths are absolute.

    Attributes:
        folder: Of this attempt: the job, the result, what is printed.
        plan: The compiled model.
        train: The training file.
        data: As ``--data`` takes it; "" where the file has data().
        validate: As ``--validate`` takes it; None where the file has validation_data().
        metric: Whose last value is the result.
        values: Of the training, for ``trial_values``.
        run: Options of ``run()`` beside.
        steps: In all.
        checkpoint: Folder of checkpoints of this attempt.
        continues: Folder of checkpoints to go on from; None to begin.
        done_steps: How many steps those have.
        done_value: The metric after them.
        cores: That its processes may run on; empty for all.
        gpus: That they may see; None for all.
        ray_address: Of the Ray cluster whose nodes run the ranks; None to run on this machine.
        seed: Of the run.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    folder: str
    plan: str
    train: str
    data: str
    validate: str | None
    metric: str
    values: Mapping[str, Value]
    run: Mapping[str, Value | tuple[int, ...]]
    steps: int
    checkpoint: str
    continues: str | None = None
    done_steps: int = 0
    done_value: float | None = None
    cores: tuple[int, ...] = ()
    gpus: str | None = None
    ray_address: str | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """What came of it.

    Attributes:
        value: The metric at the end; None where the trial failed.
        error: Why it failed, in one sentence; "" where it did not.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    value: float | None
    error: str = ""


def write_job(job: TrialJob) -> Path:
    """Write a trial's job into its folder, which is made; return the file.

    Raises:
        RunError: if it cannot be written.
    """
    path = Path(job.folder) / JOB_FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(RESULT_FILE).unlink(missing_ok=True)  # of an attempt that ended with the search before
    except OSError as error:
        raise RunError(f"cannot write {printable(str(path))}: {error.strerror or error}") from error
    write_json(path, job)
    return path
