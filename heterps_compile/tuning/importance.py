"""How much each parameter of a space tells about a trial's result.

The measure is the share of variance between groups (the correlation ratio, Fisher 1925) of ranks, which is the
statistic of Kruskal and Wallis (JASA 1952) over its largest value: trials are grouped by a parameter's value, and of
the variance of their ranks so much lies between the groups. 0: the value tells nothing; 1: it tells all.

1. Every configuration counts once, by its rank among those that were trained as far the first time: later rungs hold
   good ones alone. Failed trials have no rank.
2. Values of a choice are its groups; numbers are cut into groups of as many trials each, 3 to 5 of them.
3. A parameter that is not always active is measured on the trials where it is.
4. What chance reaches stands beside it: the groups keep their sizes, results are shuffled 1,000 times, and the floor is
   what all but 5 % of the shuffles stay below over all parameters together (Bonferroni). A share below it may be
   chance.

Below 15 configurations nothing is measured, of a parameter below 15 that have it.

Left out: what parameters do together (functional ANOVA, Hutter et al., ICML 2014, which fits a forest first), and the
method's habits: a search that learns draws good regions more often, where a parameter then seems to matter less.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .parameters import Choice, Parameter, Value
from .search_state import SearchState, TrialState
from .space import Space

LEAST_TRIALS = 15
_MOST_GROUPS = 5
_TRIALS_A_GROUP = 5
_SHUFFLES = 1_000
_MOST_CHANCE = 0.05
_BLOCK = 2_000_000  # numbers of shuffled ranks that are held at once

Floats = NDArray[np.float64]
Groups = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Importance:
    """What a parameter tells.

    Attributes:
        name: Of the parameter.
        share: Of the variance of ranks, from 0 to 1.
        floor: What chance reaches.
        trials: Configurations that have the parameter.
        best: The values of the group with the best mean rank, the least and the most of them.
    """

    name: str
    share: float
    floor: float
    trials: int
    best: tuple[Value, Value]

    @property
    def is_told(self) -> bool:
        """Whether the share is above what chance reaches."""
        return self.share > self.floor


@dataclass(frozen=True, slots=True)
class Importances:
    """What the parameters tell.

    Attributes:
        measured: The one first that tells the most.
        too_few: Names of parameters that too few configurations have in different values.
        constant: Names of those that have one value alone.
        trials: Configurations that were compared.
    """

    measured: tuple[Importance, ...]
    too_few: tuple[str, ...]
    constant: tuple[str, ...]
    trials: int


def importances(state: SearchState, space: Space) -> Importances:
    """Measure all parameters of a search.

    Args:
        state: The search; its configurations are of the space.
        space: The space.
    """
    trials, ranks = _ranked(state)
    constant = tuple(p.name for p in space.parameters if isinstance(p, Choice) and len(p.choices) == 1)
    varied = [p for p in space.parameters if p.name not in constant]
    if len(trials) < LEAST_TRIALS:
        return Importances((), tuple(p.name for p in varied), constant, len(trials))
    measured, too_few = list[Importance](), list[str]()
    random = np.random.default_rng(0)
    for parameter in varied:
        own = [index for index, trial in enumerate(trials) if parameter.name in trial.config]
        values = [trials[index].config[parameter.name] for index in own]
        groups = _groups(parameter, values)
        if groups is None:
            too_few.append(parameter.name)
            continue
        of = ranks[own]
        shuffled = _shuffled_shares(of, groups, random)
        floor = float(np.quantile(shuffled, 1 - _MOST_CHANCE / len(varied), method="higher"))
        share = float(_shares(of[None, :], groups)[0])
        measured.append(Importance(parameter.name, share, floor, len(own), _best(parameter, values, groups, of)))
    measured.sort(key=lambda one: -one.share)
    return Importances(tuple(measured), tuple(too_few), constant, len(trials))


def _ranked(state: SearchState) -> tuple[list[TrialState], Floats]:
    """Return the first trial of every configuration that was told, and its rank among those of its length, 0 to 1."""
    trials: list[TrialState] = []
    ranks: list[float] = []
    first = [(trial, trial.value) for trial in state.trials if trial.value is not None and trial.continues is None]
    for fidelity in sorted({trial.fidelity for trial, _ in first}):
        own = [(trial, value) for trial, value in first if trial.fidelity == fidelity]
        if len(own) < 2:
            continue
        trials += [trial for trial, _ in own]
        ranks += (_mean_ranks([state.record.loss_of(value) for _, value in own]) / (len(own) - 1)).tolist()
    return trials, np.array(ranks)


def _mean_ranks(losses: Sequence[float]) -> Floats:
    """Return ranks from 0 on; equal losses share their mean rank."""
    _, group, count = np.unique(np.array(losses), return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(count) - (count + 1) / 2)[group]
    return ranks


def _groups(parameter: Parameter, values: Sequence[Value]) -> Groups | None:
    """Return the group of each value, numbered from 0; None where there are too few, or they are all one."""
    if len(values) < LEAST_TRIALS:
        return None
    places = np.array([parameter.place(value) for value in values])
    if not isinstance(parameter, Choice):
        count = min(_MOST_GROUPS, len(values) // _TRIALS_A_GROUP)
        edges = np.unique(np.quantile(places, np.arange(1, count) / count))
        places = np.searchsorted(edges, places, side="right").astype(float)
    found, groups = np.unique(places, return_inverse=True)
    return groups.astype(np.int64) if 1 < len(found) < len(values) else None


def _shares(ranks: Floats, groups: Groups) -> Floats:
    """Return the share of variance between groups, of every row of ranks; 0 where all are equal."""
    sizes = np.bincount(groups)
    member = (groups[:, None] == np.arange(len(sizes))).astype(np.float64)
    centred = ranks - ranks.mean(1, keepdims=True)
    between = ((centred @ member) ** 2 / sizes).sum(1)
    whole = (centred**2).sum(1)
    shares: Floats = np.divide(between, whole, out=np.zeros_like(between), where=whole > 1e-12)
    return shares


def _shuffled_shares(ranks: Floats, groups: Groups, random: np.random.Generator) -> Floats:
    at_once = max(1, min(_SHUFFLES, _BLOCK // len(ranks)))
    found: list[Floats] = []
    for first in range(0, _SHUFFLES, at_once):
        rows = np.tile(ranks, (min(at_once, _SHUFFLES - first), 1))
        found.append(_shares(random.permuted(rows, axis=1), groups))
    return np.concatenate(found)


def _best(parameter: Parameter, values: Sequence[Value], groups: Groups, ranks: Floats) -> tuple[Value, Value]:
    means = np.bincount(groups, ranks) / np.bincount(groups)
    own = [value for value, group in zip(values, groups.tolist(), strict=True) if group == int(means.argmin())]
    ordered = sorted(own, key=parameter.place)
    return ordered[0], ordered[-1]
