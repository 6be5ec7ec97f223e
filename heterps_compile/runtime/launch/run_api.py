"""``run()``: run a compiled folder from Python, on this machine or as one rank under torchrun.

Left out: the command (``cli/run.py``).
"""

import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypedDict, Unpack

from heterps_compile.errors import InputError, RunError, UnknownNameError
from heterps_compile.packages import PYTORCH, need

from .fork_server import PRELOADED, PRELOADED_TO_TRAIN, ForkServer
from .membership import is_rank, membership_of
from .run_options import GIVEN, RUN, RunOptions, by_field, frozen, option_names
from .training_file import Training

if TYPE_CHECKING:
    from heterps_compile.runtime.data.sample_source import Source

    from .prepare import Prepared
    from .rank_context import Result
    from .run_report import RunReport


class RunKeywords(TypedDict, total=False):
    """The options of :func:`run` beside its own parameters: those of ``heterps-compile run``, by the same names.

    What each means, its unit and its default stand in ``heterps-compile run --help``.
    """

    validate_every: int | None
    steps: int | None
    epochs: int
    shuffle: "int | str | None"
    replicas: Sequence[int]
    schedule: str | None
    micro_batches: int | None
    batch: int | None
    speeds: Sequence[Sequence[float]]
    precision: str | None
    wire: str
    sync: str | None
    clip_norm: float | None
    ema: float | None
    seed: int
    threads: int
    weights: str | Path | None
    averaged: bool
    block: int | None
    checkpoint: str | Path | None
    every: int | None
    keep: int
    keep_best: str | None
    stop_after: int | None
    resume: bool
    restarts: int
    hang_after: float
    parameter_servers: int
    server_optimizer: str
    server_learning_rate: float
    server_weight_decay: float
    server_memory: int | None
    server_directory: str | Path | None
    staleness: int
    grow_tables: Sequence[str]
    admit_after: int
    evict_unseen: int | None
    evict_below: float | None
    show_decay: float
    evict_every: int
    expect_sha256: str | None
    device_type: str | None
    trace: str | Path | None
    log: str | Path | None
    telemetry: str | Path | None
    tensorboard: str | Path | None
    output: str | Path | None
    output_format: str
    quiet: bool


def run(
    directory: str | Path,
    *,
    train: str | Path | Training | None = None,
    data: "str | Source" = "",
    validate: "str | Source | None" = None,
    **options: Unpack[RunKeywords],
) -> "Result":
    """Run the stages of a compiled folder as a pipeline of processes.

    Under torchrun this process is one rank: all call this function alike.
    Otherwise a process is started for every replica on this machine; what they
    need from Python then has to come from files, since functions do not travel.

    Args:
        directory: A folder that ``save`` or the command wrote.
        train: The training file, or under torchrun a :class:`Training`; None
            for inference.
        data: What is read, as ``--data`` takes it (``"clicks.parquet"``,
            ``"random"``), or under torchrun a source.
        validate: What is validated on, the same way; None for nothing, or for
            what ``validation_data()`` of the training file gives.
        options: Others of the command ``heterps-compile run``, by the same
            names, such as ``steps=100`` or ``replicas=(2, 1)``; its ``--help``
            has the list with units and defaults.

    Returns:
        What the run came to: its steps, the samples in each, its last
            checkpoint, its validations with their metrics, and what ended it
            early.

    Raises:
        HeterpsError: one of its kinds, where the run cannot start or came to an
            end before its time.

    Examples:
        >>> from heterps_compile import run
        >>> result = run(  # doctest: +SKIP
        ...     "out", train="train.py", data="clicks.parquet", steps=100
        ... )
    """
    sources = [one for one in (data, validate) if one is not None and not isinstance(one, str)]
    given = isinstance(train, Training), bool(sources)
    if any(given) and not is_rank(os.environ):
        what = "Training object" if given[0] else "source object"
        raise InputError(
            f"a {what} cannot be sent to other processes; name a file instead (train=FILE.py, data=FILE), or start "
            f"this script on every rank (torchrun)"
        )
    made = make_options(directory, train=train, data=data, validate=validate, given=option_names(options), **options)
    if is_rank(os.environ):
        return run_rank(
            made,
            training=train if isinstance(train, Training) else None,
            source=None if isinstance(data, str) else data,
            validation=None if isinstance(validate, str) else validate,
        )
    result, _ = launch(made, sys.stderr)
    return result


