"""The schedule of a plan, and what stages do under it."""

from collections.abc import Sequence
from dataclasses import dataclass

from heterps_compile.schedule.readings import Readings, busy_time, one_batch_alone, steady_state
from heterps_compile.schedule.zero_bubble import backward_factor

from .planned_stage import PlannedStage


@dataclass(frozen=True, slots=True)
class Schedule:
    """How micro-batches flow through the stages.

    Attributes:
        name: ``"gpipe"``, ``"1f1b"`` or ``"zero-bubble"``.
        micro_batches: Micro-batches in one step; they divide the batch.
        reason: Why this schedule and this count.
        step_s: Simulated time of one batch alone, fill and drain included.
    """

    name: str
    micro_batches: int
    reason: str
    step_s: float


def readings_of(batch: int, stages: Sequence[PlannedStage], schedule: Schedule) -> Readings:
    """Estimate the steady state and one batch alone under a schedule."""
    replicas = [stage.replicas for stage in stages]
    busy_s = sum(
        busy_time(
            schedule.micro_batches,
            stage.micro_batch(schedule.micro_batches).worked_s(backward_factor(schedule.name, stage.index)),
            stage.replicas * stage.time_s,
            stage.replicas * stage.around_actions_s(schedule.micro_batches),
        )
        for stage in stages
    )
    return Readings(
        steady_state(batch, [stage.time_s for stage in stages], replicas),
        one_batch_alone(batch, busy_s, replicas, schedule.step_s),
    )
