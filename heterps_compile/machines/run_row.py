"""A run's log as a row of measurements, beside the plan it followed.

The step is the median of the log's ``pace_s``, from the end of a step to the end of the next, so that the optimizer
counts, as it does in what a training takes; the first tenth of the steps, and one at least, are left out. What it is
compared with is the step of the plan, without what was learned before it was made.

Refused is a log whose steps are of other replicas than the plan's, or of no training. The log does not tell schedule,
micro-batches, precision and cores that processes share: whoever makes a row of it answers for these.

Left out: plans on several kinds of units, of which no factor of one kind can be learned.
"""

import csv
import datetime as dt
import io
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.escape import printable, short
from heterps_compile.offers.as_device import data_sheet, known_gpus
from heterps_compile.offers.catalogue import NO_GPU
from heterps_compile.plain_file import open_plain
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.source import read_plan
from heterps_compile.units import counted

from .chosen_file import CHOSEN_NAME, read_chosen
from .measured_runs import COLUMNS

LEAST_STEPS = 10
_LARGEST_BYTES = 1 << 30
_SETTLING = 0.1  # of the steps


def row_of_run(log: str | Path, folder: str | Path, *, gpu: str | None = None, source: str = "") -> Mapping[str, str]:
    """Return a row of measurements by column.

    Args:
        log: That ``run --log FILE.jsonl`` wrote.
        folder: Of the plan that ran.
        gpu: The kind of its units as offers spell it, ``"none"`` for virtual CPUs; None where the folder says it, as
            one of ``machines -o`` does.
        source: Where it is from; the name of the log where nothing is said.

    Raises:
        HeterpsError: where either cannot be read, the log has too few steps or is of a run that is not as planned (of
            other replicas, or one that trained nothing), or the plan has several kinds of units.
    """
    plan = read_plan(str(folder))
    kinds = {device for stage in plan.stages for device, _ in stage.units}
    if len(kinds) > 1:
        raise InputError(
            f"the plan {printable(repr(str(folder)))} has units of {counted(len(kinds), 'kind')}, and a factor is of "
            "one; measure a run on one kind"
        )
    kind, factor = _kind(plan, Path(folder), gpu)
    units = sum(stage.replicas for stage in plan.stages)
    in_machine = max((getattr(each, "units_per_machine", 1) for each in plan.devices if each.name in kinds), default=1)
    shown, path = printable(repr(str(log))), Path(log)
    steps = [line for line in _lines(path, shown) if "step" in line]
    samples = {line.get("samples") for line in steps}
    if samples != {plan.batch}:
        raise InputError(
            f"{shown} has steps of {', '.join(sorted(map(short, samples)))[:80] or 'no'} samples, and the plan's batch "
            f"is {plan.batch:,}; name the log of a run of this plan"
        )
    for line in steps:
        _check_as_planned(line, units, shown)
    paces = [_pace(line, shown) for line in steps][max(1, int(len(steps) * _SETTLING)) :]
    if len(paces) < LEAST_STEPS:
        raise InputError(
            f"{shown} has {counted(len(steps), 'step')}, of which {len(paces)} count; expected {LEAST_STEPS} at least"
        )
    day = dt.datetime.fromtimestamp(path.stat().st_mtime, dt.UTC).date()
    values = (
        kind,
        units,
        -(-units // in_machine),
        plan.batch,
        f"{statistics.median(paces):.6g}",
        day,
        source or printable(path.name),
    )
    row = dict(zip(COLUMNS, map(str, values), strict=True))
    return row | {"predicted_s": f"{plan.schedule.step_s / factor:.6g}", "precision": plan.request.precision}


def rows_text(rows: Iterable[Mapping[str, str]]) -> str:
    """Return rows as the CSV file that ``machines --learn`` takes."""
    names: tuple[str, ...] = (*COLUMNS, "predicted_s", "precision")
    file = io.StringIO()
    writer: csv.DictWriter[str] = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _kind(plan: Plan, folder: Path, gpu: str | None) -> tuple[str, float]:
    """Return the kind of a plan's units, and what the plan's times were multiplied by."""
    if (folder / CHOSEN_NAME).is_file():
        chosen = read_chosen(folder)
        found = {rental.offer.gpu for rental, _ in chosen.machines.parts}
        parts = chosen.machines.parts
        names = {name: rental.offer.gpu for name, (rental, _) in zip(chosen.machines.names, parts, strict=True)}
        kind = names.get(plan.stages[0].device, next(iter(found)))
        correction = chosen.machines.learned.of(kind)
        sends = sum(stage.replicas for stage in plan.stages) > 1  # one unit alone computes, whatever it would send
        if correction is not None and correction.sending is not None and sends:
            raise InputError(
                f"the plan {printable(repr(str(folder)))} was made with what {short(kind or NO_GPU)} compute and send "
                "corrected apart, so that what was predicted before is not known; write a row with the model's name "
                "(model) in place of predicted_s"
            )
        return kind or NO_GPU, 1.0 if correction is None else correction.factor
    kind = plan.stages[0].device if gpu is None else gpu
    try:
        data_sheet("" if kind == NO_GPU else kind)
    except UnknownNameError as error:
        raise InputError(
            f"the plan's units are called {short(kind)}, of which no data sheet is known; say which kind they are with "
            f"gpu=, {NO_GPU} or one of {', '.join(known_gpus())}"
        ) from error
    return kind, 1.0


def _lines(path: Path, shown: str) -> Iterator[dict[str, Any]]:
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise InputError(f"{shown} has {path.stat().st_size >> 20:,} MiB, and a log at most 1,024; keep its end")
        with TextIOWrapper(open_plain(path), encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise InputError(
                        f"{shown}, line {number}: no line of a run's log (run --log FILE.jsonl)"
                    ) from error
                if not isinstance(record, dict):
                    raise InputError(f"{shown}, line {number}: no line of a run's log (run --log FILE.jsonl)")
                yield record
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {shown}: {getattr(error, 'strerror', None) or 'it is no UTF-8 text'}") from error


def _check_as_planned(line: Mapping[str, Any], units: int, shown: str) -> None:
    """Refuse a step that the plan's is no prediction of: of other replicas, or of a run that trained nothing."""
    ranks = line.get("ranks")
    processes = len(ranks) if isinstance(ranks, list) else None
    if processes != units:
        told = "no" if processes is None else f"{processes:,}"
        raise InputError(
            f"{shown} has a step {short(line['step'])} on {told} processes, and the plan has {counted(units, 'unit')}; "
            "measure a run with the replicas of the plan"
        )
    if line.get("learning_rate") is None:
        raise InputError(
            f"{shown} has a step {short(line['step'])} without a learning rate, as of a run that trains nothing, and "
            "the plan predicts a training; measure one with --train"
        )


def _pace(line: Mapping[str, Any], shown: str) -> float:
    pace_s = line.get("pace_s")
    if not isinstance(pace_s, (int, float)) or not 0 < pace_s < math.inf:
        raise InputError(f"{shown} has a step that took {short(pace_s)} s (pace_s); it must be above 0")
    return float(pace_s)
