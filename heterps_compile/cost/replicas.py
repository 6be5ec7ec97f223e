"""How long a stage takes with k replicas, how many it needs, and how many are best: formulas on arrays of stages.

Legend (HeterPS, arXiv 2111.10635, section 4): C the computation of a batch on one unit, D its data movement, F and E
their serial parts, which no replicas divide, s what an all-reduce of its gradients takes among ever more replicas
(:mod:`.all_reduce`), g what the storage behind all replicas takes for a batch (so that k of them are as fast as
``min(r k, cap)``), p the price of a unit, tau the time of a batch in the slowest stage (batch / throughput)::

    F        = sum over layers of OCT_i (1 - alpha_i)        which is C (1 - alpha) where layers have their type's
    CT(k)    = F + (C - F) / k
    DT(k)    = E + (D - E) / k + s (k - 1) / k  =  (E + s) + (D - E - s) / k
    ET(k)    = max(CT(k), DT(k), g)
    units(x) = the smallest k with ET(k) <= x
    price of a batch = tau * sum over stages of p k

Where s > D - E, DT grows with k: a time is then reached by no fewer than so many replicas (CT) and by no more than so
many (DT), ET has its least in between, and below that no number is enough.

Where units share machines, ``DT(k) = E + (D - E) / k + s share(k)`` with a share that rises in steps. A time leaves
replicas no fewer than ``need(k) = (D - E) / (x - E - s share(k))``, which never falls with k: the fewest are the first
that ``k -> need(k)`` comes to rest at, from 1 on.

An exact search needs a lower bound on ``k tau`` for *every* tau up to some x
(:meth:`ReplicaDemand.units_and_bound`). With ``k ET(k) = max(F k + (C - F), ...)``, which never falls as k grows:

1. ``k tau >= k ET(k) >= max(C, D)``: replicas never do the same work in fewer unit-seconds than one does;
2. ``k tau >= tau max((C - F) / (tau - F), ...)``, which does not decrease as tau falls: take it at x. A
   DT that grows with k asks for no replicas.

Left out: which layers a stage has (``segments.py``), limits on units (``best_units.py``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heterps_compile.sync_rules.network import ring_share

from .all_reduce import Machines
from .problem import Bools, Floats, Ints, Problem
from .rule_times import TIME_TOLERANCE, RuleDemand, RuleSums, RuleWork, joined, rule_works, taken
from .stage_law import divided, steady_time


@dataclass(frozen=True, slots=True, eq=False)
class LayerSums:
    """What adds up over the layers of a stage: a table [L, T] of each, or sums of it, all of one shape.

    Attributes:
        compute_s, data_s: On one unit, without what crosses cuts.
        sync_s: s; None where nothing is synchronised.
        shared_s: g; None where it is 0 for all.
        serial_compute_s, serial_data_s: What no replicas divide of them; None where layers have their type's fraction.
        rules: By which replicas may agree; s is then what all of them take at least. None where all all-reduce.
    """

    compute_s: Floats
    data_s: Floats
    sync_s: Floats | None = None
    shared_s: Floats | None = None
    serial_compute_s: Floats | None = None
    serial_data_s: Floats | None = None
    rules: tuple[RuleSums, ...] | None = None

    def map(self, function: Callable[..., Floats], *others: "LayerSums") -> "LayerSums":
        """Return the sums with a function applied to each table, and to the same one of others."""
        columns = ([getattr(sums, name) for sums in (self, *others)] for name in tuple(self.__slots__)[:-1])
        rules = None
        if self.rules is not None:
            rules = tuple(
                own.map(function, *(other.rules[place] for other in others if other.rules is not None))
                for place, own in enumerate(self.rules)
            )
        mapped = LayerSums(*(None if column[0] is None else function(*column) for column in columns))  # type: ignore[arg-type]  # the first two are never None
        return mapped if rules is None else replace(mapped, rules=rules)

    def with_traffic(self, problem: Problem, types: Any, traffic_s: Floats) -> "LayerSums":
        """Return the sums with what crosses cuts on one unit, of which replicas divide the fraction of the type."""
        serial_s = self.serial_data_s
        if serial_s is not None:
            serial_s = serial_s + traffic_s * (1 - problem.data_parallel[types])
        return replace(self, data_s=self.data_s + traffic_s, serial_data_s=serial_s)

    def work(self, problem: Problem, types: Any) -> "StageWork":
        """Return the work of stages.

        Args:
            problem: With the fractions and machines of its types.
            types: The type of every stage, or an index that makes an array [T] go with the sums.
        """
        serial_compute_s, serial_data_s = self.serial_compute_s, self.serial_data_s
        if serial_compute_s is None:
            serial_compute_s = self.compute_s * (1 - problem.compute_parallel[types])
        if serial_data_s is None:
            serial_data_s = self.data_s * (1 - problem.data_parallel[types])
        machines = None if problem.machines is None else problem.machines.take(types)
        own = (self.compute_s, self.data_s, self.sync_s, serial_compute_s, serial_data_s)
        rules = None if self.rules is None else rule_works(self.rules, types)
        return StageWork(*own, self.shared_s, machines, rules)


@dataclass(frozen=True, slots=True, eq=False)
class StageWork:
    """The work of many stages for one batch; all arrays broadcast together.

    Attributes:
        compute_s: C.
        data_s: D.
        sync_s: s, of which k replicas take (k - 1) / k; None where nothing is synchronised.
        serial_compute_s: F.
        serial_data_s: E.
        shared_s: g; None where it is 0 for all.
        machines: In which units stand; None where each is one.
        rules: By which replicas may agree, the one that takes the least of them; None where all all-reduce.
    """

    compute_s: Floats
    data_s: Floats
    sync_s: Floats | None
    serial_compute_s: Floats
    serial_data_s: Floats
    shared_s: Floats | None = None
    machines: Machines | None = None
    rules: tuple[RuleWork, ...] | None = None

    def take(self, index: object) -> "StageWork":
        """Return the work of some of the stages; every array must have the full shape."""
        return StageWork(*(taken(getattr(self, name), index) for name in self.__slots__))

    def compute_time_s(self, units: Floats) -> Floats:
        """Return CT(k)."""
        return np.asarray(divided(self.serial_compute_s, self.compute_s - self.serial_compute_s, units))

    def sync_time_s(self, units: Floats) -> Floats:
        """Return the all-reduce of k replicas, or the rule that takes the least, a part of DT(k)."""
        if self.rules is not None:
            return np.asarray(np.minimum.reduce([rule.time_s(units, self.machines) for rule in self.rules]))
        if self.sync_s is None:
            return np.zeros(np.shape(units))
        return np.asarray(self.sync_s * (ring_share(units) if self.machines is None else self.machines.share(units)))

    def admitting(self, units: Floats) -> tuple["StageWork", Bools]:
        """Return the work where so many replicas may have a rule although it holds too much, and where that is so."""
        if self.rules is None:
            return self, np.zeros(np.shape(units), np.bool_)
        lacks = np.isinf(self.sync_time_s(units))
        rules = tuple(rule.without_limit(lacks) for rule in self.rules)
        return replace(self, rules=rules), lacks

    def data_time_s(self, units: Floats) -> Floats:
        """Return DT(k)."""
        data_s = self.moving_time_s(units)
        return data_s if self.sync_s is None and self.rules is None else data_s + self.sync_time_s(units)

    def moving_time_s(self, units: Floats) -> Floats:
        """Return DT(k) without what replicas agree by."""
        return np.asarray(divided(self.serial_data_s, self.data_s - self.serial_data_s, units))

    def time_s(self, units: Floats) -> Floats:
        """Return ET(k), the longest of CT, DT and g: they overlap."""
        shared_s = 0.0 if self.shared_s is None else self.shared_s
        return np.asarray(steady_time(self.compute_time_s(units), self.data_time_s(units), shared_s))

    def demand(self) -> "ReplicaDemand":
        """Return what it takes to find units for a time."""
        fixed_compute_s, once_s = self.serial_compute_s, np.maximum(self.compute_s, self.data_s)
        fixed_data_s, shared_data_s = self.serial_data_s, self.data_s - self.serial_data_s
        machines, sync_s = self.machines, None
        rules = None if self.rules is None else tuple(map(self._with_rule, self.rules))
        if self.sync_s is None:
            machines, least_data_s = None, fixed_data_s
        elif machines is None:
            fixed_data_s = fixed_data_s + self.sync_s
            shared_data_s = shared_data_s - self.sync_s
            least_data_s = np.minimum(fixed_data_s, self.data_s)
        else:  # either in one machine, or in so many that the rest of them counts no more
            machines, sync_s = machines.broadcast(once_s.shape), np.broadcast_to(self.sync_s, once_s.shape)
            full_s = fixed_data_s + sync_s * machines.inner * (1 - 1 / machines.units)
            least_data_s = np.minimum(self.data_s, full_s + np.minimum(shared_data_s / machines.units, sync_s))
        return ReplicaDemand(
            once_s=_at_least(once_s, self.shared_s),
            fixed_s=np.maximum(fixed_compute_s, least_data_s),
            fixed_compute_s=fixed_compute_s,
            fixed_data_s=fixed_data_s,
            shared_compute_s=self.compute_s - self.serial_compute_s,
            shared_data_s=shared_data_s,
            least_s=self.shared_s,
            sync_s=sync_s,
            machines=machines,
            rules=rules,
        )

    def _with_rule(self, rule: RuleWork) -> RuleDemand:
        """Return the demand with one rule."""
        shape = rule.ring_s.shape

        def full(values: Floats) -> Floats:
            return np.broadcast_to(values, shape)

        once_s = np.maximum(self.compute_s, self.data_s)
        return RuleDemand(
            rule,
            once_s=full(_at_least(once_s, self.shared_s)),
            fixed_compute_s=full(self.serial_compute_s),
            shared_compute_s=full(self.compute_s - self.serial_compute_s),
            fixed_data_s=full(self.serial_data_s),
            shared_data_s=full(self.data_s - self.serial_data_s),
            least_s=None if self.shared_s is None else full(self.shared_s),
            machines=None if self.machines is None else self.machines.broadcast(shape),
        )


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaDemand:
    """The inverse of ET: from a time to the replicas that reach it; all arrays have one shape.

    Attributes:
        once_s: ET(1).
        fixed_s: What CT and DT never fall below, whatever the number of replicas.
        fixed_compute_s, fixed_data_s: What CT and DT come to with ever more replicas.
        shared_compute_s, shared_data_s: The parts that replicas divide; of DT below 0 where it grows with replicas.
        least_s: g; None where it is 0 for all.
        sync_s, machines: s, which is in no part of DT above where units share machines; None where they do not.
        rules: The demand with each rule by which replicas may agree; what is above is then of what all take at least.
            None where all all-reduce.
    """

    once_s: Floats
    fixed_s: Floats
    fixed_compute_s: Floats
    fixed_data_s: Floats
    shared_compute_s: Floats
    shared_data_s: Floats
    least_s: Floats | None = None
    sync_s: Floats | None = None
    machines: Machines | None = None
    rules: tuple[RuleDemand, ...] | None = None

    def take(self, index: Ints | Bools | slice | tuple[Ints, ...]) -> "ReplicaDemand":
        """Return the demand of some of the stages."""
        return ReplicaDemand(*(taken(getattr(self, name), index) for name in self.__slots__))

    @staticmethod
    def join(parts: "Sequence[ReplicaDemand]") -> "ReplicaDemand":
        """Put the demands of lists of stages one after the other."""
        columns = ([getattr(part, name) for part in parts] for name in ReplicaDemand.__slots__)
        return ReplicaDemand(*(joined(column) for column in columns))

    def time_s(self, units: Floats) -> Floats:
        """Return ET(k)."""
        if self.rules is not None:
            return np.asarray(np.minimum.reduce([rule.time_s(units) for rule in self.rules]))
        compute_s = divided(self.fixed_compute_s, self.shared_compute_s, units)
        data_s = divided(self.fixed_data_s, self.shared_data_s, units)
        if self.machines is not None and self.sync_s is not None:
            data_s = data_s + self.sync_s * self.machines.share(units)
        return np.where(
            units > 1, steady_time(compute_s, data_s, 0.0 if self.least_s is None else self.least_s), self.once_s
        )

    def fastest_units(self) -> Floats:
        """Return the fewest replicas beyond which more make nothing faster; inf where every further one does.

        CT falls and DT, where it grows, meets it at one real number: the best whole one is next to it. Where units
        share machines any number may be faster than those before: inf.
        """
        if self.rules is not None:
            return self._fastest_by_rules(self.rules)
        meets = (self.shared_data_s < 0) & (self.fixed_data_s > self.fixed_compute_s)
        if not np.any(meets) or self.machines is not None:
            return np.full(meets.shape, np.inf)
        apart_s = np.where(meets, self.fixed_data_s - self.fixed_compute_s, 1.0)
        met = np.where(meets, np.maximum((self.shared_compute_s - self.shared_data_s) / apart_s, 1.0), 1.0)
        below, above = np.floor(met), np.ceil(met)
        best = np.where(self.time_s(above) < self.time_s(below), above, below)
        return np.where(meets, best, np.inf)

    @staticmethod
    def _fastest_by_rules(rules: Sequence[RuleDemand]) -> Floats:
        """Return the fastest number of replicas of the fastest rule; inf where a rule has none."""
        found = [rule.fastest_units() for rule in rules]
        is_known = np.logical_and.reduce([np.isfinite(units) for units in found])
        whole = [np.where(is_known, units, 1.0) for units in found]
        times_s = [rule.time_s(units) for rule, units in zip(rules, whole, strict=True)]
        best_s = np.minimum.reduce(times_s)
        of_best = (np.where(each_s == best_s, units, np.inf) for each_s, units in zip(times_s, whole, strict=True))
        return np.where(is_known, np.minimum.reduce(list(of_best)), np.inf)

    def least_time_s(self) -> Floats:
        """Return a time that no number of replicas gets below; the least of all but where units share machines."""
        fastest = self.fastest_units()
        is_known = np.isfinite(fastest)
        return np.where(is_known, self.time_s(np.where(is_known, fastest, 1.0)), _at_least(self.fixed_s, self.least_s))

    def units(self, time_s: Floats | float) -> Floats:
        """Return the fewest replicas that take at most ``time_s``; inf where no number of them does."""
        if self.rules is not None:
            return np.asarray(np.minimum.reduce([rule.units(time_s) for rule in self.rules]))
        limit = np.asarray(time_s) * (1 + TIME_TOLERANCE)
        if self.machines is not None:
            return self._on_machines(limit)
        return self._round_up(*self._fractions(limit), self.once_s <= limit)

    def units_and_bound(self, time_s: Floats | float) -> tuple[Floats, Floats]:
        """Return :meth:`units`, and a lower bound on k * tau over all tau <= time_s and k that take at most tau."""
        if self.rules is not None:
            pairs = [rule.units_and_bound(time_s) for rule in self.rules]
            units, bound = (np.minimum.reduce(each) for each in zip(*pairs, strict=True))
            return units, bound
        limit = np.asarray(time_s) * (1 + TIME_TOLERANCE)
        if self.machines is not None:  # no k below units(x) will do, and k ET(k) never falls
            units = self._on_machines(limit)
            finite = np.isfinite(units)
            whole = np.where(finite, units, 1.0)
            return units, np.where(finite, whole * self.time_s(whole), np.inf)
        (need, most), one = self._fractions(limit), self.once_s <= limit
        units = self._round_up(need, most, one)
        bound = np.where(one, self.once_s, np.maximum(self.once_s, need * time_s))
        if most is not None:
            bound[np.isinf(units)] = np.inf
        return units, bound

    def _on_machines(self, limit_s: Floats) -> Floats:
        """Return the fewest replicas where units share machines; inf where no number is enough."""
        if self.machines is None or self.sync_s is None:
            raise ValueError("units share no machines here")
        shape = np.broadcast_shapes(np.shape(limit_s), self.once_s.shape)
        limit_s = np.broadcast_to(limit_s, shape)
        per_machine, inner = self.machines.units, self.machines.inner
        with np.errstate(divide="ignore", invalid="ignore"):
            units = np.maximum(np.ceil(self.shared_compute_s / (limit_s - self.fixed_compute_s)), 1.0)
        hopeless = (limit_s <= self.fixed_compute_s) | (limit_s < self.fixed_s)
        if self.least_s is not None:
            hopeless |= limit_s < self.least_s
        # beyond one machine m >= k / u, so that DT(k) >= full + (D beta - s u) / k
        full_s = self.fixed_data_s + self.sync_s * (inner * (1 - 1 / per_machine) + 1)
        divided_s = self.shared_data_s - self.sync_s * per_machine
        with np.errstate(divide="ignore", invalid="ignore"):
            beyond = divided_s / (limit_s - full_s)
        least = np.where(divided_s > 0, np.where(limit_s > full_s, beyond, np.inf), 0.0)
        most = np.where((divided_s <= 0) & (limit_s < full_s), beyond, np.inf)
        units = np.where(hopeless, np.inf, units)
        open_ = np.isfinite(units)
        while np.any(open_):
            whole = np.where(open_, units, 1.0)
            left_s = limit_s - self.fixed_data_s - self.sync_s * self.machines.share(whole)
            with np.errstate(divide="ignore", invalid="ignore"):
                need = np.where(left_s > 0, np.ceil(self.shared_data_s / left_s), np.inf)
            is_beyond = np.maximum(whole, need) > per_machine
            need = np.where(is_beyond, np.maximum(need, np.ceil(least * (1 - TIME_TOLERANCE))), need)
            need[is_beyond & (need > most * (1 + TIME_TOLERANCE))] = np.inf
            further = open_ & (need > whole)
            units = np.where(further, need, units)
            open_ = further & np.isfinite(need)
        units[self.once_s <= limit_s] = 1.0
        return units

    def _fractions(self, limit_s: Floats) -> tuple[Floats, Floats | None]:
        """Return the fewest and the most replicas, as real numbers, where one is too slow.

        The fewest are inf where no number is enough; the most are None where DT grows with replicas nowhere.
        """
        grows, most = self.shared_data_s < 0, None
        with np.errstate(divide="ignore", invalid="ignore"):  # where no time is left, which the last lines answer
            need = self.shared_compute_s / (limit_s - self.fixed_compute_s)
            data = self.shared_data_s / (limit_s - self.fixed_data_s)
        if np.any(grows):
            most = np.where(grows & (limit_s < self.fixed_data_s), data, np.inf)
            data = np.where(grows, 0.0, data)
        np.maximum(need, data, out=need)
        if most is None:
            need[limit_s <= self.fixed_s] = np.inf
        else:
            need[(limit_s <= self.fixed_compute_s) | (~grows & (limit_s <= self.fixed_data_s))] = np.inf
        if self.least_s is not None:
            need[limit_s < self.least_s] = np.inf
        return need, most

    @staticmethod
    def _round_up(need: Floats, most: Floats | None, one: Bools) -> Floats:
        units = np.ceil(need)
        np.maximum(units, 2.0, out=units)
        if most is not None:
            units[units > most] = np.inf
        units[one] = 1.0
        return units


def _at_least(time_s: Floats, least_s: Floats | None) -> Floats:
    return time_s if least_s is None else np.maximum(time_s, least_s)
