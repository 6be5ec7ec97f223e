"""What the rules by which replicas agree take in every stage that a search may try, and with how many replicas.

A problem has a table for each rule that stages may have (``sync_rules/amounts.py``), all of which add up over layers.
With r and g the ring's and the gather's seconds of a stage on a type, i and o whether the rule sums inside and between
machines, u' and m as in ``sync_rules/network.py``, and the rest as in ``replicas.py``::

    T(k)  = r (i inner (1 - 1 / u') + o (1 - 1 / m)) + g (m - 1)     or r / 2 halves(k) + g products(k) (halving.py)
    DT(k) = E + (D - E) / k + T(k)
    most  = the largest k with  base + each k <= room                what a replica holds besides grows with replicas

Which rules a stage may have follows from its layers: a layer is *present* for the first entry that names it, and the
first entry with a layer present is the stage's. Entries that may or may not be for a stage (``is_open``) come before
it: with ``auto`` all, and where a part of a stage's layers is known. Of those that are left the one counts that takes
the least::

    ET(k) = min over rules of max(CT(k), DT_rule(k))   for k <= most_rule, and ET(1) is that of any

which is exact where the planner chooses, as a stage has its rule by itself alone.

The fewest replicas for a time x are those of the rule that needs fewest. Where units share no machines DT(k) <= x is a
quadratic inequality, g k^2 - (x - c) k + d <= 0; where they do, ``k -> (D - E) / (x - E - T(k))`` is followed from
below, as T never falls, from the root of the quadratic that m >= k / u leaves. A rule that halves takes longer with 3
replicas than with 4: it is looked at in pieces, in each of which T never falls, and from k on T is no less than
``low(k) = min(T(k), T(next power of two))``.

Left out: messages, which steps add (``schedule/step_problem.py``); rules whose times are none of these forms.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_compile.sync_rules.network import Network
from heterps_compile.sync_rules.rule import FlatBuffer, SyncGroup, SyncRule

from .all_reduce import Machines
from .halving import MOST_LEVELS, halving_shares, least_of_ring, power_below, power_from
from .stage_law import divided, steady_time

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

TIME_TOLERANCE = 1e-12
"""Relative: rounding of sums must not cost a replica."""

_TABLES = ("ring_s", "gather_s", "base_bytes", "each_bytes", "present", "whole", "factored")


@dataclass(frozen=True, slots=True)
class RuleForm:
    """What of a rule is the same for all layers.

    Attributes:
        rule: The rule.
        sums_inside, sums_between: i and o.
        halves: Whether it is by recursive halving.
        is_open: Whether a stage need not have it although a search has to reckon with it.
    """

    rule: SyncRule
    sums_inside: bool
    sums_between: bool
    halves: bool
    is_open: bool

    def hops_s(self, network: Network, replicas: int) -> float:
        """Return what the messages of an exchange take of a step, of replicas that have something to agree on."""
        something = (FlatBuffer(1),)
        return self.rule.exposed(SyncGroup(replicas, something, something, network=network)).hops_s


@dataclass(frozen=True, slots=True, eq=False)
class RuleSums:
    """One rule's tables [L, T], or sums of them over the layers of stages.

    Attributes:
        form: What is the same for all layers.
        ring_s, gather_s: r and g.
        base_bytes, each_bytes: What a replica holds at least, its weights and activations included; and for each of
            the replicas besides, both with the safety factor. By halving the second is held where replicas are no power
            of two.
        present: 1 where the entry is the first that names the layer.
        whole, factored: 1 where something of the layer is summed whole, and as two factors.
        room_bytes: [T], of a unit.
        most_units: [T], replicas beyond which no stage has it.
    """

    form: RuleForm
    ring_s: Floats
    gather_s: Floats
    base_bytes: Floats
    each_bytes: Floats
    present: Floats
    whole: Floats
    factored: Floats
    room_bytes: Floats
    most_units: Floats

    def map(self, function: Callable[..., Floats], *others: "RuleSums") -> "RuleSums":
        """Return the sums with a function applied to each table, and to the same one of others."""
        tables: dict[str, Any] = {
            name: function(*(getattr(each, name) for each in (self, *others))) for name in _TABLES
        }
        return replace(self, **tables)

    def of_layer(self, layer: int) -> tuple[bytes, ...]:
        """Return all that is a layer's own, of the tables of a problem."""
        return tuple(getattr(self, name)[layer].tobytes() for name in _TABLES)

    def with_servers(self) -> "RuleSums":
        """Return tables of a problem with one more layer and one more type, which have nothing to agree on."""
        padded = self.map(lambda table: np.pad(table, ((0, 1), (0, 1))))
        padded.base_bytes[:, -1] = 0.0
        return replace(
            padded, room_bytes=np.append(self.room_bytes, np.inf), most_units=np.append(self.most_units, np.inf)
        )

    def least(self, other: "RuleSums") -> "RuleSums":
        """Return tables with the less of this one's and another's; who is present has to be the same."""
        return self.map(np.minimum, other)

    def on_faster_links(self, factors: Floats) -> "RuleSums":
        """Return tables where types have that many times the bandwidth, [T]."""
        return replace(self, ring_s=self.ring_s / factors, gather_s=self.gather_s / factors)

    def with_part(self, part: Floats) -> "RuleSums":
        """Return tables with a part of the times, [L, 1], and nothing held."""
        none = np.zeros_like(self.base_bytes)
        ring_s, gather_s = self.ring_s * part, self.gather_s * part
        return replace(self, ring_s=ring_s, gather_s=gather_s, base_bytes=none, each_bytes=none)

    def held_bytes(self, units: Ints) -> Floats:
        """Return [L, T], what replicas of at most so many [T] hold of each layer."""
        return self.base_bytes + self.each_bytes * (1.0 if self.form.halves else units)