def make_options(
    directory: str | Path,
    *,
    train: str | Path | Training | None,
    data: "str | Source",
    validate: "str | Source | None" = None,
    given: Collection[str] = (),
    **options: Any,
) -> RunOptions:
    """Return the options of a run, with paths made absolute: its processes may run elsewhere.

    Args:
        directory: The compiled folder.
        train: As in :func:`run`.
        data: As in :func:`run`.
        validate: As in :func:`run`.
        given: Names of declared options that the user gave, be it with their default value.
        options: Others, by their names on the command line or those of :class:`RunOptions`.

    Raises:
        UnknownNameError: for an option that is none.
        InputError: for one that makes no sense, or means nothing for this run.
        MissingPackageError: where PyTorch is not installed, over which ranks talk.
    """
    need("running stages", PYTORCH)
    file = None if train is None else GIVEN if isinstance(train, Training) else os.path.abspath(train)
    options = by_field({name: _frozen(value) for name, value in options.items()})
    known = {one.name for one in fields(RunOptions)}
    for name in options:
        if name not in known:
            raise UnknownNameError("option of run()", name, [option.name for option in RUN.options])
    made = RunOptions(
        directory=os.path.abspath(directory),
        train=file,
        data=data if isinstance(data, str) else GIVEN,
        validate=validate if validate is None or isinstance(validate, str) else GIVEN,
        **options,
    )
    RUN.refuse(made.by_name, given, made.subject)
    return made


def _frozen(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else frozen(value)


def launch(options: RunOptions, chatter: TextIO, *, forks_this_process: bool = False) -> "tuple[Result, RunReport]":
    """Run on this machine; return what it came to and what was seen of it.

    Args:
        options: Of the run.
        chatter: Takes what ranks print.
        forks_this_process: Whether ranks may be forks of this process, which is all ours, once the run is checked. Else
            another one imports PyTorch for them while this one reads and checks the run.

    Raises:
        HeterpsError: where the run cannot start or came to an end before its time.
    """
    checked = _prepare(options) if forks_this_process else None
    with ForkServer(_preloaded(options), forks_this_process=forks_this_process) as server:
        from heterps_compile.runtime.engines.local_machine import run_here  # noqa: PLC0415 - the import of torch is what takes long

        return run_here(options, checked or _prepare(options), server, chatter=chatter)


def _prepare(options: RunOptions) -> "Prepared":
    from .combinations import LOCAL, START, refuse_combinations  # noqa: PLC0415 - torch only where a run starts
    from .prepare import prepare  # noqa: PLC0415 - as above

    refuse_combinations(START, (options, LOCAL))
    return prepare(options)


def _preloaded(options: RunOptions) -> tuple[str, ...]:
    """Return what every rank of a run imports."""
    return (*PRELOADED, *PRELOADED_TO_TRAIN) if options.training else PRELOADED


def run_rank(
    options: RunOptions,
    *,
    training: Training | None = None,
    source: "Source | None" = None,
    validation: "Source | None" = None,
    prints_summary: bool = False,
) -> "Result":
    """Be one rank of the world that the environment names (``membership.py``).

    Args:
        options: Of the run.
        training: Loss and optimiser, where they are given as objects.
        source: The data, where they are given as an object.
        validation: The data to validate on, where they are given as an object.
        prints_summary: Whether rank 0 prints what the run came to.

    Raises:
        RunError: where the environment is not torchrun's, an option is not for one rank, or the run's store cannot be
            reached.
    """
    if not is_rank(os.environ):
        raise RunError("this process is no rank: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are not all set")
    member = membership_of(os.environ)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # its errors are raised too, and reported in one line
    from .combinations import RANK, START, refuse_combinations  # noqa: PLC0415 - torch only where a run starts
    from .rank_context import RankSpec  # noqa: PLC0415 - as above
    from .worker import work  # noqa: PLC0415 - as above

    refuse_combinations(START, (options, RANK))
    spec = RankSpec(options, training=training, source=source, validation=validation, prints_summary=prints_summary)
    return work(member, spec)
