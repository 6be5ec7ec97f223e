"""What a user asks a search for, checked as a whole before anything runs, and the folder that it becomes.

Left out: running it (``run_search.py``).
"""

import hashlib
import re
import shutil
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path

from heterps_compile.cluster.devices import Cluster
from heterps_compile.cluster.load import load_cluster, pool_text
from heterps_compile.cluster.local import usable_cores
from heterps_compile.errors import InputError, OptionError, UnknownNameError
from heterps_compile.escape import printable, short
from heterps_compile.packages import installed_versions
from heterps_compile.plain_file import open_plain
from heterps_compile.runtime.data.open_source import is_random
from heterps_compile.runtime.launch.combinations import check_file
from heterps_compile.runtime.launch.run_options import RunOptions
from heterps_compile.runtime.validation.best import LOSS
from heterps_compile.strict_json import read_utf8
from heterps_compile.units import counted

from .ask_tell import Fidelity
from .assignment import RULE, parts_of
from .brackets import trials_to_longest
from .search_methods import lengths_of, make_search
from .search_record import RECORD_FILE, SearchOptions, SearchRecord, write_record
from .space import Space
from .space_file import space_of_text
from .tune_options import ENGINE_NAMES, RULE_NAMES, TUNE
from .worker_classes import WorkerClass, recorded_classes, worker_classes

POOL_FILE = "pool.toml"

