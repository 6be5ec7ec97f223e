"""Real runs that are killed and go on: `python tools/bench_revoked.py [--runs 5] [--write runs.csv]`.

A perceptron trains on this machine by `run --checkpoint --every`. Two runs that lose nothing give speed, start-up and
checkpoint time. Then runs are killed (SIGKILL of all their processes) at ages drawn from a Weibull, and started again
with `--resume`, until they have done all steps. Every run becomes a row of `tools/revoked_runs.py`, which predicts its
end-to-end time from those three numbers and the ages alone. Take a quiet machine.
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
from contextlib import suppress
from dataclasses import dataclass
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
        last_s: When the last step of the run was logged; None where it died before.
        paces_s: Of its steps.
    """

    begun_s: float
    first_s: float | None
    last_s: float | None
    paces_s: tuple[float, ...]


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
    paces_s = []
    for line in lines:
        with suppress(ValueError):  # the last one, where it was killed
            record = json.loads(line)
            paces_s += [record["pace_s"]] if "pace_s" in record else []
    return Attempt(begun_s, first_s, last_s or (time.monotonic() if process.returncode == 0 else None), tuple(paces_s))


def _end_of(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        return file.read().decode("utf-8", "replace")


def whole_run(folder: Path, steps: int, lives_s: list[float], start_up_s: float) -> tuple[float, int]:
    """Run to the end through losses; return the seconds from the first start to the last step, and the losses."""
    subprocess.run(["rm", "-rf", str(folder / "ck"), *map(str, folder.glob("log-*"))], check=True)
    begun_s = None
    for number, life_s in enumerate([*lives_s, None]):
        one = attempt(folder, steps, None if life_s is None else start_up_s + life_s, number)
        begun_s = one.begun_s if begun_s is None else begun_s
        if one.last_s is not None:
            return one.last_s - begun_s, number
    raise AssertionError("the last start is never killed")


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
        starts, paces, waits = [], [], []
        for number in (-2, -1):
            subprocess.run(["rm", "-rf", str(folder / "ck")], check=True)
            one = attempt(folder, given.steps, None, number)
            if one.first_s is None or one.last_s is None:
                sys.exit("a run without losses did no step")
            pace_s = statistics.median(one.paces_s)
            starts.append(one.first_s - one.begun_s - pace_s)
            paces.append(pace_s)
            computed_s = one.last_s - one.first_s - (given.steps - 1) * pace_s
            waits.append(max(0.0, computed_s / max((given.steps - 1) // EVERY, 1)))
        start_up_s, pace_s, checkpoint_s = map(statistics.mean, (starts, paces, waits))
        law = Weibull(SHAPE, SCALE * given.steps * pace_s / HOUR_S)
        print(
            f"{given.steps} steps of {1e3 * pace_s:.1f} ms, a checkpoint every {EVERY} of {1e3 * checkpoint_s:.0f} ms, "
            f"start-up {start_up_s:.2f} s; ages by a Weibull of {law.scale_h * HOUR_S:.3g} s and shape {law.shape:g}",
            flush=True,
        )
        rows, path = [], given.write or folder / "runs.csv"
        for number in range(given.runs):
            lives_s = [life_h * HOUR_S for life_h in law.sample(rng, 40).tolist()]
            measured_s, losses = whole_run(folder, given.steps, lives_s, start_up_s)
            rows.append(
                {
                    "run": f"run {number + 1}", "steps": given.steps, "steps_per_s": 1 / pace_s, "machines": 1,
                    "checkpoint_every": EVERY, "checkpoint_s": checkpoint_s, "start_up_s": start_up_s, "stops": "yes",
                    "lost_h": " ".join(f"{life_s / HOUR_S:.8f}" for life_s in lives_s[:losses]),
                    "lifetime": f"{law.scale_h * HOUR_S:.6f}s,{law.shape:g}", "measured_s": measured_s,
                }
            )  # fmt: skip
            path.write_text(rows_text(rows), "utf-8")
        for line in print_revoked(list(read_revoked(path))):
            print(line)


if __name__ == "__main__":
    main()
