"""What all ranks did in one step, put together.

Left out: reading the ranks' files (``follow.py``), what people see of it (``live_view.py``, ``step_log.py``,
``tensorboard.py``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from heterps_compile.runtime.validation.result import metric_words

from .events import WAITS, RankStart, RankStep


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step of a run.

    Attributes:
        step: Its number.
        samples: Of its batch.
        loss: Mean over the batch, None in inference.
        step_s: The longest that a rank took, from its begin of the step to its end; no two clocks are compared.
        pace_s: From the end of the step before to the end of this one, the mean over the ranks; so the optimizer, and a
            checkpoint, count. ``step_s`` where there was no step before.
        bubble: Share of the ranks' time in the step in which they do not compute, in [0, 1]. A rank begins a step when
            it is done with the one before, so nobody's time counts twice where steps overlap.
        ranks: What each rank did, by rank.
        stage_s: Per stage, the time its ranks computed in the step, the mean over them.
        cpu_s: Per stage, the CPU time of that, the mean over its ranks; without stages of which a rank is on a GPU.
        link_bytes: Bytes from rank to rank.
        gradient_norm: Of the whole model's gradients before they are clipped; None where they are not.
        learning_rates: By group of the optimiser, of the first rank that has one; empty where none has.
        loss_scale: By which losses were multiplied; None where they are not scaled.
        is_skipped: Whether gradients were not finite in float16, so that no weight was changed.
        losses: Means by name, where the loss is a sum of several.
        gaps_s: By rank, from the end of the step before to the begin of this one; empty where there was none before.
    """

    step: int
    samples: int
    loss: float | None
    step_s: float
    pace_s: float
    bubble: float
    ranks: tuple[RankStep, ...]
    stage_s: Mapping[int, float]
    link_bytes: Mapping[tuple[int, int], int]
    gradient_norm: float | None = None
    learning_rates: tuple[float, ...] = ()
    loss_scale: float | None = None
    is_skipped: bool = False
    losses: Mapping[str, float] = field(default_factory=dict)
    gaps_s: Mapping[int, float] = field(default_factory=dict)
    cpu_s: Mapping[int, float] = field(default_factory=dict)

    @property
    def loss_words(self) -> str:
        """Return the loss in words, with those by name behind it: ``0.71 (click 0.69, margin 0.02)``; "" for none."""
        if self.loss is None:
            return ""
        return f"{self.loss:.6g}" + (f" ({metric_words(self.losses)})" if self.losses else "")

    @property
    def samples_per_s(self) -> float:
        """Return the throughput: samples over the time from step to step."""
        return self.samples / self.pace_s if self.pace_s > 0 else 0.0

    @property
    def sync_bytes(self) -> dict[int, int]:
        """Return what replicas sent each other for agreeing, by stage, over all of them."""
        return _over_ranks([rank.sync_bytes for rank in self.ranks])

    @property
    def sync_between_bytes(self) -> dict[int, int]:
        """Return what of that went from machine to machine; without stages of which nothing did."""
        return _over_ranks([rank.sync_between_bytes for rank in self.ranks])

    @property
    def data_bytes(self) -> dict[str, int]:
        """Return what was read of files far away whose blocks are kept, by where it came from, over all ranks."""
        total: dict[str, int] = {}
        for rank in self.ranks:
            for level, size in rank.data_bytes.items():
                total[level] = total.get(level, 0) + size
        return total

    @property
    def replica_gap(self) -> dict[int, float]:
        """Return how far replicas that step alone were apart, by stage: the most that a rank says."""
        most: dict[int, float] = {}
        for rank in self.ranks:
            for stage, gap in rank.replica_gap.items():
                most[stage] = max(gap, most.get(stage, 0.0))
        return dict(sorted(most.items()))

    @property
    def wait_s(self) -> dict[str, float]:
        """Return the time that ranks waited, by what for, the mean over the ranks."""
        told = {what for rank in self.ranks for what in rank.wait_s}
        whats = [*(what for what in WAITS if what in told), *sorted(told.difference(WAITS))]
        return {what: sum(rank.wait_s.get(what, 0.0) for rank in self.ranks) / len(self.ranks) for what in whats}


def _over_ranks(sizes: Sequence[Mapping[int, int]]) -> dict[int, int]:
    total: dict[int, int] = {}
    for of_rank in sizes:
        for stage, size in of_rank.items():
            total[stage] = total.get(stage, 0) + size
    return dict(sorted(total.items()))


def step_report(
    starts: Mapping[int, RankStart], ranks: Sequence[RankStep], before_s: Mapping[int, float] = MappingProxyType({})
) -> StepReport:
    """Put together what the ranks say of the same step.

    Args:
        starts: Of the ranks, by rank.
        ranks: What each says, in any order.
        before_s: When each ended the step before, by its own clock; empty where there was none.
    """
    ranks = sorted(ranks, key=lambda rank: rank.rank)
    step_s = max(rank.step_s for rank in ranks)
    paces_s = [rank.ended_s - before_s[rank.rank] for rank in ranks if rank.rank in before_s]
    busy_s, all_s = sum(rank.busy_s for rank in ranks), sum(rank.step_s for rank in ranks)
    bubble = 1 - busy_s / all_s if all_s > 0 else 0.0
    knowing = next((rank for rank in ranks if rank.loss is not None), None)
    stages: dict[int, list[float]] = {}
    cpus: dict[int, list[float | None]] = {}
    for rank in ranks:
        for stage in starts[rank.rank].stages:
            stages.setdefault(stage, []).append(rank.forward_s.get(stage, 0.0) + rank.backward_s.get(stage, 0.0))
            cpus.setdefault(stage, []).append(rank.cpu_s.get(stage))
    return StepReport(
        step=ranks[0].step,
        samples=max(rank.samples for rank in ranks),
        loss=None if knowing is None else knowing.loss,
        gaps_s={rank.rank: rank.began_s - before_s[rank.rank] for rank in ranks if rank.rank in before_s},
        losses={} if knowing is None else knowing.losses,
        step_s=step_s,
        pace_s=sum(paces_s) / len(paces_s) if paces_s else step_s,
        bubble=min(max(bubble, 0.0), 1.0),
        ranks=tuple(ranks),
        stage_s={stage: sum(times) / len(times) for stage, times in sorted(stages.items())},
        cpu_s={
            stage: sum(known) / len(times)
            for stage, times in sorted(cpus.items())
            if len(known := [time_s for time_s in times if time_s is not None]) == len(times)
        },
        link_bytes={(source, rank.rank): size for rank in ranks for source, size in rank.received_bytes.items()},
        gradient_norm=next((rank.gradient_norm for rank in ranks if rank.gradient_norm is not None), None),
        learning_rates=next((rank.learning_rates for rank in ranks if rank.learning_rates), ()),
        loss_scale=next((rank.loss_scale for rank in ranks if rank.loss_scale is not None), None),
        is_skipped=any(rank.is_skipped for rank in ranks),
    )


def stage_link_bytes(
    starts: Mapping[int, RankStart], links: Mapping[tuple[int, int], int]
) -> dict[tuple[int, int], int]:
    """Add up bytes from rank to rank by the positions of the two; -1 stands for the servers of tables."""
    total: dict[tuple[int, int], int] = {}
    for (source, target), size in links.items():
        pair = tuple(starts[rank].position if rank in starts else -1 for rank in (source, target))
        total[pair[0], pair[1]] = total.get((pair[0], pair[1]), 0) + size
    return total
