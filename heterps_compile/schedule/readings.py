"""The two readings of a plan: what it does while batches follow one another, and what one batch takes by itself.

Three stages, one unit each, a batch of four micro-batches, the stage in the middle twice as slow as the others::

    steady state     stage 0 | A1 .  A2 .  A3 .  A4 .  B1 .  B2 .  B3 .  B4 .     batch B enters where A is done
                     stage 1 |    A1 -- A2 -- A3 -- A4 -- B1 -- B2 -- B3 -- B4 --
                     stage 2 |          A1 .  A2 .  A3 .  A4 .  B1 .  B2 .  B3 .  B4

    one batch alone  stage 0 | A1 A2 A3 A4 .  .  .  .  .  .                       fill, drain and ways are in it
                     stage 1 | .  A1 -- A2 -- A3 -- A4 -- .
                     stage 2 | .  .  .  A1 .  A2 .  A3 .  A4

- **steady state**: batches follow one another without end. One ends every ``batch_s``, the time that the slowest stage
  takes for a whole batch; the bubble is the share of time in which the units of all stages wait for that one.
- **one batch alone**: one global batch goes through the plan's schedule, from the start of its first action to the end
  of its last. A step of training is this: it ends with the update of the weights, so that steps cannot overlap.

A number that belongs to one of them is printed with its name, and both are computed here alone.

Left out: where the times come from (``cost/``, ``load.py``), when each action runs (``simulate.py``).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from heterps_compile.units import format_rate, format_seconds, format_share

STEADY_STATE = "steady state"
ONE_BATCH_ALONE = "one batch alone"
_ROUNDING = 1e-12  # of a share; what adding up times leaves where nobody waits


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a plan does in one of the readings.

    Attributes:
        batch_s: Time of a batch: from the end of one to the end of the next, or from its start to its end.
        throughput_samples_per_s: Samples of a batch over that time; inf where it is 0.
        bubble: Share of the time of all units in which they wait, in [0, 1).
    """

    batch_s: float
    throughput_samples_per_s: float
    bubble: float

    def to_json(self) -> dict[str, float | None]:
        """Return the fields by name; a throughput that is not finite is null."""
        rate = self.throughput_samples_per_s
        return {**asdict(self), "throughput_samples_per_s": None if rate == float("inf") else rate}


@dataclass(frozen=True, slots=True)
class Readings:
    """A plan in both readings."""

    steady_state: Estimate
    one_batch_alone: Estimate

    def to_json(self) -> dict[str, dict[str, float | None]]:
        """Return both by name, as every JSON document and the plan file have them."""
        return {"steady_state": self.steady_state.to_json(), "one_batch_alone": self.one_batch_alone.to_json()}


def steady_state(batch: int, times_s: Sequence[float], replicas: Sequence[int]) -> Estimate:
    """Return the estimate of batches that follow one another.

    Args:
        batch: Samples of a batch.
        times_s: [S], of a batch in every stage, all its replicas together.
        replicas: [S], of every stage.
    """
    slowest_s, units = max(times_s), sum(replicas)
    busy_s = sum(time_s * count for time_s, count in zip(times_s, replicas, strict=True))
    return Estimate(slowest_s, rate(batch, slowest_s), idle_share(busy_s, units, slowest_s))


def one_batch_alone(batch: int, busy_s: float, replicas: Sequence[int], step_s: float) -> Estimate:
    """Return the estimate of one batch by itself.

    Args:
        batch: Samples of a batch.
        busy_s: Time that the units of all stages work on it, added up.
        replicas: [S], of every stage.
        step_s: From the start of the first action, or pull, to the end of the last action, push or all-reduce.
    """
    return Estimate(step_s, rate(batch, step_s), idle_share(busy_s, sum(replicas), step_s))


def busy_time(micro_batches: int, micro_batch_s: float, whole_s: float, around_s: float = 0.0) -> float:
    """Return how long the units of one stage work on a batch.

    Args:
        micro_batches: In the batch.
        micro_batch_s: Of one of them; 0 where it is not known, and the batch is taken undivided.
        whole_s: Of the batch undivided, the all-reduce included.
        around_s: Of pull, push and all-reduce, of all units together.
    """
    return micro_batches * micro_batch_s + around_s if micro_batch_s > 0 else whole_s


def rate(samples: int, time_s: float) -> float:
    """Return samples per second; inf where they take no time."""
    return samples / time_s if time_s > 0 else float("inf")


def idle_share(busy_s: float, units: int, lasts_s: float) -> float:
    """Return the share of so many units' time in which they wait, in [0, 1); 0 where nothing takes time."""
    share = 1 - busy_s / (units * lasts_s) if lasts_s > 0 else 0.0
    return share if share > _ROUNDING else 0.0


def steady_words(steady: Estimate) -> str:
    """Say the steady state: ``"429 samples/s, a batch every 2.33 ms, bubble 11.2 %"``."""
    rate_text, bubble = format_rate(steady.throughput_samples_per_s), format_share(steady.bubble)
    return f"{rate_text}, a batch every {format_seconds(steady.batch_s)}, bubble {bubble}"


def alone_words(alone: Estimate) -> str:
    """Say one batch alone: ``"127 samples/s, step 7.85 ms, bubble 73.6 %"``."""
    rate_text, bubble = format_rate(alone.throughput_samples_per_s), format_share(alone.bubble)
    return f"{rate_text}, step {format_seconds(alone.batch_s)}, bubble {bubble}"
