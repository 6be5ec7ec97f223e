"""What ranks did in a step, in the mean over many: sums as they come in, so that a run may last as long as it likes.

Left out: medians (``run_summary.py``), what is made of the means (``plan_difference.py``).
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from .events import RankStart, RankStep
from .plan_difference import DATA, OTHER, PULL, RUNTIME, MeanStep, StageMeans
from .step_report import StepReport


def _zeros() -> dict[str, float]:
    return defaultdict(float)


@dataclass(slots=True)
class _Sums:
    """Of one rank."""

    micro_batches: int = 0
    forward_s: float = 0.0
    backward_s: float = 0.0
    own_s: dict[str, float] = field(default_factory=_zeros)
    between_s: dict[str, float] = field(default_factory=_zeros)

    def add(self, step: RankStep, gap_s: float) -> None:
        """Take in a step, and the time between it and the one before."""
        self.micro_batches += step.micro_batches
        self.forward_s += sum(step.forward_s.values())
        self.backward_s += sum(step.backward_s.values())
        for what in (DATA, PULL):
            self.own_s[what] += step.wait_s.get(what, 0.0)
        self.own_s[RUNTIME] += step.step_s - step.busy_s - sum(step.wait_s.values())
        for what, time_s in step.between_s.items():
            self.between_s[what] += time_s
        self.between_s[OTHER] += gap_s - sum(step.between_s.values())


class SumsOfSteps:
    """Adds up steps, those that had one before them."""

    def __init__(self) -> None:
        self._steps = 0
        self._pace_s = 0.0
        self._ranks: dict[int, _Sums] = defaultdict(_Sums)

    def add(self, report: StepReport) -> None:
        """Take in a step."""
        if len(report.gaps_s) < len(report.ranks):
            return
        self._steps += 1
        self._pace_s += report.pace_s
        for rank in report.ranks:
            self._ranks[rank.rank].add(rank, report.gaps_s[rank.rank])

    def mean(self, starts: Mapping[int, RankStart]) -> MeanStep | None:
        """Return the means; None before the first step, and where a rank runs several stages or none.

        Args:
            starts: Of the ranks.
        """
        ranks_of: dict[int, list[_Sums]] = {}
        for rank, sums in self._ranks.items():
            if len(starts[rank].stages) != 1 or not sums.micro_batches:
                return None
            ranks_of.setdefault(starts[rank].stages[0], []).append(sums)
        if not self._steps:
            return None
        stages = {stage: self._of_stage(ranks) for stage, ranks in sorted(ranks_of.items())}
        return MeanStep(self._pace_s / self._steps, MappingProxyType(stages))

    def _of_stage(self, ranks: list[_Sums]) -> StageMeans:
        count = sum(one.micro_batches for one in ranks)
        longest = max(ranks, key=lambda one: sum(one.between_s.values()))
        return StageMeans(
            sum(one.forward_s for one in ranks) / count,
            sum(one.backward_s for one in ranks) / count,
            {what: sum(one.own_s[what] for one in ranks) / count for what in (DATA, PULL, RUNTIME)},
            {what: time_s / self._steps for what, time_s in longest.between_s.items()},
        )
