"""A small run as its ranks would tell of it: stage 0 with two replicas, stage 1 with one, two micro-batches.

::

    rank 0   F0 . . . B0        micro-batch 0
    rank 1   . F1 . . . B1      micro-batch 1
    rank 2   . F0 F1 B0 B1      both

A slot lasts 10 ms; a step has six of them, and the optimizer takes two more.
"""

from pathlib import Path

from heterps_compile.runtime.pipeline.recorder import StepResult
from heterps_compile.runtime.telemetry.rank_recorder import TelemetryRecorder, rank_starts
from heterps_compile.schedule.order import Phase

SLOT_S = 0.010
STEP_S = 6 * SLOT_S
PACE_S = 8 * SLOT_S
BYTES = 4096

# rank: stage, replica, what it runs in which slot
RANKS = {
    0: (0, 0, [(0, 0, Phase.FORWARD), (4, 0, Phase.BACKWARD)]),
    1: (0, 1, [(1, 1, Phase.FORWARD), (5, 1, Phase.BACKWARD)]),
    2: (1, 0, [(1, 0, Phase.FORWARD), (2, 1, Phase.FORWARD), (3, 0, Phase.BACKWARD), (4, 1, Phase.BACKWARD)]),
}


class CpuClock:
    """CPU time of a rank that a test sets."""

    time_s = 0.0

    def __call__(self) -> float:
        return self.time_s


CPU_CLOCK = CpuClock()


def recorders(folder: Path, trace_steps: range = range(0)) -> dict[int, TelemetryRecorder]:
    return {
        rank: TelemetryRecorder(
            folder,
            rank_starts(rank, position=stage, replica=replica, stages=(stage,)),
            trace_steps=trace_steps,
            cpu_clock=CPU_CLOCK,
        )
        for rank, (stage, replica, _) in RANKS.items()
    }


def tell_step(
    recorder: TelemetryRecorder, rank: int, step: int, loss: float | None = None, cpu_share: float = 1.0
) -> None:
    """Tell a recorder what its rank does in a step, with a share of a core to compute on."""
    stage, _, actions = RANKS[rank]
    began_s = 100.0 + step * PACE_S
    free_s = began_s
    for slot, micro_batch, phase in actions:
        start_s, end_s = began_s + slot * SLOT_S, began_s + (slot + 1) * SLOT_S
        if start_s > free_s:
            recorder.waited(step, "receive", free_s, start_s)
        if (stage == 1) == (phase is Phase.FORWARD):  # values come from stage 0, gradients from stage 1
            source = micro_batch if stage == 1 else 2
            recorder.message(step, source, rank, BYTES, free_s, start_s)
        recorder.begin(step, stage, micro_batch, phase)
        CPU_CLOCK.time_s += cpu_share * SLOT_S
        recorder.end(step, stage, micro_batch, phase, start_s, end_s)
        free_s = end_s
    recorder.waited(step, "reduce", free_s, began_s + STEP_S)
    recorder.step_done(step, 8, StepResult(loss=loss), began_s, began_s + STEP_S)


def told_run(folder: Path, steps: int = 1, trace_steps: range = range(0), cpu_share: float = 1.0) -> None:
    """Write the files of a whole run; the loss of step n is 1 / (n + 1), known to rank 2."""
    for rank, recorder in recorders(folder, trace_steps).items():
        for step in range(steps):
            tell_step(recorder, rank, step, 1 / (step + 1) if rank == 2 else None, cpu_share)
        recorder.close()
