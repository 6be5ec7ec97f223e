"""Fit start, arithmetic and memory rate of every kind of work to times of layers.

The time of a layer is taken to be the sum over the kinds of its nodes of ``operations * start + FLOPs / rate + bytes /
memory rate`` (``cost/roofline.py``): linear in what is looked for. Errors are ratios of estimate and measurement, of
which half counts as much as twice (else a fit that is too fast looks better than one that is as much too slow), and
none of the numbers is negative. The sum of the sizes of their logarithms counts rather than that of squares (by weights
that are found again some times), since a few layers that a cache helps should not bend what holds for the others.

The backward is a factor of each kind on its forward, and for tables the bytes of their gradients, made whole, over a
rate; fitted likewise.

The forward of inference, which keeps nothing for a backward, is a factor of each kind on that of training, fitted to
the same networks in inference. A kind that few of these layers have stays near 1: it counts one layer that takes as
long.

How far off that is, is measured by leaving out one network after the other.

Left out: caches, but for the cold start of a pass, which is a kind of its own; curves that bend.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median

import numpy as np

from heterps_compile.cluster.devices import KindRate
from heterps_compile.cost.layer_cost import KindWork
from heterps_compile.cost.problem import Floats
from heterps_compile.profiling.nearest_ratios import nearest_ratios

_PARTS = 3  # start, arithmetic, memory


@dataclass(frozen=True, slots=True)
class TimedWork:
    """A layer that was timed.

    Attributes:
        network: That it is of.
        kind: Of its anchor, for the table of errors.
        work: Of its nodes, by kind.
        forward_s: Measured.
        backward_s: Measured; 0 in inference.
    """

    network: str
    kind: str
    work: tuple[KindWork, ...]
    forward_s: float
    backward_s: float


def fit_rates(timed: Sequence[TimedWork], dtype: str = "float32") -> Mapping[str, KindRate]:
    """Return the rates of all kinds of work among the layers; each with its error on networks left out.

    Args:
        timed: Layers of several networks.
        dtype: That they compute in.
    """
    rates = _fit(timed, dtype)
    errors: dict[str, list[float]] = {}
    for network in dict.fromkeys(each.network for each in timed):
        others = _fit([each for each in timed if each.network != network], dtype)
        for each in timed:
            if each.network == network and all(work.kind in others for work in each.work):
                errors.setdefault(each.kind, []).append(abs(forward_time_s(others, each.work) / each.forward_s - 1))
    return {
        kind: replace(rate, error=median(errors.get(kind) or [_own_error(timed, rates, kind)]))
        for kind, rate in rates.items()
    }


def fit_inference(rates: Mapping[str, KindRate], timed: Sequence[TimedWork]) -> Mapping[str, KindRate]:
    """Return rates with what a forward takes in inference over that in training, by kind.

    Args:
        rates: Of training.
        timed: Layers in inference; those with work of a kind without a rate are left out.
    """
    known = [each for each in timed if all(work.kind in rates for work in each.work)]
    rows = np.zeros((len(known), len(rates)))
    column = {kind: i for i, kind in enumerate(rates)}
    for row, each in enumerate(known):
        for work in each.work:
            rows[row, column[work.kind]] += forward_time_s(rates, [work]) / each.forward_s
    factors = nearest_ratios(np.concatenate([rows, np.eye(len(rates))]))
    return {kind: replace(rate, inference=float(factors[column[kind]])) for kind, rate in rates.items()}


def forward_time_s(rates: Mapping[str, KindRate], work: Sequence[KindWork]) -> float:
    """Return the forward of some work at measured rates."""
    return sum(
        each.operations * rates[each.kind].start_s
        + each.flops / rates[each.kind].flops_per_s
        + each.bytes_of() / rates[each.kind].bytes_per_s
        for each in work
    )


def _own_error(timed: Sequence[TimedWork], rates: Mapping[str, KindRate], kind: str) -> float:
    """Return the error on what was fitted, of a kind that one network alone has, or that is no anchor."""
    own = [each for each in timed if any(work.kind == kind for work in each.work)]
    return median(abs(forward_time_s(rates, each.work) / each.forward_s - 1) for each in own)


def _fit(timed: Sequence[TimedWork], dtype: str) -> dict[str, KindRate]:
    kinds = sorted({work.kind for each in timed for work in each.work})
    column = {kind: i for i, kind in enumerate(kinds)}
    does = _does(timed, column, backward=False)
    forward_s = np.array([each.forward_s for each in timed])
    costs = nearest_ratios(does.reshape(len(timed), -1) / forward_s[:, None]).reshape(-1, _PARTS)
    trained = np.array([each.backward_s > 0 for each in timed])
    parts_back_s = (_does(timed, column, backward=True) * costs).sum(axis=2)
    tables = np.zeros((len(timed), len(kinds)))
    for row, each in enumerate(timed):
        for work in each.work:
            tables[row, column[work.kind]] += work.table_bytes
    backward = np.zeros((2, len(kinds)))
    if np.any(trained):
        backward_s = np.array([each.backward_s for each in timed])[trained]
        makes = np.concatenate([parts_back_s, tables], axis=1)[trained]
        backward = nearest_ratios(makes / backward_s[:, None]).reshape(2, -1)
    return {
        kind: KindRate(
            float(costs[i, 0]),
            _rate(costs[i, 1]),
            _rate(costs[i, 2]),
            float(backward[0, i]),
            0.0,
            dtype,
            _rate(backward[1, i]),
        )
        for i, kind in enumerate(kinds)
    }


def _does(timed: Sequence[TimedWork], column: Mapping[str, int], *, backward: bool) -> Floats:
    """Return [L, K, 3], the work of layers by kind and part; of what has a backward alone, where that is asked for."""
    found = np.zeros((len(timed), len(column), _PARTS))
    for row, each in enumerate(timed):
        for work in each.work:
            if work.has_backward or not backward:
                found[row, column[work.kind]] += (work.operations, work.flops, work.bytes_of())
    return found


def _rate(cost_s: float) -> float:
    return 1 / float(cost_s) if cost_s > 0 else inf