@dataclass(frozen=True, slots=True, eq=False)
class RuleWork:
    """A rule in many stages, all arrays of one shape.

    Attributes:
        form: Of the rule.
        ring_s, gather_s: r and g.
        most: Replicas that may have it, 1 where none may.
        most_uneven: Those that may have it by halving and are no power of two; ``most`` of other rules.
        sums: How many sums follow one another, each with messages of its own.
    """

    form: RuleForm
    ring_s: Floats
    gather_s: Floats
    most: Floats
    most_uneven: Floats
    sums: Floats

    def take(self, index: Any) -> "RuleWork":
        """Return some of the stages."""
        return self.map(lambda table: table[index])

    @staticmethod
    def join(parts: "Sequence[RuleWork]") -> "RuleWork":
        """Put the work of lists of stages one after the other."""
        return parts[0].map(lambda *arrays: np.concatenate(arrays), *parts[1:])

    def map(self, function: Callable[..., Floats], *others: "RuleWork") -> "RuleWork":
        """Return the work with a function applied to each array, and to the same one of others."""
        arrays: dict[str, Any] = {
            name: function(*(getattr(each, name) for each in (self, *others))) for name in tuple(self.__slots__)[1:]
        }
        return replace(self, **arrays)

    def without_limit(self, lacks: Bools) -> "RuleWork":
        """Return the work where some of the stages may have any number of replicas."""
        return replace(
            self, most=np.where(lacks, np.inf, self.most), most_uneven=np.where(lacks, np.inf, self.most_uneven)
        )

    def may_have(self, units: Floats) -> Bools:
        """Return whether so many replicas may have the rule."""
        if not self.form.halves:
            return np.asarray(units <= self.most)
        return np.asarray(units <= np.where(power_below(units) == units, self.most, self.most_uneven))

    def time_s(self, units: Floats, machines: Machines | None) -> Floats:
        """Return T(k); inf where so many replicas may not have the rule, 0 for one."""
        form = self.form
        if form.halves:
            halves, products = halving_shares(units, machines)
            spent_s = self.ring_s / 2 * halves + self.gather_s * products
        elif machines is None:
            spent_s = self.ring_s * (1 - 1 / units) * form.sums_between + self.gather_s * (units - 1)
        else:
            inside, count = np.minimum(units, machines.units), np.ceil(units / machines.units)
            spent_s = self.ring_s * (
                machines.inner * (1 - 1 / inside) * form.sums_inside + (1 - 1 / count) * form.sums_between
            )
            spent_s = spent_s + self.gather_s * (count - 1)
        return np.asarray(np.where(self.may_have(units), spent_s, np.where(units > 1, np.inf, 0.0)), np.float64)

    def low_s(self, units: Floats, machines: Machines | None) -> Floats:
        """Return what T is at least of so many replicas and of all beyond."""
        found_s = self.time_s(units, machines)
        return np.minimum(found_s, self.time_s(power_from(units), machines)) if self.form.halves else found_s


