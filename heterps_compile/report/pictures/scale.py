"""Linear scales of pictures: values to pixels, round numbers to mark, and how they are written.

Left out: logarithmic scales (``pareto.py``).
"""

import math
from dataclasses import dataclass

from heterps_compile.units import format_count

from .text_width import SMALL, text_width

_MARGIN = 0.04  # of the range, on both sides
_MOST_DECIMALS = 6


@dataclass(frozen=True, slots=True)
class Scale:
    """Values from ``least`` to ``most`` on the pixels from ``first`` to ``last``.

    Attributes:
        least: The least value; may be the most, which then lies in the middle.
        most: The most.
        first: Pixel of the least.
        last: Pixel of the most; left of or above ``first`` where values grow that way.
    """

    least: float
    most: float
    first: float
    last: float

    def __call__(self, value: float) -> float:
        """Return where a value is drawn; one outside the range is drawn at its edge."""
        span = self.most - self.least
        part = 0.5 if span <= 0 else (min(max(value, self.least), self.most) - self.least) / span
        return self.first + part * (self.last - self.first)

    def ticks(self, count: int) -> list[float]:
        """Return round numbers inside the range, about so many; at least its ends where none lies inside."""
        span = self.most - self.least
        if not span > 0:
            return [self.least]
        step = _step(span / max(1, count))
        first = math.ceil(self.least / step - 1e-9)
        found = [index * step for index in range(first, math.floor(self.most / step + 1e-9) + 1)]
        return found if len(found) > 1 else [self.least, self.most]

    def words(self, values: list[float]) -> list[str]:
        """Return the ticks in words: as many decimals as tell them apart."""
        return number_words(values)


def wide(least: float, most: float) -> tuple[float, float]:
    """Return a range with a margin on both sides; one of a single value gets a width, so that its tick is no edge."""
    margin = _MARGIN * (most - least) or abs(least) * _MARGIN or _MARGIN
    return least - margin, most + margin


def number_words(values: list[float]) -> list[str]:
    """Return numbers that stand side by side in words: as few decimals as tell them apart."""
    largest = max(map(abs, values), default=0.0)
    if largest >= 1e15:
        return [f"{value:.3g}" for value in values]
    if largest >= 1e4:
        short = [format_count(value) for value in values]
        return short if len(set(short)) == len(set(values)) else [f"{value:.6g}" for value in values]
    if 0 < largest < 1e-4:
        return [f"{value:.3g}" for value in values]
    for decimals in range(_MOST_DECIMALS + 1):
        words = [f"{value:.{decimals}f}" for value in values]
        if len(set(words)) == len(set(values)) and all(
            abs(float(word) - value) <= 1e-3 * (largest or 1.0) for word, value in zip(words, values, strict=True)
        ):
            return [word.replace("-0", "0") if float(word) == 0 else word for word in words]
    return [f"{value:.6g}" for value in values]


def widest(words: list[str]) -> float:
    """Return the pixels of the widest of some small texts."""
    return max((text_width(word, SMALL) for word in words), default=0.0)


def _step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * nice for nice in (1, 2, 5, 10) if power * nice >= rough * (1 - 1e-9))


def time_unit(most_s: float) -> tuple[float, str]:
    """Return the seconds of the unit that times up to so many seconds are read in, and its name."""
    for second, unit in ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if most_s >= 2 * second:
            return second, unit
    return 1.0, "seconds"
