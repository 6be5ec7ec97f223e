"""How much effort goes into a proof, and by which means: one frozen value that the search is called with.

Every number here trades time for nothing else: whatever it is, a bound is a bound and a proven optimum is one. What the
accelerators gain, and how that is measured, is in ``README.md``.

Left out: tolerances against rounding, which are no effort and lie where they are used.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np


@dataclass(frozen=True, slots=True)
class RangeEffort:
    """Branch and bound over ranges of the time of a batch.

    Attributes:
        most_listed: Segments kept as a list.
        first_ratio: How far down the first split of a range that begins at 0 goes.
        steps_first, steps: Subgradient steps on the multipliers, for all times of a batch and for a range of them.
        few_segments, narrow: Below so many segments, or above this ratio of a range's ends, the programme takes over.
        probed: Shares of the longest time at which it is tried whether limits bind.
        most_columns: Of a programme that looks for a first plan.
    """

    most_listed: int = 600_000
    first_ratio: float = 0.8
    steps_first: int = 40
    steps: int = 8
    few_segments: int = 3000
    narrow: float = 0.98
    probed: tuple[float, ...] = (1.0, 0.5, 0.2)
    most_columns: int = 60_000


@dataclass(frozen=True, slots=True)
class LabelEffort:
    """Label setting under limits on units.

    Attributes:
        most_steps: From a label over a segment; 0 switches it off.
        beyond: How far beyond the best plan it looks, relative.
        least_gain: Relative; where it closes less, the programme does.
        first_slack, growth: Of the first ceiling above the bound, relative; from one to the next.
    """

    most_steps: int = 3_000_000
    beyond: float = 1.5
    least_gain: float = 1e-4
    first_slack: float = 2**-8
    growth: float = 4.0


@dataclass(frozen=True, slots=True)
class CoarseEffort:
    """From coarse to fine: a good plan on few positions first.

    Attributes:
        above: Positions; a chain with no more needs no coarse start.
        coarse, fine: Positions of the coarse search and of each fine one.
        rounds: Fine searches at most.
        coarse_gap: Relative; how far from its own optimum the coarse search may stop.
        fine_gap: The same for the fine ones, over the number of positions: a position more or less is as much.
        least_gain: Likewise; a round that gains less is the last.
    """

    above: float = 300
    coarse: int = 150
    fine: int = 300
    rounds: int = 12
    coarse_gap: float = 1e-2
    fine_gap: float = 1.0
    least_gain: float = 2.0


@dataclass(frozen=True, slots=True)
class MarchEffort:
    """A march through the times of a batch over the longest segments.

    Attributes:
        least_positions: From which on there is a march.
        at_once: The same where the bounds of the march are the prices of plans.
        stride, surveyed: Least ratio of times that one bound closes, and of the ranges that are bounded first.
        short: Relative; a shorter stretch puts a range aside where the bound may be of no plan, of the width:
        tiny, improved, barred: where plans are no better; where one was; where the bound allows better ones.
        narrow, narrow_of_bounds: Relative; ranges whose segments are listed, the latter where segments only bound.
        point: Relative; ranges that are left, however many segments there are.
        most_listed, few: Segments; the latter of a wider range whose bound allows better plans.
        most_held: Segments of all ranges that are left.
        nearly: Times the best value; below it a plan is made of the bound.
        exact_units, ratio: Numbers of replicas looked at one by one; from one range of them to the next beyond.
        most_exact, most_together: Up to which all are looked at one by one where a path that is too cheap uses several.
    """

    least_positions: float = 3000
    at_once: float = 250
    stride: float = 0.8
    surveyed: float = 0.94
    short: float = 3e-4
    tiny: float = 1e-3
    improved: float = 3e-3
    barred: float = 1e-2
    narrow: float = 1e-4
    narrow_of_bounds: float = 5e-3
    point: float = 1e-6
    most_listed: int = 400_000
    few: int = 200_000
    most_held: int = 10_000_000
    nearly: float = 1.002
    exact_units: int = 8
    ratio: float = 1.25
    most_exact: int = 200
    most_together: int = 1000


@dataclass(frozen=True, slots=True)
class FixedTimeEffort:
    """The search at one time of a batch, and halving.

    Attributes:
        most_listed, most_maximal: Segments that a mixed-integer programme takes; the latter of the longest alone.
        most_ends: Of the longest segments at one time of a batch, which take the place of more than ``most_listed``.
        most_left: Segments that are kept for a closer look where links between types are bounded first.
        steps, steps_first: Subgradient steps where multipliers are all there is, and before a programme.
        programme_s: Seconds of one programme; halving asks for many.
        near: Relative; ranges of time narrower than this are closed from their slow end.
        first_step: Relative; of the times beyond those that multipliers rule out.
    """

    most_listed: int = 120_000
    most_maximal: int = 12_000
    most_ends: int = 8_000_000
    most_left: int = 600_000
    steps: int = 40
    steps_first: int = 6
    programme_s: float = 10.0
    near: float = 1e-3
    first_step: float = 3e-2


@dataclass(frozen=True, slots=True)
class LinkEffort:
    """Links between pairs of types.

    Attributes:
        most_enumerated: Placements that are all evaluated instead; some seconds.
        most_segments: Segments between neighbours' types; a chain with more is too long.
        most_work: Segments listed in a whole tree.
        widths: Relative; how narrow ranges of the time of a batch get, one after the other.
        coarse_gap: Relative; how far from its own optimum a start on few positions may stop.
    """

    most_enumerated: int = 100_000
    most_segments: int = 3_000_000
    most_work: int = 200_000_000
    widths: tuple[float, ...] = (5e-2, 5e-3, 2e-4, 1e-5, 5e-7)
    coarse_gap: float = 1e-2


@dataclass(frozen=True, slots=True)
class Effort:
    """What the exact search may do, part by part.

    Attributes:
        most_machine_nodes: Of the tree over counts of machines that are rented whole.
    """

    ranges: RangeEffort = field(default_factory=RangeEffort)
    labels: LabelEffort = field(default_factory=LabelEffort)
    coarse: CoarseEffort = field(default_factory=CoarseEffort)
    march: MarchEffort = field(default_factory=MarchEffort)
    fixed_time: FixedTimeEffort = field(default_factory=FixedTimeEffort)
    links: LinkEffort = field(default_factory=LinkEffort)
    most_machine_nodes: int = 60

    def without(self, accelerator: str) -> "Effort":
        """Return the effort with one of :data:`ACCELERATORS` switched off."""
        return ACCELERATORS[accelerator](self)


ACCELERATORS: Mapping[str, Callable[[Effort], Effort]] = {
    "multipliers": lambda e: replace(e, ranges=replace(e.ranges, steps_first=0, steps=0)),
    "label setting": lambda e: replace(e, labels=replace(e.labels, most_steps=0)),
    "coarse to fine": lambda e: replace(e, coarse=replace(e.coarse, above=np.inf)),
    "march": lambda e: replace(e, march=replace(e.march, least_positions=np.inf, at_once=np.inf)),
    "survey": lambda e: replace(e, march=replace(e.march, surveyed=0.0)),
}
"""What makes the search faster and can be done without."""

EFFORT = Effort()
"""As the search is set up."""
