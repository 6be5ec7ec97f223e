"""What all ranks did in one step, put together.

Left out: reading the ranks' files (``follow.py``), what people see of it (``live_view.py``, ``step_log.py``).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from statistics import fmean
from types import MappingProxyType
from typing import Any, TypeVar

from heterps_compile.runtime.pipeline.recorder import StepNumbers, numbers_of
from heterps_compile.runtime.validation.result import metric_words

from .events import WAITS, RankStart, RankStep, plain_value

Key = TypeVar("Key", int, str)


@dataclass(frozen=True, slots=True)
class StepReport(StepNumbers):
    """One step of a run.

    Attributes:
        step: Its number.
        samples: Of its batch.
        step_s: The longest that a rank took, from its begin of the step to its end; no two clocks are compared.
        pace_s: From the end of the step before to the end of this one, the mean over the ranks; so the optimizer, and a
            checkpoint, count. ``step_s`` where there was no step before.
        bubble: Share of the ranks' time in the step in which they do not compute, in [0, 1]. A rank begins a step when
            it is done with the one before, so nobody's time counts twice where steps overlap.
        ranks: What each rank did, by rank.
        stage_s: Per stage, the time its ranks computed in the step, the mean over them.
        cpu_s: Per stage, the CPU time of that, the mean over its ranks; without stages of which a rank is on a GPU.
        link_bytes: Bytes from rank to rank.
        learning_rates: By group of the optimiser, of the first rank that has one; empty where none has.
        gaps_s: By rank, from the end of the step before to the begin of this one; empty where there was none before.
    """

    step: int
    samples: int
    step_s: float
    pace_s: float
    bubble: float
    ranks: tuple[RankStep, ...]
    stage_s: Mapping[int, float]
    link_bytes: Mapping[tuple[int, int], int]
    learning_rates: tuple[float, ...] = ()
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
    def wait_s(self) -> dict[str, float]:
        """Return the time that ranks waited, by what for, the mean over the ranks."""
        total_s = _combined((rank.wait_s for rank in self.ranks), sum)
        whats = [*(what for what in WAITS if what in total_s), *total_s]
        return {what: total_s[what] / len(self.ranks) for what in whats}

    @property
    def after_steps(self) -> int:
        """Return the steps done with this one."""
        return self.step + 1

    @property
    def record(self) -> dict[str, Any]:
        """Return its line in the log."""
        made: dict[str, Any] = {
            name: _combined((getattr(rank, name) for rank in self.ranks), how) for name, how in _OVER_RANKS.items()
        }
        rates = self.learning_rates
        made["learning_rate"] = rates if len(rates) > 1 else rates[0] if rates else None
        made["skipped"] = self.is_skipped
        made["ranks"] = tuple({name: getattr(rank, name) for name in _OF_RANK} for rank in self.ranks)
        return {name: plain_value(made[name] if name in made else getattr(self, name)) for name in _OF_STEP}

    @property
    def scalars(self) -> dict[str, float]:
        """Return its numbers for TensorBoard, by tag, with units in them."""
        known = {name: getattr(self, name) for name in _SCALARS}
        numbers = {f"run/{name}": number for name, number in known.items() if number is not None}
        numbers["run/sent_bytes"] = float(sum(self.link_bytes.values()))
        if self.loss_scale is not None:
            numbers["run/skipped"] = float(self.is_skipped)
        rates = self.learning_rates
        tags = [f"learning_rate/{group}" for group in range(len(rates))] if len(rates) > 1 else ["run/learning_rate"]
        numbers |= dict(zip(tags, rates, strict=False))
        numbers |= {f"loss/{name}": loss for name, loss in self.losses.items()}
        numbers |= {f"wait/{what}_s": time_s for what, time_s in self.wait_s.items()}
        numbers |= {f"stage_s/{stage}": time_s for stage, time_s in self.stage_s.items()}
        numbers |= {f"rss_bytes/rank_{rank.rank}": float(rank.rss_bytes) for rank in self.ranks}
        gpus = [rank for rank in self.ranks if rank.peak_gpu_bytes]
        return numbers | {f"gpu_bytes/rank_{rank.rank}": float(rank.gpu_bytes) for rank in gpus}


_OF_STEP = (
    *("step", "samples", "loss", "losses", "learning_rate", "gradient_norm", "loss_scale", "skipped", "step_s"),
    *("pace_s", "samples_per_s", "bubble", "stage_s", "wait_s", "link_bytes", "sync_bytes", "sync_between_bytes"),
    *("cpu_s", "data_bytes", "replica_gap", "ranks"),
)
_OVER_RANKS: Mapping[str, Callable[[list[Any]], Any]] = MappingProxyType(
    {"sync_bytes": sum, "sync_between_bytes": sum, "data_bytes": sum, "replica_gap": max}
)
_OF_RANK = ("rank", "busy_s", "rss_bytes", "peak_rss_bytes", "gpu_bytes", "peak_gpu_bytes")
_SCALARS = ("step_s", "pace_s", "samples_per_s", "bubble", "loss", "gradient_norm", "loss_scale")


def _combined(of_ranks: Iterable[Mapping[Key, Any]], combine: Callable[[list[Any]], Any]) -> dict[Key, Any]:
    """Combine the values of ranks key by key, in the order of keys."""
    found: dict[Key, list[Any]] = {}
    for of_rank in of_ranks:
        for key, value in of_rank.items():
            found.setdefault(key, []).append(value)
    return {key: combine(found[key]) for key in sorted(found)}


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
    knowing = next((rank for rank in ranks if rank.loss is not None), ranks[0])
    mine = [(rank, starts[rank.rank].stages) for rank in ranks]
    cpu_s = _combined(({stage: rank.cpu_s.get(stage, nan) for stage in stages} for rank, stages in mine), fmean)
    return StepReport(
        step=ranks[0].step,
        samples=max(rank.samples for rank in ranks),
        gaps_s={rank.rank: rank.began_s - before_s[rank.rank] for rank in ranks if rank.rank in before_s},
        step_s=step_s,
        pace_s=sum(paces_s) / len(paces_s) if paces_s else step_s,
        bubble=min(max(bubble, 0.0), 1.0),
        ranks=tuple(ranks),
        stage_s=_combined(({stage: rank.computed_s(stage) for stage in stages} for rank, stages in mine), fmean),
        cpu_s={stage: time_s for stage, time_s in cpu_s.items() if not isnan(time_s)},
        link_bytes={(source, rank.rank): size for rank in ranks for source, size in rank.received_bytes.items()},
        learning_rates=next((rank.learning_rates for rank in ranks if rank.learning_rates), ()),
        **numbers_of(knowing),
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
