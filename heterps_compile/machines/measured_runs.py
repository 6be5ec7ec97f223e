"""Measured steps in a CSV file, and what was predicted of each; the columns are those of ``docs/machines.md``.

A row says on what a step of how many samples took how long, and in one of three ways what it is compared with: the
seconds that were predicted (a run's own plan has them), the name of the model that machines are chosen for, or the
operations of a sample.

Left out: the factors (``learned.py``), rows of a run's log (``run_row.py``).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from heterps_compile.cluster.devices import DeviceType
from heterps_compile.cost.precision import PRECISIONS, product_dtype
from heterps_compile.errors import HeterpsError, InputError
from heterps_compile.escape import printable, short
from heterps_compile.ir.graph import OpKind
from heterps_compile.offers import Offer, device_of
from heterps_compile.offers.as_device import data_sheet
from heterps_compile.offers.csv_rows import Row, check_size, read_rows
from heterps_compile.offers.formats import read_date
from heterps_compile.units import counted, format_seconds

from .gpu_of_row import gpu_of_row
from .learned import Learned, Parts, can_be_told_apart, learn
from .step_times import StepTimes

COLUMNS = ("gpu", "units", "machines", "batch", "step_s", "date", "source")
"""Every row has these."""

COMPARED = ("predicted_s", "model", "flop_per_sample")
"""A row has one of these."""

FURTHER = ("precision", "network_gbit_per_s", "inner_gbyte_per_s")
"""A row may have these."""

_MOST_ROWS = 10_000
_MOST_BATCHES = 32  # of the model, which is read for each
_MOST_STEP_S = 1e6
_MOST_SAMPLES = 10**9
_MOST_RATIO = 100.0


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured step.

    Attributes:
        row: Of the file.
        gpu: The kind of the units; "" for virtual CPUs.
        units: In all.
        machines: In which they stand.
        batch: Samples of the step.
        step_s: That it took.
        precision: In which it computed; "" where the row does not say.
        predicted_s: What was predicted; None where the row does not say.
        model: What was trained; "" where the row does not say.
        flop_per_sample: Of forward and backward; None where the row does not say.
        device: The units, and what connects them.
    """

    row: Row
    gpu: str
    units: int
    machines: int
    batch: int
    step_s: float
    precision: str
    predicted_s: float | None
    model: str
    flop_per_sample: float | None
    device: DeviceType


def read_measured(path: str | Path) -> Iterator[Measured]:
    """Yield the rows of a file.

    Raises:
        InputError: in one sentence, with the row, what stands there and what was expected.
    """
    where = printable(repr(str(path)))
    check_size(Path(path), where, "measurements")
    is_first = True
    for number, row in enumerate(read_rows(Path(path), where), 1):
        if is_first:
            _check_columns(row, where)
            is_first = False
        if number > _MOST_ROWS:
            raise row.wrong(f"measurements are at most {_MOST_ROWS:,} rows; keep the newest")
        yield _measured(row)
    if is_first:
        raise InputError(f"{where} has no measurement below its header; add a row, or leave --learn out")


def learn_from(path: str | Path, times: StepTimes, names: tuple[str, ...], precision: str) -> Learned:
    """Return what measurements say of kinds of GPUs.

    Args:
        path: Of the file.
        times: Steps of the model at hand as predicted, with nothing learned.
        names: What rows may call that model.
        precision: What it computes in; rows of another do not count.

    Raises:
        InputError: as :func:`read_measured`.
    """
    ratios: defaultdict[str, list[float]] = defaultdict(list)
    parts: defaultdict[str, list[Parts | None]] = defaultdict(list)
    sources: defaultdict[str, list[str]] = defaultdict(list)
    left_out: Counter[str] = Counter()
    batches = set[int]()
    for one in read_measured(path):
        if one.precision not in ("", precision):
            left_out[f"in another precision than {precision}"] += 1
            continue
        if one.predicted_s is not None:
            computed_s, sent_s = one.predicted_s, 0.0 if one.units == 1 else None
        elif one.model in names and one.model:
            batches.add(one.batch)
            if len(batches) > _MOST_BATCHES:
                raise one.row.wrong(
                    f"this is the {len(batches)}th batch of {short(one.model)}; keep rows of {_MOST_BATCHES} batches, "
                    "or give predicted_s"
                )
            computed_s, sent_s = _of_model(one, times)
        elif one.flop_per_sample is not None:
            dtype = product_dtype(OpKind.GEMM, PRECISIONS[precision], precision)
            computed_s = one.flop_per_sample * one.batch / one.units / one.device.flops_per_s(dtype)
            sent_s = 0.0 if one.units == 1 else None
        else:
            left_out[f"of other models, with neither predicted_s nor flop_per_sample (this one is {names[0]})"] += 1
            continue
        sources[one.gpu].append(one.row.text("source", "the cluster of the row"))
        ratios[one.gpu].append(_ratio(one, computed_s + (sent_s or 0.0)))
        parts[one.gpu].append(None if sent_s is None else Parts(one.step_s, computed_s, sent_s))
    notes = [f"left out of what is learned: {counted(count, 'row')} {why}" for why, count in left_out.items()]
    if not ratios:
        raise InputError(f"nothing is learned from {printable(repr(str(path)))}: {'; '.join(notes)}")
    apart = {gpu: known for gpu, of in parts.items() if (known := [each for each in of if each is not None]) == of}
    apart = {gpu: of for gpu, of in apart.items() if can_be_told_apart(of)}
    notes += [_not_told_apart(gpu, parts[gpu]) for gpu in sorted(ratios) if gpu not in apart]
    return learn(ratios, printable(Path(path).name), notes, parts=apart, sources=sources)


