"""Runs that lost machines, as rows of a CSV file, and what is predicted of their end-to-end time.

Columns: `run` (a name), `steps` and `steps_per_s` (with all machines up), `machines`, `checkpoint_every` (steps, empty
for none), `checkpoint_s` or else `checkpoint_mb` and `write_mb_per_s`, `start_up_s` (from a loss, which stops all,
until the machine in its place computes), `lost_h` (ages in hours at which machines were lost, of one machine and those
in its place with spaces between them, machines by `|`; such as `0.5 1.2||0.3`), `measured_s` (from the first request to
the last step). May be missing: `lifetime` (`20h` or `20h,0.6`, the law where `lost_h` is not to be known),
`first_start` (`no` where the time begins with all up).
"""

import csv
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from heterps_compile.errors import InputError
from heterps_compile.machines.goal import parse_lifetime
from heterps_compile.transient.expected import ExpectedRun, expect_run
from heterps_compile.transient.lifetime import Weibull
from heterps_compile.transient.transient_work import Machines, Recovery, TransientWork

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from replayed_run import replay_run

COLUMNS = (
    "run", "steps", "steps_per_s", "machines", "checkpoint_every", "checkpoint_s", "checkpoint_mb", "write_mb_per_s",
    "start_up_s", "lost_h", "measured_s",
)  # fmt: skip
OPTIONAL = ("checkpoint_s", "checkpoint_mb", "write_mb_per_s", "lifetime", "first_start")


@dataclass(frozen=True, slots=True)
class RevokedRun:
    """One run that was measured.

    Attributes:
        name: Of the run.
        work: What it computed, and how losses were made good; its machines stay where no law is given.
        lives_hours: The lifetimes of every machine and of those that took its place.
        lifetime: The law of them; None where the row has none.
        measured_s: End to end.
    """

    name: str
    work: TransientWork
    lives_hours: tuple[tuple[float, ...], ...]
    lifetime: Weibull | None
    measured_s: float

    @property
    def losses(self) -> int:
        return sum(map(len, self.lives_hours))

    def replayed_s(self) -> float:
        """Return what it takes with the lifetimes that were seen."""
        return replay_run(self.work, [iter(lives) for lives in self.lives_hours]).time_s

    def expected(self) -> ExpectedRun | None:
        """Return what it takes by the law alone; None where there is none."""
        return None if self.lifetime is None else expect_run(self.work)


def read_revoked(path: Path) -> Iterator[RevokedRun]:
    """Yield the runs of a file.

    Raises:
        InputError: naming the row, where one is none.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in OPTIONAL and name not in (reader.fieldnames or ())]
            if missing:
                raise InputError(f"{path} lacks the columns {', '.join(missing)}")
            number = 0
            for number, row in enumerate(reader, 2):
                try:
                    yield _run(row)
                except (ValueError, KeyError, TypeError, AttributeError, InputError) as error:
                    raise InputError(f"{path}, row {number} is no run: {error}") from error
            if not number:
                raise InputError(f"{path} has no run below its header")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def _run(row: Mapping[str, str]) -> RevokedRun:
    machines, steps_per_s = int(row["machines"]), _number(row, "steps_per_s")
    lives = [tuple(float(age) for age in each.split()) for each in row["lost_h"].split("|")]
    if len(lives) > machines or any(not 0 <= age < math.inf for each in lives for age in each):
        raise ValueError(f"lost_h is {row['lost_h']!r}, of {machines} machines; ages are hours that are not negative")
    if row.get("stops") == "no":
        raise ValueError("stops is no; expected runs that every loss stops")
    every = row["checkpoint_every"]
    law = parse_lifetime(row["lifetime"]) if row.get("lifetime") else None
    recovery = Recovery(
        start_up_s=_number(row, "start_up_s"),
        checkpoint_s=0.0 if not every else _checkpoint_s(row),
        interval_s=float(every) / steps_per_s if every else math.inf,
    )
    work = TransientWork(
        _number(row, "steps") / steps_per_s,
        (Machines(machines, 0.0, law),),
        recovery,
        is_running=row.get("first_start") == "no",
    )
    lives += [()] * (machines - len(lives))
    return RevokedRun(row["run"], work, tuple(lives), law, _number(row, "measured_s"))


def _checkpoint_s(row: Mapping[str, str]) -> float:
    if row.get("checkpoint_s"):
        return float(row["checkpoint_s"])
    return _number(row, "checkpoint_mb") / _number(row, "write_mb_per_s")


def _number(row: Mapping[str, str], name: str) -> float:
    value = float(row[name])
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {row[name]}; it must be above 0")
    return value


def rows_text(rows: Iterable[Mapping[str, object]]) -> str:
    """Return rows as such a file."""
    names = (*COLUMNS, "lifetime", "first_start")
    return "\n".join([",".join(names), *(",".join(_cell(row.get(name, "")) for name in names) for row in rows)]) + "\n"


def _cell(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f'"{text}"' if "," in text else text


def print_revoked(runs: Sequence[RevokedRun]) -> Iterator[str]:
    """Yield a table of what was predicted and measured."""
    yield "End-to-end time of runs that lost machines, from speeds, sizes and lifetimes."
    yield ""
    yield "| run | lost | measured | with the lifetimes seen | error | by the law: mean (9 of 10) |"
    yield "|---|---|---|---|---|---|"
    errors, expected = [], []
    for run in runs:
        replayed_s, by_law = run.replayed_s(), run.expected()
        errors.append(replayed_s / run.measured_s - 1)
        words = "-"
        if by_law is not None:
            expected.append((by_law.time_s.mean, by_law.time_s.most, run.measured_s))
            words = f"{by_law.time_s.mean:.1f} s ({by_law.time_s.most:.1f} s)"
        yield (
            f"| {run.name} | {run.losses} | {run.measured_s:.1f} s | {replayed_s:.1f} s | {100 * errors[-1]:+.1f} % "
            f"| {words} |"
        )
    mean = 100 * sum(map(abs, errors)) / len(errors)
    yield ""
    signed = 100 * sum(errors) / len(errors)
    yield f"Mean error {mean:.1f} % with the lifetimes seen (wanted: 3 %); signed {signed:+.1f} %."
    if expected:
        means, mosts, measured = zip(*expected, strict=True)
        within = sum(own <= most for most, own in zip(mosts, measured, strict=True))
        yield (
            f"By the law all of them take {sum(means):.1f} s in the mean, and took {sum(measured):.1f} s "
            f"({100 * (sum(means) / sum(measured) - 1):+.1f} %); {within} of {len(expected)} took no longer "
            "than nine of ten."
        )
