"""What a trial is asked to do, and what came of it: two files of JSON in the folder of the attempt.

Left out: doing it (``trial_run.py``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from heterps_compile.errors import RunError
from heterps_compile.escape import printable

from .parameters import Value
from .search_record import fault_of

JOB_FILE, RESULT_FILE, OUTPUT_FILE = "job.json", "result.json", "output.txt"

_PYDANTIC: dict[str, Any] = {"extra": "forbid", "strict": True}
_LARGEST_BYTES = 64 * 2**20


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

    __pydantic_config__: ClassVar[dict[str, Any]] = _PYDANTIC

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
        validations: Steps done, and the metric.
        time_s: From the start of the trial's process to its end.
        error: Why it failed, in one sentence; "" where it did not.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = _PYDANTIC

    value: float | None
    validations: tuple[tuple[int, float], ...] = ()
    time_s: float = field(default=0.0)
    error: str = ""


def write_job(job: TrialJob) -> Path:
    """Write what a trial is to do into its folder, which is made; return the file.

    Raises:
        RunError: where it cannot be written.
    """
    from pydantic import TypeAdapter  # noqa: PLC0415 - only where trials run

    path = Path(job.folder) / JOB_FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(RESULT_FILE).unlink(missing_ok=True)  # of an attempt that ended with the search before
        _replace(path, TypeAdapter(TrialJob).dump_json(job))
    except OSError as error:
        raise RunError(f"cannot write {printable(str(path))}: {error.strerror or error}") from error
    return path


def read_job(path: Path) -> TrialJob:
    """Read what a trial is to do.

    Raises:
        RunError: where it is something else.
    """
    job: TrialJob = _read(path, TrialJob)
    return job


def write_result(folder: Path, result: TrialResult) -> None:
    """Write what came of a trial, as a whole or not at all."""
    from pydantic import TypeAdapter  # noqa: PLC0415 - only where trials run

    _replace(folder / RESULT_FILE, TypeAdapter(TrialResult).dump_json(result))


def read_result(folder: Path) -> TrialResult | None:
    """Read what came of a trial; None where it left nothing.

    Raises:
        RunError: where what it left is something else.
    """
    path = folder / RESULT_FILE
    result: TrialResult | None = _read(path, TrialResult) if path.is_file() else None
    return result


def _read(path: Path, kind: Any) -> Any:
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - only where trials run

    try:
        with path.open("rb") as file:
            return TypeAdapter(kind).validate_json(file.read(_LARGEST_BYTES))
    except OSError as error:
        raise RunError(f"{printable(str(path))} cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        raise RunError(f"{printable(str(path))} is none: {fault_of(error)}") from error


def _replace(path: Path, data: bytes) -> None:
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(data + b"\n")
    new.replace(path)