def rule_works(sums: Sequence[RuleSums], types: Any) -> tuple[RuleWork, ...]:
    """Return the rules of stages on some types, each with the replicas that may have it."""
    found = []
    is_left = np.ones(sums[0].present.shape, np.bool_)
    for each in sums:
        is_present = each.present > 0.5
        is_its = is_left & (is_present | each.form.is_open)
        is_left = is_left & ~is_present
        room = each.room_bytes[types] * (1 + 1e-9) - each.base_bytes
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            fitting = np.where(each.each_bytes > 0, np.floor(room / each.each_bytes), np.inf)
        is_roomy = room >= each.each_bytes
        if each.form.halves:
            fitting = np.full(room.shape, np.inf)
        most = np.minimum(np.where(room >= 0, fitting, 1.0), each.most_units[types])
        most = np.where(is_its & (most >= 2), most, 1.0)
        most_uneven = np.where(is_roomy, most, 1.0) if each.form.halves else most
        in_turn = np.where(each.factored > 0.5, 2.0 + (each.whole > 0.5), 1.0)
        found.append(RuleWork(each.form, each.ring_s, each.gather_s, most, most_uneven, in_turn))
    return tuple(found)


def least_sync_s(sums: Sequence[RuleSums], machines: Machines | None) -> Floats:
    """Return [L, T], what layers add to every rule that their stages may have, as a part of an endless ring.

    So many seconds times ``share(k)`` is no more than T(k) of any of them: for two replicas or more,
    g (k - 1) >= 2 g (k - 1) / k. With machines both parts of ``share`` must be a rule's: what is gathered between them
    stands for a sum there.
    """
    least = np.full(sums[0].ring_s.shape, np.inf)
    is_left = np.ones(least.shape, np.bool_)
    for each in sums:
        form = each.form
        if form.halves:
            of_ring, of_gather = least_of_ring(machines)
            own_s = each.ring_s * of_ring + each.gather_s * of_gather
        elif machines is None:
            own_s = each.ring_s * form.sums_between + 2 * each.gather_s
        elif form.sums_inside:
            own_s = each.ring_s if form.sums_between else np.minimum(each.ring_s, 2 * each.gather_s)
        else:
            own_s = np.zeros(least.shape)
        least = np.where(is_left, np.minimum(least, own_s), least)
        is_left &= each.present < 0.5
    return np.where(np.isfinite(least), least, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class RuleDemand:
    """The inverse of ET with one rule: from a time to the replicas that reach it; all arrays have one shape.

    Attributes:
        work: The rule.
        once_s: ET(1).
        fixed_compute_s, shared_compute_s: F and C - F.
        fixed_data_s, shared_data_s: E and D - E.
        least_s: g of storage; None where it is 0 for all.
        machines: In which units stand; None where each is one.
    """

    work: RuleWork
    once_s: Floats
    fixed_compute_s: Floats
    shared_compute_s: Floats
    fixed_data_s: Floats
    shared_data_s: Floats
    least_s: Floats | None
    machines: Machines | None

    def take(self, index: Any) -> "RuleDemand":
        """Return the demand of some of the stages."""
        return RuleDemand(*(taken(getattr(self, name), index) for name in self.__slots__))

    @staticmethod
    def join(parts: "Sequence[RuleDemand]") -> "RuleDemand":
        """Put the demands of lists of stages one after the other."""
        columns = ([getattr(part, name) for part in parts] for name in RuleDemand.__slots__)
        return RuleDemand(*(joined(column) for column in columns))

    def time_s(self, units: Floats) -> Floats:
        """Return ET(k); inf where so many may not have the rule."""
        compute_s = divided(self.fixed_compute_s, self.shared_compute_s, units)
        data_s = divided(self.fixed_data_s, self.shared_data_s, units) + self.work.time_s(units, self.machines)
        time_s = steady_time(compute_s, data_s, 0.0 if self.least_s is None else self.least_s)
        return np.where(units > 1, time_s, self.once_s)

    def fastest_units(self) -> Floats:
        """Return the fewest replicas beyond which more make nothing faster; inf where that is not known.

        The larger of CT, which falls, and DT, which is convex: its least is where DT has its own, or right of it where
        they meet.
        """
        most = self.work.most
        if self.machines is not None or self.work.form.halves:
            return np.full(most.shape, np.inf)
        ring_s = self.work.ring_s * self.work.form.sums_between
        rise_s, falls_s = self.work.gather_s, self.shared_data_s - ring_s
        with np.errstate(divide="ignore", invalid="ignore"):
            own = np.where((rise_s > 0) & (falls_s > 0), np.sqrt(falls_s / rise_s), 1.0)
            apart_s = self.fixed_data_s + ring_s - rise_s - self.fixed_compute_s
            between_s = falls_s - self.shared_compute_s
            root = np.sqrt(np.maximum(apart_s**2 - 4 * rise_s * between_s, 0.0))
            curved = np.where(apart_s > 0, -2 * between_s / (apart_s + root), (root - apart_s) / (2 * rise_s))
            meets = np.where(rise_s > 0, curved, np.where(apart_s > 0, -between_s / apart_s, np.inf))
            own_data_s = self.fixed_data_s + ring_s - rise_s + falls_s / own + rise_s * own
            is_own = own_data_s >= self.fixed_compute_s + self.shared_compute_s / own
        rises = (rise_s > 0) | (falls_s < 0)
        best = np.where(is_own, own, np.maximum(np.nan_to_num(meets, nan=1.0, posinf=np.inf), own))
        best = np.where(rises & np.isfinite(best), np.maximum(best, 1.0), np.inf)
        known = np.isfinite(best)
        below = np.minimum(np.floor(np.where(known, best, 1.0)), most)
        above = np.minimum(below + 1, most)
        whole = np.where(self.time_s(above) < self.time_s(below), above, below)
        return np.where(known, whole, most)

    def units(self, time_s: Floats | float) -> Floats:
        """Return the fewest replicas that take at most ``time_s``; inf where no number of them does."""
        return self.units_and_bound(time_s)[0]

    def units_and_bound(self, time_s: Floats | float) -> tuple[Floats, Floats]:
        """Return :meth:`units`, and a lower bound on k tau over all tau <= time_s and k that take at most tau."""
        shape = np.broadcast_shapes(np.shape(time_s), self.once_s.shape)
        limit_s = np.broadcast_to(np.asarray(time_s) * (1 + TIME_TOLERANCE), shape)
        with np.errstate(divide="ignore", invalid="ignore"):
            need = np.where(
                self.shared_compute_s > 0, self.shared_compute_s / (limit_s - self.fixed_compute_s), 0.0 * limit_s
            )
        hopeless = limit_s <= self.fixed_compute_s
        if self.least_s is not None:
            hopeless = hopeless | (limit_s < self.least_s)
        one = np.broadcast_to(self.once_s <= limit_s, shape)
        if self.work.form.halves:
            units = self._in_pieces(limit_s, np.where(hopeless | one, np.inf, need))
            units = np.where(one, 1.0, units)
            return units, self._paid_from(units)
        if self.machines is not None:
            units = self._on_machines(limit_s, np.where(hopeless | one, 1.0, need))
            units = np.where(one, 1.0, np.where(hopeless | (units > self.work.most), np.inf, units))
            whole = np.where(np.isfinite(units), units, 1.0)  # no fewer will do, and k ET(k) never falls
            return units, np.where(np.isfinite(units), whole * self.time_s(whole), np.inf)
        ring_s = self.work.ring_s * self.work.form.sums_between
        left_s = limit_s - self.fixed_data_s - ring_s + self.work.gather_s
        low, high = _between_roots(self.work.gather_s, left_s, self.shared_data_s - ring_s)
        need = np.maximum(need, low)
        units = np.maximum(np.ceil(need), 2.0)
        is_none = hopeless | (units > np.minimum(high * (1 + TIME_TOLERANCE), self.work.most)) | ~np.isfinite(need)
        units = np.where(one, 1.0, np.where(is_none, np.inf, units))
        need = np.where(is_none, np.inf, need)
        with np.errstate(invalid="ignore"):  # inf * 0 where no number is enough for no time
            bound = np.where(np.isfinite(units), np.maximum(self.once_s, need * np.asarray(time_s)), np.inf)
        return units, np.where(one, self.once_s, bound)

    def _on_machines(self, limit_s: Floats, need: Floats) -> Floats:
        """Return the fewest replicas where units share machines; inf where no number is enough."""
        machines, work, form = self.machines, self.work, self.work.form
        if machines is None:
            raise ValueError("units share no machines here")
        per_machine, between_s = machines.units, work.ring_s * form.sums_between
        full_s = between_s + work.ring_s * machines.inner * (1 - 1 / per_machine) * form.sums_inside
        rise_s = work.gather_s / per_machine
        left_s = limit_s - self.fixed_data_s - full_s + work.gather_s
        least, most = _between_roots(rise_s, left_s, self.shared_data_s - between_s * per_machine)
        least, most = np.ceil(least * (1 - TIME_TOLERANCE)), np.minimum(most * (1 + TIME_TOLERANCE), work.most)
        units = np.maximum(np.ceil(need), 1.0)
        open_ = np.isfinite(units)
        while np.any(open_):
            whole = np.where(open_, units, 1.0)
            with np.errstate(divide="ignore", invalid="ignore"):
                left_s = limit_s - self.fixed_data_s - work.time_s(whole, machines)
                next_ = np.where(left_s > 0, np.ceil(self.shared_data_s / left_s), np.inf)
            next_ = np.maximum(next_, whole)
            is_beyond = next_ > per_machine
            next_ = np.where(is_beyond, np.maximum(next_, least), next_)
            next_ = np.where(is_beyond & (next_ > most), np.inf, next_)
            further = open_ & (next_ > whole)
            units = np.where(further, next_, units)
            open_ = further & np.isfinite(next_)
        return units

    def _in_pieces(self, limit_s: Floats, need: Floats) -> Floats:
        """Return the fewest replicas, 2 or more, of a rule that halves; inf where no number is enough."""
        work, shape = self.work, limit_s.shape
        units = np.full(shape, np.inf)
        need = np.maximum(np.ceil(np.broadcast_to(need, shape)), 2.0)
        open_ = np.isfinite(need)
        for level in range(1, MOST_LEVELS):
            power = np.full(shape, 2.0**level)
            left_s = limit_s - self.fixed_data_s - work.time_s(power, self.machines)
            # no later number takes less to agree
            open_ &= np.isinf(units) & (power <= work.most) & (left_s >= 0)
            if not np.any(open_):
                break
            reaches = open_ & (power >= need) & (self.shared_data_s <= left_s * power)
            units = np.where(reaches, power, units)
            last = np.minimum(2 * power - 1, work.most_uneven)
            tried = np.maximum(power + 1, need)
            among = open_ & ~reaches & (tried <= last)
            while np.any(among):
                tried = np.where(among, tried, power)
                left_s = limit_s - self.fixed_data_s - work.time_s(tried, self.machines)
                with np.errstate(divide="ignore", invalid="ignore"):
                    next_ = np.where(left_s > 0, np.ceil(self.shared_data_s / left_s), np.inf)
                settled = among & (self.shared_data_s <= left_s * tried)
                units = np.where(settled, tried, units)
                tried = np.maximum(next_, tried + 1)
                among = among & ~settled & (tried <= last)
        return units

    def _paid_from(self, units: Floats) -> Floats:
        """Return a lower bound on k ET(k) of so many replicas and of all beyond; inf where there are none."""
        whole = np.where(np.isfinite(units), units, 1.0)
        compute_s = self.fixed_compute_s * whole + self.shared_compute_s
        agrees_s = np.where(whole > 1, self.work.low_s(whole, self.machines), 0.0)
        data_s = (self.fixed_data_s + agrees_s) * whole + self.shared_data_s
        paid_s = np.maximum(compute_s, data_s)
        paid_s = paid_s if self.least_s is None else np.maximum(paid_s, self.least_s * whole)
        return np.where(np.isfinite(units), np.where(whole > 1, paid_s, self.once_s), np.inf)


def _between_roots(rise_s: Floats, left_s: Floats, falls_s: Floats) -> tuple[Floats, Floats]:
    """Return the least and the most k > 0 with ``rise k + falls / k <= left``; inf and 0 where there is none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        beneath = left_s**2 - 4 * rise_s * falls_s
        root = np.sqrt(np.maximum(beneath, 0.0))
        low = np.where(falls_s > 0, 2 * falls_s / (left_s + root), 0.0)
        curved = np.where(left_s >= 0, (left_s + root) / (2 * rise_s), 2 * falls_s / (left_s - root))
        straight = np.where(left_s >= 0, np.inf, falls_s / left_s)
        high = np.where(rise_s > 0, curved, straight)
    none = (beneath < 0) | ((falls_s > 0) & (left_s <= 0)) | ((falls_s == 0) & (left_s < 0))
    return np.where(none, np.inf, low), np.where(none, 0.0, high)


def taken(values: Any, index: Any) -> Any:
    """Return some of the stages of a part of a demand: arrays, whatever has them, or several of these."""
    if isinstance(values, tuple):
        return tuple(each.take(index) for each in values)
    return None if values is None else values[index] if isinstance(values, np.ndarray) else values.take(index)


def joined(column: Sequence[Any]) -> Any:
    """Put a part of the demands of lists of stages one after the other, likewise."""
    if isinstance(column[0], tuple):
        return tuple(map(joined, zip(*column, strict=True)))
    if column[0] is None or isinstance(column[0], np.ndarray):
        return None if column[0] is None else np.concatenate(column)
    return column[0].join(column)
