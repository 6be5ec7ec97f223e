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
        most_columns: Segments in a mixed-integer programme that only looks for a plan, or is one of many.
        programme_s: Seconds of such a programme.
        most_maximal: Segments in such a programme, of the longest alone.
        most_ends: Of the longest segments at one time of a batch, which then take the place of more than most_columns.
        first_ratio: How far down the first split of a range that begins at 0 goes.
        steps_first, steps: Steps on the multipliers, for all times of a batch and for a range of them.
        few_segments, narrow: Below so many segments, or above this ratio of a range's ends, the programme takes over.
        near: Relative; if time itself is minimised, ranges narrower than this are closed from their slow end.
        width: Relative; if segments bound the cost of stages, ranges narrower than this may stay open.
    """

    most_listed: int = 600_000
    most_columns: int = 120_000
    programme_s: float = 10.0
    most_maximal: int = 12_000
    most_ends: int = 8_000_000
    first_ratio: float = 0.8
    steps_first: int = 40
    steps: int = 8
    few_segments: int = 3000
    narrow: float = 0.98
    near: float = 1e-3
    width: float = 5e-3


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
class IntervalEffort:
    """Ranges of times of a batch bounded over the longest segments.

    Attributes:
        least_positions: From which on they are, where values pass to the next layer alone.
        least_skipping: The same where values skip layers, and the bounds are lower.
        short: Relative; if values skip layers and less of a range is closed, its segments are listed.
        point: Relative; narrower ranges are bounded over all segments, however many there are.
        most_listed: Segments of a range.
        nearly: Times the best value; below it a plan is made of the bound.
        exact_units, ratio: Numbers of replicas looked at one by one; from one range of them to the next beyond.
        most_steps: Paths that one bound may take, whether entries or multipliers improve.
        most_exact, most_together: Up to which all are looked at one by one where a path that is too cheap uses several.
    """

    least_positions: float = 250
    least_skipping: float = 3000
    short: float = 3e-4
    point: float = 1e-6
    most_listed: int = 200_000
    nearly: float = 1.002
    exact_units: int = 8
    ratio: float = 1.25
    most_steps: int = 60
    most_exact: int = 200
    most_together: int = 1000


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
    interval: IntervalEffort = field(default_factory=IntervalEffort)
    links: LinkEffort = field(default_factory=LinkEffort)
    most_machine_nodes: int = 60

    def without(self, accelerator: str) -> "Effort":
        """Return the effort with one of :data:`ACCELERATORS` switched off."""
        return ACCELERATORS[accelerator](self)


ACCELERATORS: Mapping[str, Callable[[Effort], Effort]] = {
    "multipliers": lambda e: replace(e, ranges=replace(e.ranges, steps_first=0, steps=0)),
    "label setting": lambda e: replace(e, labels=replace(e.labels, most_steps=0)),
    "interval bounds": lambda e: replace(
        e, interval=replace(e.interval, least_positions=np.inf, least_skipping=np.inf)
    ),
}
"""What makes the search faster and can be done without."""

EFFORT = Effort()
"""As the search is set up."""
