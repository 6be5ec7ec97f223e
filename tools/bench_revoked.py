"""Real runs that are killed and go on: `python tools/bench_revoked.py [--runs 5] [--write runs.csv]`.

A perceptron trains on this machine by `run --checkpoint --every`. Runs that lose nothing, one before all others and
one behind them, each stopped and resumed halfway, give speed, start-up and checkpoint time; a start before these is
thrown away, since it reads all files anew. Between them runs are killed (SIGKILL of all their processes) at ages drawn
from a Weibull, and started again with `--resume`, until they have done all steps. Every run becomes a row of
`tools/revoked_runs.py`, which predicts its end-to-end time from those three numbers and the ages alone. A second table
says where the errors come from. Take a quiet machine.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import onnx
from bench_unequal import WIDTHS, heterps, network
from revoked_runs import print_revoked, read_revoked, rows_text

from heterps_compile.transient.lifetime import HOUR_S, Weibull

BATCH = 128
EVERY = 40
POLL_S = 0.005
SHAPE, SCALE = 0.9, 0.6
"""Of the Weibull of ages, from when a run computes; the scale in parts of the time that all steps take."""

_TRAIN = """import torch


def loss(outputs, batch):
    outputs = outputs[0] if isinstance(outputs, (list, tuple)) else outputs
    return outputs.square().mean()


def optimizer(parameters):
    return torch.optim.SGD([parameter for _, parameter in parameters], lr=1e-3)
"""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of a run, up to its last step or its death.

    Attributes:
        begun_s: When it was started, on the monotonic clock.
        first_s: When its first step was logged; None where it died before.
        last_s: When the last step that it was to do was logged, or when it ended with nothing left to do; None where
            it died before.
        steps: The numbers of its steps.
        paces_s: Of these.
    """

    begun_s: float
    first_s: float | None
    last_s: float | None
    steps: tuple[int, ...]
    paces_s: tuple[float, ...]

    @property
    def pace_s(self) -> float:
        """Return the median of its steps."""
        return statistics.median(self.paces_s)

    @property
    def start_up_s(self) -> float:
        """Return the seconds from its start until it computes its first step."""
        return _known(self.first_s) - self.begun_s - self.pace_s

    @property
    def checkpoints_s(self) -> float:
        """Return what its steps took beyond their pace."""
        return _known(self.last_s) - _known(self.first_s) - (len(self.steps) - 1) * self.pace_s


def _known(moment_s: float | None) -> float:
    if moment_s is None:
        raise AssertionError("asked of a start that never came so far")
    return moment_s


@dataclass(frozen=True, slots=True)
class Speeds:
    """What runs that lose nothing say, and all that is known of the others beside their ages.

    Attributes:
        pace_s: Of a step.
        start_up_s: From a start until the first step is computed.
        checkpoint_s: For how long a checkpoint stops the run.
    """

    pace_s: float
    start_up_s: float
    checkpoint_s: float


