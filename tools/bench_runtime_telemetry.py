"""Time what telling and following a step cost: the recorder on the rank, the follower and its views in the launcher.

python tools/bench_runtime_telemetry.py [MICRO_BATCHES]

A step of a rank in the middle of a training pipeline: for every micro-batch a forward, a backward, two messages, two
waits. The share is of a step of 10 ms.
"""

import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from heterps_compile.runtime.pipeline.recorder import StepResult
from heterps_compile.runtime.telemetry.follow import RunFollower
from heterps_compile.runtime.telemetry.rank_recorder import TelemetryRecorder, rank_starts
from heterps_compile.schedule.order import Phase

STEPS = 100
ROUNDS = 30
STEP_S = 0.010


def main(micro_batches: int = 8) -> None:
    print(f"{micro_batches} micro-batches a step, best of {ROUNDS} rounds of {STEPS} steps:")
    with tempfile.TemporaryDirectory() as folder:
        for name, traced in (("told", range(0)), ("told and traced", range(ROUNDS * STEPS))):
            made = TelemetryRecorder(
                Path(folder, name), rank_starts(0, position=1, replica=0, stages=(1,)), trace_steps=traced
            )
            with closing(made) as recorder:
                each_s = min(round_s(recorder, micro_batches, place * STEPS) for place in range(ROUNDS)) / STEPS
            print(f"  {name:20} {each_s * 1e6:7.1f} us a step, {100 * each_s / STEP_S:.2f} % of {STEP_S * 1e3:.0f} ms")
            began = time.perf_counter()
            reports = RunFollower(Path(folder, name), 1).poll()
            followed_s = (time.perf_counter() - began) / len(reports)
            print(f"  {'followed':20} {followed_s * 1e6:7.1f} us a step and rank, in the launcher")


def round_s(recorder: TelemetryRecorder, micro_batches: int, first: int) -> float:
    """Return the seconds that telling some steps takes."""
    began = time.perf_counter()
    for step in range(first, first + STEPS):
        for phase, source in ((Phase.FORWARD, 0), (Phase.BACKWARD, 2)):
            for micro_batch in range(micro_batches):
                recorder.waited(step, "receive", 1.0, 1.1)
                recorder.message(step, source, 1, 4096, 1.0, 1.1)
                recorder.begin(step, 1, micro_batch, phase)
                recorder.end(step, 1, micro_batch, phase, 1.1, 1.2)
        recorder.waited(step, "reduce", 1.2, 1.3)
        recorder.step_done(step, 64, StepResult(loss=0.5), 1.0, 2.0 + step * STEP_S)
    return time.perf_counter() - began


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
