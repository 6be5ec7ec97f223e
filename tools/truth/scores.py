"""How predictions stand to measurements: signed errors with their quartiles, ranks, and what following them costs."""

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np


@dataclass(frozen=True)
class Row:
    """A trial: what it is, in words; what was measured, and what is predicted, in one unit."""

    what: str
    measured: float
    predicted: float
    group: Hashable = ""

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def ranks(values: Sequence[float]) -> np.ndarray:
    """Ranks from 0, ties sharing their mean."""
    array = np.asarray(values, float)
    return np.array([(array < each).sum() + ((array == each).sum() - 1) / 2 for each in array])


def spearman(rows: Sequence[Row]) -> float:
    if len(rows) < 3:
        return float("nan")
    first, second = ranks([row.measured for row in rows]), ranks([row.predicted for row in rows])
    return float(np.corrcoef(first, second)[0, 1])


def kendall(rows: Sequence[Row]) -> float:
    """tau-b."""
    signs = [(np.sign(a.measured - b.measured), np.sign(a.predicted - b.predicted)) for a, b in combinations(rows, 2)]
    agree = sum(first * second for first, second in signs)
    pairs = [sum(1 for pair in signs if pair[side] != 0) for side in (0, 1)]
    return float(agree / np.sqrt(pairs[0] * pairs[1])) if all(pairs) else float("nan")


def by_group(rows: Sequence[Row]) -> dict[Hashable, list[Row]]:
    groups: dict[Hashable, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return {group: found for group, found in groups.items() if len(found) > 1}


def regrets(rows: Sequence[Row]) -> list[float]:
    """Of every group, what is measured of the trial that is predicted best, over the best measured."""
    return [
        min(found, key=lambda row: row.predicted).measured / min(row.measured for row in found)
        for found in by_group(rows).values()
    ]


def mean_of_groups(rows: Sequence[Row], score: Callable[[Sequence[Row]], float]) -> float:
    """The mean over groups of three trials and more."""
    found = [score(group) for group in by_group(rows).values() if len(group) > 2]
    found = [each for each in found if np.isfinite(each)]
    return float(np.mean(found)) if found else float("nan")


HEAD = (
    "| trials | n | rho | tau | signed error: 25 % | 50 % | 75 % | of its size: median | mean | worst |\n"
    + "|---" * 10
    + "|"
)


def table_row(what: str, rows: Sequence[Row]) -> str:
    signed = 100 * np.array([row.error for row in rows])
    low, middle, high = np.percentile(signed, [25, 50, 75])
    size = np.abs(signed)
    return (
        f"| {what} | {len(rows)} | {spearman(rows):.2f} | {kendall(rows):.2f} | {low:+.1f} % | {middle:+.1f} % | "
        f"{high:+.1f} % | {np.median(size):.1f} % | {size.mean():.1f} % | {size.max():.1f} % |"
    )


def is_fitted(configuration: str) -> bool:
    """The frozen split: half of all configurations, by the SHA-256 of what they are."""
    return hashlib.sha256(configuration.encode()).digest()[0] % 2 == 0