_FIDELITY = re.compile(r"(?:([0-9.eE+]{1,20}):)?([0-9.eE+]{1,20}):(steps|samples|epochs)")
_MONEY = re.compile(r"\s*([0-9.eE+]{1,20})\s*([A-Z]{3})?\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest(SearchOptions):
    """A search as its user asks for it; paths as they were given.

    Attributes:
        space: The file of the space.
        model: The file that builds models.
        train: The training file.
        data: As ``--data`` takes it; "" where the training file has data().
        validate: As ``--validate`` takes it; None where it has validation_data().
        is_maximised: Whether more of the metric is better; None if unknown.
        rule: Of the assignment; None for ``cost`` where there are several classes, else ``whole``.
        fidelity: ``least:most:unit``, or ``most:unit``.
        budget: As ``20 USD``; None for no limit.
        pool: Name or path.
        workers: As after ``--workers``; None for one a unit.
        address: Of a cluster of Ray.
        verifies: Whether compiled models are run against the whole model.
    """

    space: str
    model: str
    train: str
    data: str = ""
    validate: str | None = None
    is_maximised: bool | None = None
    rule: str | None = None
    fidelity: str = TUNE.option("fidelity").default
    budget: str | None = None
    pool: str = TUNE.option("pool").default
    workers: str | None = None
    address: str | None = None
    verifies: bool = True


@dataclass(frozen=True, slots=True)
class Search:
    """A search that is written down.

    Attributes:
        folder: Where.
        record: What it is.
        space: Of it.
        classes: Of workers.
    """

    folder: Path
    record: SearchRecord
    space: Space
    classes: tuple[WorkerClass, ...]

    def started_by(self, engine: str, address: str | None) -> "Search":
        """Return the search with another engine, or another cluster, to go on with.

        Raises:
            OptionError: where an address is given for an engine that has none.
        """
        _check_address(engine, address)
        arguments = {**self.record.arguments, "address": address or ""}
        return replace(self, record=replace(self.record, engine=engine, arguments=arguments))

    def path(self, name: str) -> str:
        """Return an argument of the search: a path, or what names data; "" for none."""
        return self.record.arguments.get(name, "")


def begin_search(request: SearchRequest, output: str) -> Search:
    """Check a request, and write its folder.

    Raises:
        HeterpsError: for the first thing that is wrong.
    """
    if request.rule is not None and request.rule not in RULE_NAMES:
        raise UnknownNameError("rule of assignment", request.rule, RULE_NAMES)
    if request.engine not in ENGINE_NAMES:
        raise UnknownNameError("engine", request.engine, ENGINE_NAMES)
    _check_address(request.engine, request.address)
    space_text = read_utf8(request.space, printable(request.space))
    space = space_of_text(request.space, space_text)
    least, most, unit = parse_fidelity(request.fidelity)
    fidelity = Fidelity(least, most, request.eta, unit)
    pool = load_cluster(request.pool)
    classes = worker_classes(pool, request.workers)
    rule = request.rule or (RULE if len(classes) > 1 else "whole")
    parts = parts_of(space, rule)
    make_search(request.method, parts[0].space, fidelity, request.seed)  # refuses unknown and missing ones
    least_trials = trials_to_longest(len(lengths_of(request.method, fidelity)), request.eta)
    if request.trials < least_trials:
        raise InputError(
            f"trials is {request.trials}; expected {least_trials} or more, for {request.method} to start one of "
            f"{most:g} {unit}. Fix: --trials {least_trials}, or fewer lengths (--fidelity {most:g}:{unit})"
        )
    _check_cores(request, classes)
    _check_training(request)
    folder = _check_folder(output)
    record = SearchRecord(
        **{each.name: getattr(request, each.name) for each in fields(SearchOptions)},
        space_name=Path(request.space).name,
        space_text=space_text,
        is_maximised=_is_maximised(request),
        least=least,
        most=most,
        unit=unit,
        rule=rule,
        classes=tuple(each.compute for each in classes),
        parts=tuple(part.name for part in parts),
        budget=None if request.budget is None else parse_budget(request.budget, pool, classes),
        currency=pool.currency,
        verifies=request.verifies,
        arguments=_arguments(request),
        hashes={name: sha256_of(getattr(request, name)) for name in ("train", "model")},
        versions=installed_versions(("heterps-compile", "torch", "numpy", "optuna", "ray")),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / POOL_FILE).write_text(pool_text(request.pool), "utf-8")
    except OSError as error:
        raise InputError(f"cannot write the folder {short(printable(output))}: {error.strerror or error}") from error
    write_record(folder, record)
    return Search(folder, record, space, classes)


def reopen_search(folder: Path, record: SearchRecord) -> Search:
    """Return a search that has begun, for it to go on.

    Raises:
        InputError: where a file that trials run is not what it was.
    """
    for name, was in record.hashes.items():
        path = record.arguments.get(name, "")
        if not Path(path).is_file() or sha256_of(path) != was:
            raise InputError(
                f"{printable(path)} is not what it was when the search began, so that its trials could not be compared "
                "with the others; put it back, or begin another search"
            )
    space = space_of_text(record.space_name, record.space_text)
    classes = recorded_classes(load_cluster(folder / POOL_FILE), record.classes)
    if [replace(each.compute, types=()) for each in classes] != [replace(each, types=()) for each in record.classes]:
        raise InputError(
            f"{printable(str(folder / POOL_FILE))} is not the pool that the search began with; put it back"
        )
    return Search(folder, record, space, classes)


def parse_fidelity(text: str) -> tuple[float, float, str]:
    """Return the least, the most and the unit of ``1:9:epochs``; of ``500:steps`` every trial is as long.

    Raises:
        InputError: where it is neither.
    """
    read = _FIDELITY.fullmatch(text)
    try:
        if read is not None:
            most = float(read[2])
            return (most if read[1] is None else float(read[1])), most, read[3]
    except ValueError:
        pass
    raise InputError(
        f"--fidelity {short(printable(text))} says not how long trials train; write LEAST:MOST:UNIT such as "
        "1:9:epochs, or MOST:UNIT, in steps, samples or epochs"
    )


def parse_budget(text: str, pool: Cluster, classes: tuple[WorkerClass, ...]) -> float:
    """Return the amount of ``20 USD``.

    Raises:
        InputError: where it is none, in another currency, or all workers are free.
    """
    read = _MONEY.fullmatch(text)
    try:
        amount = float(read[1]) if read is not None else 0.0
    except ValueError:
        amount = 0.0
    if read is None or not 0 < amount < float("inf"):
        raise InputError(
            f"--budget {short(printable(text))} is no amount of money; write one such as '20 {pool.currency}'"
        )
    if read[2] not in (None, pool.currency):
        raise InputError(
            f"--budget is in {read[2]}, and the pool is priced in {pool.currency}; give it in {pool.currency}"
        )
    if not any(each.compute.price_per_hour for each in classes):
        raise InputError(
            "--budget means nothing where all workers are free; name a pool with prices (--pool), or leave it out"
        )
    return amount


def sha256_of(path: str) -> str:
    """Return the hash of a file.

    Raises:
        InputError: where it cannot be read.
    """
    try:
        with open_plain(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{printable(path)} cannot be read: {error.strerror or error}") from error


def discard(search: Search) -> None:
    """Remove the folder of a search that never began to run."""
    shutil.rmtree(search.folder, ignore_errors=True)


def _is_maximised(request: SearchRequest) -> bool:
    if request.metric == LOSS:
        if request.is_maximised:
            raise OptionError("--max means the worst for the metric 'loss'; leave it out, or give --min")
        return False
    if request.is_maximised is None:
        raise OptionError(
            f"--metric {printable(request.metric)} does not say which value is the best; give --max for the highest, "
            "--min for the lowest"
        )
    return request.is_maximised


def _check_address(engine: str, address: str | None) -> None:
    if address is not None and engine != "ray":
        raise OptionError("--address names a cluster of Ray, and means nothing without --engine ray; give both")


def _check_cores(request: SearchRequest, classes: tuple[WorkerClass, ...]) -> None:
    """Refuse a worker for every unit of a pool that is larger than this machine, unless it was asked for by number."""
    units, cores = sum(each.compute.workers * each.compute.units for each in classes), usable_cores()
    if request.workers is None and request.engine == ENGINE_NAMES[0] and units > cores:
        raise InputError(
            f"the pool has {units:,} units, each of them a worker, and this machine has {counted(cores, 'core')}; say "
            f"how many run at once (--workers {printable(classes[0].name)}=1x1), or --engine ray"
        )


def _check_training(request: SearchRequest) -> None:
    functions = check_file(RunOptions(directory="", train=request.train, data=request.data, validate=request.validate))
    if request.validate is None and "validation_data" not in functions.defined:
        raise InputError(
            f"nothing would be validated, so that the metric {printable(request.metric)!r} would never be reported; "
            f"name data (--validate FILE), or define validation_data() in {printable(request.train)!r}"
        )
    if request.metric != LOSS and "metrics" not in functions.possible:
        raise UnknownNameError(f"metric ({printable(request.train)!r} has no metrics())", request.metric, [LOSS])


def _check_folder(output: str) -> Path:
    folder = Path(output).absolute()
    if (folder / RECORD_FILE).exists():
        raise InputError(
            f"{short(printable(output))} has a search; go on with it (--resume), look at it (--show), or name another "
            "folder (-o DIR)"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{short(printable(output))} is there and is not empty; name another folder (-o DIR)")
    return folder


def _arguments(request: SearchRequest) -> dict[str, str]:
    files = {"train": request.train, "model": request.model, "data": request.data}
    files |= {"validate": request.validate or "", "address": request.address or ""}
    found = {name: value for name, value in files.items() if value}
    for name, value in found.items():
        if name in ("train", "model") or (name in ("data", "validate") and _is_path(value)):
            found[name] = str(Path(value).absolute())
    return {**found, "pool": request.pool}


def _is_path(spec: str) -> bool:
    return not is_random(spec) and "://" not in spec