def _not_told_apart(gpu: str, parts: Sequence[Parts | None]) -> str:
    """Say that one factor is of computing and sending, and why."""
    unknown = sum(each is None for each in parts)
    if unknown:
        why = (
            f"{counted(unknown, 'row')} of several units do not say what part of the prediction is sent; name the model"
        )
    else:
        why = "the rows send about the same part of a step; add rows of other numbers of machines, by the model's name"
    return f"what {_called(gpu)} compute and what they send are slowed by one factor: {why}"


def _of_model(one: Measured, times: StepTimes) -> tuple[float, float]:
    """Return what replicas of the whole model compute, and take to sum their gradients behind the backward."""
    units = np.array([float(one.units)])
    try:
        computed_s = float(times.computed_s(one.device, units, one.batch)[0])
        likely_s = float(times.likely_s(one.device, units, one.batch)[0])
    except HeterpsError as error:
        raise one.row.wrong(f"the model cannot be predicted with a batch of {one.batch:,}: {error}") from error
    if not 0 < likely_s < math.inf:
        raise one.row.wrong(f"the model is predicted not to run on {_called(one.gpu)}; give predicted_s")
    return computed_s, max(0.0, likely_s - computed_s)


def _ratio(one: Measured, predicted_s: float) -> float:
    if not 0 < predicted_s < math.inf:
        raise one.row.wrong(f"the step is predicted to take {predicted_s:g} s, which is no time")
    ratio = one.step_s / predicted_s
    if not 1 / _MOST_RATIO <= ratio <= _MOST_RATIO:
        raise one.row.wrong(
            f"step_s {one.step_s:g} is {ratio:.3g} times what is predicted ({format_seconds(predicted_s)}), and at "
            f"most {_MOST_RATIO:g} times more or less is believed; it is the seconds of a whole step of {one.batch:,} "
            "samples"
        )
    return ratio


def _measured(row: Row) -> Measured:
    gpu = gpu_of_row(row)
    units = row.whole("units", "how many units computed, in all machines", most=100_000)
    machines = row.whole("machines", "in how many machines they stood", most=100_000)
    if units < machines:
        raise row.wrong(
            f"{counted(units, 'unit')} cannot stand in {counted(machines, 'machine')}; units are all of them"
        )
    date = read_date(row, "date", "when the step was measured")
    row.text("source", "who measured it, or where it is written")
    precision = row.text("precision", "what it computed in") if row.has("precision") else ""
    if precision and precision not in PRECISIONS:
        raise row.wrong(f"precision {short(precision)} is none; expected {', '.join(PRECISIONS)}, or nothing")
    model = row.text("model", "the model's name") if row.has("model") else ""
    predicted_s = _some(row, "predicted_s", "the predicted seconds of a step", _MOST_STEP_S)
    flop = _some(row, "flop_per_sample", "operations of a sample, forward and backward", 1e24)
    if predicted_s is None and flop is None and not model:
        raise row.wrong(f"nothing says what step_s is compared with; give one of {', '.join(COMPARED)}")
    network = _some(row, "network_gbit_per_s", "a machine's network in Gbit/s", 1e6)
    inner = _some(row, "inner_gbyte_per_s", "what connects two units of a machine in GB/s", 1e6)
    in_each = -(-units // machines)
    machine = Offer(
        "measured", "here", "machine", gpu, in_each if gpu else 0, in_each, in_each * data_sheet(gpu).memory_bytes, 0.0,
        (network or 0.0) * 1e9 / 8, (inner or 0.0) * 1e9, 1.0, None, date, "measured",
    )  # fmt: skip
    return Measured(
        row, gpu, units, machines,
        row.whole("batch", "samples of a step, in all units", most=_MOST_SAMPLES),
        row.number("step_s", "the seconds of a step", most=_MOST_STEP_S),
        precision, predicted_s, model, flop, device_of(machine, machines=machines),
    )  # fmt: skip


def _called(gpu: str) -> str:
    return gpu or "virtual CPUs"


def _some(row: Row, column: str, what: str, most: float) -> float | None:
    return row.number(column, what, most=most) if row.has(column) else None


def _check_columns(row: Row, where: str) -> None:
    missing = [name for name in COLUMNS if name not in row.cells]
    if missing:
        raise InputError(
            f"{where} lacks the columns {', '.join(missing)}; measurements have {', '.join(COLUMNS)}, and one of "
            f"{', '.join(COMPARED)}"
        )
    unknown = [name for name in row.cells if name not in (*COLUMNS, *COMPARED, *FURTHER)]
    if unknown:
        raise InputError(
            f"{where} has the column {short(unknown[0])}, which nothing reads; columns are "
            f"{', '.join((*COLUMNS, *COMPARED, *FURTHER))}"
        )