def speeds_of(attempts: Sequence[Attempt]) -> Speeds:
    """Return what attempts that lost nothing say."""
    pace_s = statistics.mean(map(attrgetter("pace_s"), attempts))
    start_up_s = statistics.mean(map(attrgetter("start_up_s"), attempts))
    checkpoints = sum((len(one.steps) - 1) // EVERY for one in attempts)
    return Speeds(pace_s, start_up_s, max(0.0, sum(one.checkpoints_s for one in attempts) / max(checkpoints, 1)))


def attempt(folder: Path, steps: int, ages_s: float | None, number: int) -> Attempt:
    """Start a run, or go on with it, and kill it at an age, if one is given."""
    log = folder / f"log-{number}.jsonl"
    words = ["run", str(folder / "plan.heterps"), "--train", str(folder / "train.py")]
    words += ["--data", f"random:x0=float32[{WIDTHS[0]}]", "--steps", str(steps), "--checkpoint", str(folder / "ck")]
    words += ["--every", str(EVERY), "--resume", "--log", str(log), "-q"]
    begun_s = time.monotonic()
    with (folder / f"told-{number}").open("w") as told:
        process = subprocess.Popen(
            [sys.executable, "-m", "heterps_compile", *words], stdout=told, stderr=told, start_new_session=True
        )
    first_s = last_s = None
    try:
        while process.poll() is None:
            now_s = time.monotonic()
            if ages_s is not None and now_s - begun_s >= ages_s:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                break
            size = log.stat().st_size if log.exists() else 0
            first_s = now_s if first_s is None and size else first_s
            if first_s is not None and last_s is None and f'"step": {steps - 1},' in _end_of(log):
                last_s = now_s
                ages_s = None  # it is done: nothing is killed
            time.sleep(POLL_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode not in (0, -signal.SIGKILL):
        sys.exit(f"the run failed:\n{(folder / f'told-{number}').read_text()[-2000:]}")
    lines = log.read_text("utf-8").splitlines() if log.exists() else []
    done = []
    for line in lines:
        with suppress(ValueError):  # the last one, where it was killed
            record = json.loads(line)
            done += [(record["step"], record["pace_s"])] if "pace_s" in record else []
    numbers, paces_s = zip(*done, strict=True) if done else ((), ())
    ended_s = last_s or (time.monotonic() if process.returncode == 0 else None)
    return Attempt(begun_s, first_s, ended_s, numbers, paces_s)


def _end_of(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        return file.read().decode("utf-8", "replace")


def whole_run(folder: Path, steps: int, lives_s: list[float | None], start_up_s: float) -> list[Attempt]:
    """Run to the end through losses, or to the end of a life of None; return all starts."""
    forget(folder)
    attempts: list[Attempt] = []
    while not attempts or attempts[-1].last_s is None:
        life_s = lives_s[len(attempts)]
        attempts.append(attempt(folder, steps, None if life_s is None else start_up_s + life_s, len(attempts)))
    return attempts


def run_without_losses(folder: Path, steps: int) -> list[Attempt]:
    """Run half of the steps from nothing, and resume for the others."""
    forget(folder)
    attempts = [attempt(folder, upto, None, number) for number, upto in enumerate((steps // 2, steps))]
    if any(one.last_s is None or len(one.steps) < EVERY for one in attempts):
        sys.exit(f"a run without losses did fewer steps than {EVERY}; take more (--steps)")
    return attempts


def forget(folder: Path) -> None:
    """Take away checkpoints and logs of the run before."""
    subprocess.run(["rm", "-rf", str(folder / "ck"), *map(str, folder.glob("log-*"))], check=True)


def took_s(attempts: Sequence[Attempt]) -> float:
    """Return the seconds from the first start to the last step."""
    return _known(attempts[-1].last_s) - attempts[0].begun_s


def checkpoint_s(attempts: Sequence[Attempt]) -> float | None:
    """Return what a checkpoint took in the start that did the last steps; None where it made none."""
    for one in reversed(attempts):
        if one.steps and one.last_s is not None and (count := (len(one.steps) - 1) // EVERY):
            return max(0.0, one.checkpoints_s / count)
    return None


def accounts(runs: Sequence[Sequence[Attempt]], lives_s: Sequence[Sequence[float]], speeds: Speeds) -> Iterator[str]:
    """Yield a table of the parts of every run: as it was, and as predicted from speeds and lives."""
    yield "| run | steps done again: as it was, predicted | start-up | step | beyond the steps, of a checkpoint |"
    yield "|---|---|---|---|---|"
    stretch_s = EVERY * speeds.pace_s + speeds.checkpoint_s
    for number, (attempts, lives) in enumerate(zip(runs, lives_s, strict=True), 1):
        done = sum(len(one.steps) for one in attempts)
        again = done - (max(step for one in attempts for step in one.steps) + 1)
        rests_s = [life_s % stretch_s for life_s in lives[: len(attempts) - 1]]
        predicted = sum(min(rest_s / speeds.pace_s, EVERY) for rest_s in rests_s)
        begun = [one for one in attempts if one.first_s is not None]
        start_up_s = statistics.mean(one.start_up_s for one in begun)
        pace_s = statistics.median(pace for one in attempts for pace in one.paces_s)
        beyond = "-" if (own_s := checkpoint_s(attempts)) is None else f"{1e3 * own_s:.0f} ms"
        yield f"| run {number} | {again}, {predicted:.0f} | {start_up_s:.2f} s | {1e3 * pace_s:.2f} ms | {beyond} |"


def row_of(
    number: int, steps: int, speeds: Speeds, attempts: Sequence[Attempt], lives_s: Sequence[float]
) -> dict[str, object]:
    """Return a run as a row of `tools/revoked_runs.py`."""
    return {
        "run": f"run {number}", "steps": steps, "steps_per_s": 1 / speeds.pace_s, "machines": 1,
        "checkpoint_every": EVERY, "checkpoint_s": speeds.checkpoint_s, "start_up_s": speeds.start_up_s,
        "lost_h": " ".join(f"{life_s / HOUR_S:.8f}" for life_s in lives_s[: len(attempts) - 1]),
        "measured_s": took_s(attempts),
    }  # fmt: skip


def own_rows(
    steps: int,
    speeds: Speeds,
    runs: Sequence[Sequence[Attempt]],
    killed_at_s: float,
    lives_s: Sequence[Sequence[float]],
) -> Iterator[dict[str, object]]:
    """Yield runs with the speeds that each had itself: what is left of an error is not the machine's.

    Where a run made no checkpoint after its last loss, checkpoints take what those of all do.
    """
    for number, (attempts, lives) in enumerate(zip(runs, lives_s, strict=True), 1):
        begun = [one for one in attempts if one.first_s is not None]
        paces_s = [pace_s for one in attempts for pace_s in one.paces_s]
        own = Speeds(
            statistics.median(paces_s),
            statistics.mean(one.start_up_s for one in begun),
            speeds.checkpoint_s if (own_s := checkpoint_s(attempts)) is None else own_s,
        )
        lived_s = [max(0.0, life_s + killed_at_s - own.start_up_s) for life_s in lives]
        yield row_of(number, steps, own, attempts, lived_s)


def main() -> None:
    """Measure, write the rows, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rng = np.random.default_rng(given.seed)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        onnx.save(network(), folder / "model.onnx")
        asked = ["--mode", "training", "--max-stages", "1", "--batch", str(BATCH), "--backend", "torch"]
        heterps([str(folder / "model.onnx"), "-o", str(folder / "plan.heterps"), "--force", "-q", *asked])
        (folder / "train.py").write_text(_TRAIN)
        attempt(folder, 2 * EVERY, None, 0)
        quiet = run_without_losses(folder, given.steps)
        law = Weibull(SHAPE, SCALE * given.steps * speeds_of(quiet).pace_s / HOUR_S)
        runs, all_lives_s = [], []
        for _ in range(given.runs):
            lives_s = [life_h * HOUR_S for life_h in law.sample(rng, 40).tolist()]
            runs.append(whole_run(folder, given.steps, [*lives_s, None], speeds_of(quiet).start_up_s))
            all_lives_s.append(lives_s)
        killed_at_s = speeds_of(quiet).start_up_s
        quiet += run_without_losses(folder, given.steps)
        speeds, path = speeds_of(quiet), given.write or folder / "runs.csv"
        for what, two in (("before", quiet[:2]), ("behind", quiet[2:])):
            told = speeds_of(two)
            print(
                f"{what} the runs: {given.steps} steps of {1e3 * told.pace_s:.2f} ms, a checkpoint every {EVERY} of "
                f"{1e3 * told.checkpoint_s:.0f} ms, start-ups "
                f"{' and '.join(f'{one.start_up_s:.2f} s' for one in two)}"
            )
        print(f"ages by a Weibull of {law.scale_hours * HOUR_S:.3g} s and shape {law.shape:g}", flush=True)
        # a machine was killed at its age behind the start-up that was known then; by the one known now it lived
        shift_s = killed_at_s - speeds.start_up_s
        lived_s = [[max(0.0, life_s + shift_s) for life_s in lives_s] for lives_s in all_lives_s]
        rows = [
            row_of(number, given.steps, speeds, attempts, lives_s)
            | {"lifetime": f"{law.scale_hours * HOUR_S:.6f}s,{law.shape:g}"}
            for number, (attempts, lives_s) in enumerate(zip(runs, lived_s, strict=True), 1)
        ]
        path.write_text(rows_text(rows), "utf-8")
        own = folder / "own.csv"
        own.write_text(rows_text(own_rows(given.steps, speeds, runs, killed_at_s, all_lives_s)), "utf-8")
        print()
        for line in accounts(runs, lived_s, speeds):
            print(line)
        print()
        for line in print_revoked(list(read_revoked(path))):
            print(line)
        errors = [run.replayed_s() / run.measured_s - 1 for run in read_revoked(own)]
        mean = 100 * statistics.mean(map(abs, errors))
        told = ", ".join(f"{100 * error:+.1f} %" for error in errors)
        print(f"Given the step, start-up and checkpoint of each run itself: {mean:.1f} % (published: 0.8 %); {told}.")


if __name__ == "__main__":
    main()
