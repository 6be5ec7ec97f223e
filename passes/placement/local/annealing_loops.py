"""The loop of the annealing, which numba compiles: one plan changed over and over, priced as a whole after each change.

A change puts other stages in place of one, two or three neighbours, or a window of another plan into this one::

    plan      | cpu  | gpu          | npu    |
    retyped   | cpu  | npu          | npu    |      a stage on another type
    shifted   | cpu     | gpu       | npu    |      a stage begins elsewhere
    merged    | cpu                 | npu    |      two stages as one, on any type
    divided   | cpu  | gpu    | cpu | npu    |      the begin or the end of a stage, or a run inside, on any type
    slid      | cpu     | gpu          |npu  |      a stage moves as it is
    dropped   | cpu       | npu              |      its neighbours take what it had
    swapped   | gpu  | cpu          | npu    |      two stages with each other's types
    crossed   | cpu  |gpu| cpu  | gpu | npu  |      a window as another plan has it
    exchanged | npu  | gpu          | cpu    |      two stages anywhere with each other's types
    recut     | gpu                 | npu|cpu|      two stages as one, and another one divided: as many stages

What a stage takes with k replicas is what :class:`~heterps_compile.cost.replicas.ReplicaDemand` says: its parts are
sums over layers and come as such, the longest of them is found here. Tests hold the prices against ``evaluate``.

Left out: how long to anneal, and from which plans (``annealing.py``).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_compile.cost.memory import MEMORY_TOLERANCE
from heterps_compile.cost.problem import Floats, Ints
from heterps_compile.cost.rule_times import TIME_TOLERANCE
from heterps_compile.cost.stage_law import Values, divided, ring_part, steady_time

COST, PRICE, LATENCY, SLOWEST, ONE_UNIT = range(5)
"""What is minimised: see :mod:`heterps_compile.cost.objective`; the last two are the slowest stage's time."""

KINDS = ("retype", "shift", "merge", "divide", "carve", "slide", "drop", "swap", "cross", "wait", "exchange", "recut")
"""Changes, in the order of their odds; ``wait`` changes the time of a batch alone."""

_STUCK = 1e4
"""What a stage that no number of replicas makes feasible exceeds constraints by.

It seems to cost next to nothing, and may take no time at all, as a type that runs none of its layers: such excess costs
in proportion to a good plan's value, not to that of the plan that has it. Else a plan of which every stage is stuck is
cheaper than what it may be changed into, and a walk stands still there."""

_LITTLE = 0.01
"""Of a good plan's value; what any excess costs at least in proportion to."""


class Tables(NamedTuple):
    """A problem between P positions.

    Attributes:
        compute_s, data_s: [P, T], sums over the layers before a position.
        fixed_compute_s, fixed_data_s: Likewise, what replicas do not divide.
        sync_s, shared_s: Likewise; sync_s is 0 where it is in the data.
        forbidden: [P, T], layers before a position that the type may not run.
        memory_bytes: [P, P], what a stage between two positions holds; [0, 0] where every type holds all.
        moved_bytes, talks: [P, P]; [0, 0] where pairs of types have links of their own.
        fixed_talk: [T], the part of the time to talk that replicas do not divide.
        rate, limits, capacity_bytes: [T], of a unit its price and its memory, and how many units there are.
        together: [T], units that are rented as one machine.
        units_per_machine, inner: [T], see ``Machines``; 1 unit where every unit is alone.
        per_byte, latency_s: [T, T] of links, [1, T] of types.
        layer: [P], at every position.
        starts, producer, size_bytes, low, high, reader, before: See ``LinkTraffic``; entries of a position by ascending
            producer.
    """

    compute_s: Floats
    data_s: Floats
    fixed_compute_s: Floats
    fixed_data_s: Floats
    sync_s: Floats
    shared_s: Floats
    forbidden: Floats
    memory_bytes: Floats
    moved_bytes: Floats
    talks: Floats
    fixed_talk: Floats
    rate: Floats
    limits: Floats
    capacity_bytes: Floats
    together: Floats
    units_per_machine: Floats
    inner: Floats
    per_byte: Floats
    latency_s: Floats
    layer: Ints
    starts: Ints
    producer: Ints
    size_bytes: Floats
    low: Ints
    high: Ints
    reader: Ints
    before: Ints


class Rules(NamedTuple):
    """What plans must keep to, and how they are changed.

    Attributes:
        objective: One of the numbers above.
        fewest, most: Stages.
        slowest_s: The longest time of a batch; inf without a floor.
        open_s: The time of a batch in which every stage is done on one unit, or the longest that is allowed.
        good: The value of a good plan.
        budget: Price per hour; inf without one.
        odds: Of the kinds of changes, cumulated, up to 1.
        shift: Mean of how far a bound moves, in positions.
        hurried: Share of changes that change the time of a batch, too.
        hurry: Mean of the logarithm of its change.
    """

    objective: int
    fewest: int
    most: int
    slowest_s: float
    open_s: float
    good: float
    budget: float
    odds: Floats
    shift: float
    hurried: float
    hurry: float


class Walk(NamedTuple):
    """A plan, and the best one that came of it; W positions and types are room for more stages than a plan may have.

    Attributes:
        bounds, types: [2, W], of the plan and of the best; behind the last stage anything.
        stages: [2], how many there are.
        numbers: [2, 3], time of a batch, value, and what constraints are exceeded by; the value is inf of no plan.
        random: [1], state of the generator.
    """

    bounds: Ints
    types: Ints
    stages: Ints
    numbers: Floats
    random: NDArray[np.uint64]


class Donors(NamedTuple):
    """D plans whose windows are crossed in; see :class:`Walk`."""

    bounds: Ints
    types: Ints
    stages: Ints


class Cooling(NamedTuple):
    """How many changes are tried; from the first to the last the heat falls and exceeding gets dearer.

    Attributes:
        steps: Changes; with none, the plan is priced and nothing else.
        hottest, coldest: Relative worsening that is taken with odds of 1/e.
        cheapest, dearest: What exceeding a constraint by its own size costs, relative to the plan's value.
    """

    steps: int
    hottest: float
    coldest: float
    cheapest: float
    dearest: float


def fewest_units(parts: tuple[Values, ...], per_machine: Values, inner: Values, limit_s: float) -> tuple[float, float]:
    """Return the fewest replicas, two or more, that take at most a time, and ET of them; 0 where no number does.

    Args:
        parts: F, C - F, E, D - E, s and g of a stage.
        per_machine: Units of a machine, 1 where each is alone.
        inner: Bandwidth of a machine's card over the bandwidth inside.
        limit_s: The time.
    """
    fixed_s, parallel_s, fixed_data_s, parallel_data_s, sync_s, shared_s = parts
    if limit_s <= fixed_s or shared_s > limit_s:
        return 0.0, 0.0
    units, spent_s = max(np.ceil(parallel_s / (limit_s - fixed_s)), 2.0), 0.0
    for _ in range(60):
        spent_s = fixed_data_s + sync_s * ring_part(units, per_machine, inner)
        if parallel_data_s < 0:  # which grows with replicas
            if spent_s > limit_s and units > parallel_data_s / (limit_s - spent_s):
                return 0.0, 0.0
            break
        if spent_s >= limit_s:
            return 0.0, 0.0
        needed = np.ceil(parallel_data_s / (limit_s - spent_s))
        if needed <= units:
            break
        units = needed
    return units, steady_time(divided(fixed_s, parallel_s, units), divided(spent_s, parallel_data_s, units), shared_s)


def set_talk(tables: Tables, bounds: Ints, kinds: Ints, count: int, talk_s: Floats) -> None:
    """Set what stages pay to talk, in the first row of [3, W]; the others are latencies received and sent."""
    per_byte, latency_s = tables.per_byte, tables.latency_s
    if per_byte.shape[0] == 1:
        for stage in range(count):
            cell, type_ = (bounds[stage], bounds[stage + 1]), kinds[stage]
            talk_s[0, stage] = tables.moved_bytes[cell] * per_byte[0, type_] + tables.talks[cell] * latency_s[0, type_]
        return
    for stage in range(count):
        talk_s[0, stage] = talk_s[1, stage] = talk_s[2, stage] = 0.0
    for stage in range(count - 1):
        begins, ends, type_ = tables.layer[bounds[stage]], tables.layer[bounds[stage + 1]], kinds[stage]
        for entry in range(tables.starts[ends + 1] - 1, tables.starts[ends] - 1, -1):
            if tables.producer[entry] < begins:
                break
            slowest, reads = 0.0, stage + 1
            for read in range(tables.low[entry], tables.high[entry]):
                while tables.layer[bounds[reads + 1]] <= tables.reader[read]:
                    reads += 1
                slowest = max(slowest, per_byte[type_, kinds[reads]])
                talk_s[2, stage] = max(talk_s[2, stage], latency_s[type_, kinds[reads]])
                if tables.before[read] < tables.layer[bounds[reads]]:
                    talk_s[0, reads] += tables.size_bytes[entry] * per_byte[kinds[reads], type_]
                    talk_s[1, reads] = max(talk_s[1, reads], latency_s[kinds[reads], type_])
            talk_s[0, stage] += tables.size_bytes[entry] * slowest
    for stage in range(count):
        talk_s[0, stage] += talk_s[1, stage] + talk_s[2, stage]


def pay(tables: Tables, limits: tuple[int, int, float], used: Floats, count: int) -> tuple[float, float]:
    """Return the price of units, and what a plan of so many stages exceeds limits by: of stages, of the price."""
    fewest, most, budget = limits
    paid, excess = 0.0, float(max(fewest - count, 0) + max(count - most, 0))
    for type_ in range(len(used)):
        together = tables.together[type_]
        paid += np.ceil(used[type_] / together) * together * tables.rate[type_]
        if used[type_] > tables.limits[type_]:
            excess += used[type_] / tables.limits[type_] - 1
    if paid > budget:
        excess += paid / budget - 1
    return paid, excess


def anneal(tables: Tables, rules: Rules, walk: Walk, donors: Donors, cooling: Cooling) -> int:  # noqa: PLR0915 -- see below
    """Change a plan many times, in place; return how many stages were priced.

    Most is one loop: each array that is passed on takes time.
    """
    last, types = tables.compute_s.shape[0] - 1, tables.compute_s.shape[1]
    room = walk.bounds.shape[1]
    bounds, kinds, count = walk.bounds[0], walk.types[0], walk.stages[0]
    batch_s, value, excess = walk.numbers[0]
    stuck_excess = 0.0
    at_floor = rules.objective in (PRICE, LATENCY)
    to_bounds, to_kinds = np.empty(room, np.int64), np.empty(room, np.int64)
    talk_s = np.empty((3, room))
    # of stages of the plan, and of what it is changed into: talk, units, time, passed, excess, stuck
    had, has, is_kept = np.empty((6, room)), np.empty((6, room)), False
    used, u, priced = np.empty(types), np.empty(11), 0
    x = walk.random[0]
    for step in range(-1, cooling.steps):
        share = max(step, 0) / max(cooling.steps, 1)
        price = cooling.cheapest * (cooling.dearest / cooling.cheapest) ** share
        for place in range(11):
            x ^= x >> np.uint64(12)
            x ^= x << np.uint64(25)
            x ^= x >> np.uint64(27)
            u[place] = ((x * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0
        # what is put in place of stages first .. end - 1: up to three stages
        kind = 0
        while kind < 11 and u[0] >= rules.odds[kind]:
            kind += 1
        if step < 0:
            kind = 9
        at, other = int(u[1] * count), int(u[2] * types)
        low, high, own = bounds[at], bounds[at + 1], kinds[at]
        first, end, parts, cut, cut_2 = at, at + 1, 1, 0, 0
        one, two, three = other, other, other
        by = 1 + int(-rules.shift * np.log(1.0 - u[3]))
        if u[4] < 0.5:
            by = -by
        has_left, has_right = at > 0, at + 1 < count
        if kind == 1 and has_left:
            first, parts, one, two = at - 1, 2, kinds[at - 1], own
            cut = min(max(low + by, bounds[at - 1] + 1), high - 1)
            if u[5] < 0.15:
                one = other
            elif u[5] > 0.85:
                two = other
        elif kind in (2, 11) and has_left:
            first = at - 1
            one = kinds[at - 1] if u[4] < 0.4 else own if u[4] < 0.8 else other
        elif kind == 3 and high - low > 1 and count < rules.most:
            parts, cut = 2, low + 1 + int(u[3] * (high - low - 1))
            if u[4] < 0.5:
                one, two = other, own
            else:
                one, two = own, other
        elif kind == 4 and high - low > 2 and count + 1 < rules.most:
            parts, one, two, three = 3, own, other, own
            cut = low + 1 + int(u[3] * (high - low - 2))
            cut_2 = cut + 1 + int(u[4] * (high - cut - 1))
        elif kind == 5 and has_left and has_right:
            first, end, parts, one, two, three = at - 1, at + 2, 3, kinds[at - 1], own, kinds[at + 1]
            by = min(max(by, bounds[at - 1] + 1 - low), bounds[at + 2] - 1 - high)
            cut, cut_2 = low + by, high + by
        elif kind == 6 and has_left and has_right:
            first, end, parts, one, two = at - 1, at + 2, 2, kinds[at - 1], kinds[at + 1]
            cut = low + int(u[3] * (high - low + 1))
        elif kind == 7 and has_left:
            first, parts, one, two, cut = at - 1, 2, own, kinds[at - 1], low
        elif kind in (9, 10):
            one = own
        to_count = 0
        if kind == 8 and len(donors.stages) > 0:
            donor = int(u[3] * len(donors.stages))
            begin, stop = int(u[4] * last), int(u[5] * last)
            begin, stop = min(begin, stop), max(begin, stop) + 1
            for stage in range(count):
                if bounds[stage] < begin:
                    to_bounds[to_count], to_kinds[to_count] = bounds[stage], kinds[stage]
                    to_count += 1
            for stage in range(donors.stages[donor]):
                if donors.bounds[donor, stage + 1] > begin and donors.bounds[donor, stage] < stop:
                    to_bounds[to_count] = max(donors.bounds[donor, stage], begin)
                    to_kinds[to_count] = donors.types[donor, stage]
                    to_count += 1
            for stage in range(count):
                if bounds[stage + 1] > stop:
                    to_bounds[to_count], to_kinds[to_count] = max(bounds[stage], stop), kinds[stage]
                    to_count += 1
            if to_count > rules.most:
                continue
        else:
            for stage in range(first + 1):
                to_bounds[stage], to_kinds[stage] = bounds[stage], kinds[stage]
            to_kinds[first] = one
            if parts > 1:
                to_bounds[first + 1], to_kinds[first + 1] = cut, two
            if parts > 2:
                to_bounds[first + 2], to_kinds[first + 2] = cut_2, three
            to_count = count + parts - end + first
            for stage in range(end, count):
                to_bounds[stage + to_count - count], to_kinds[stage + to_count - count] = bounds[stage], kinds[stage]
        to_bounds[to_count] = last
        if kind == 10:
            with_ = int(u[3] * count)
            to_kinds[at], to_kinds[with_] = kinds[with_], own
        elif kind == 11 and to_count < count:
            place = int(u[9] * to_count)
            low, high, own = to_bounds[place], to_bounds[place + 1], to_kinds[place]
            if high - low > 1:
                for stage in range(to_count, place, -1):
                    to_bounds[stage + 1], to_kinds[stage] = to_bounds[stage], to_kinds[stage - 1]
                to_bounds[place + 1] = low + 1 + int(u[3] * (high - low - 1))
                to_count += 1
                if u[10] < 0.3:
                    to_kinds[place] = other
                elif u[10] > 0.7:
                    to_kinds[place + 1] = other
        to_batch_s = batch_s
        if not at_floor and step >= 0 and (u[6] < rules.hurried or kind == 9):
            factor = -rules.hurry * np.log(1.0 - u[7])
            to_batch_s = min(batch_s * np.exp(factor if u[6] < 0.75 * rules.hurried else -factor), rules.slowest_s)
        set_talk(tables, to_bounds, to_kinds, to_count, talk_s)
        # what the plan costs, and by how much it exceeds what it must keep to
        passed_s, attained_s, to_excess, to_stuck = 0.0, 0.0, 0.0, 0.0
        used[:] = 0.0
        for stage in range(to_count):
            low, high, type_ = to_bounds[stage], to_bounds[stage + 1], to_kinds[stage]
            talk = talk_s[0, stage]
            has[0, stage] = talk
            if is_kept and to_batch_s == batch_s:
                as_was = stage
                if as_was >= count or bounds[as_was] != low or bounds[as_was + 1] != high:
                    as_was = max(stage + count - to_count, 0)
                if (
                    as_was < count
                    and bounds[as_was] == low
                    and bounds[as_was + 1] == high
                    and kinds[as_was] == type_
                    and had[0, as_was] == talk
                ):
                    has[:, stage] = had[:, as_was]
                    used[type_] += has[1, stage]
                    attained_s = max(attained_s, has[2, stage])
                    passed_s += has[3, stage]
                    to_excess += has[4, stage]
                    to_stuck += has[5, stage]
                    continue
            compute_s = tables.compute_s[high, type_] - tables.compute_s[low, type_]
            data_s = tables.data_s[high, type_] - tables.data_s[low, type_] + talk
            shared_s = tables.shared_s[high, type_] - tables.shared_s[low, type_]
            fixed_s = tables.fixed_compute_s[high, type_] - tables.fixed_compute_s[low, type_]
            fixed_data_s = tables.fixed_data_s[high, type_] - tables.fixed_data_s[low, type_]
            fixed_data_s += tables.fixed_talk[type_] * talk
            sync_s = tables.sync_s[high, type_] - tables.sync_s[low, type_]
            once_s, units, stuck = steady_time(compute_s, data_s, shared_s), 1.0, False
            limit_s, time_s = to_batch_s * (1 + TIME_TOLERANCE), once_s
            if rules.objective != ONE_UNIT and once_s > limit_s:
                sums = (fixed_s, compute_s - fixed_s, fixed_data_s, data_s - fixed_data_s, sync_s, shared_s)
                units, time_s = fewest_units(sums, tables.units_per_machine[type_], tables.inner[type_], limit_s)
                stuck = units == 0
            if tables.forbidden[high, type_] > tables.forbidden[low, type_]:
                stuck = True
            held, hopeless = 0.0, 0.0
            if len(tables.memory_bytes) > 0:
                held = tables.memory_bytes[low, high] / tables.capacity_bytes[type_] - 1
                held = held if held > MEMORY_TOLERANCE else 0.0
            if stuck:
                hopeless = _STUCK * (1.0 + (high - low) / last)
                units, time_s = 1.0, once_s
            has[1, stage], has[2, stage], has[3, stage] = units, time_s, compute_s + data_s
            has[4, stage], has[5, stage] = held, hopeless
            to_excess, to_stuck = to_excess + held, to_stuck + hopeless
            attained_s = max(attained_s, time_s)
            used[type_] += units
            passed_s += compute_s + data_s
        priced += to_count
        paid, beyond = pay(tables, (rules.fewest, rules.most, rules.budget), used, to_count)
        to_excess += beyond
        if attained_s > rules.slowest_s * (1 + 1e-9):
            to_excess += attained_s / rules.slowest_s - 1
        if rules.objective == COST:
            to_value = paid * attained_s
        elif rules.objective == PRICE:
            to_value = paid
        else:
            to_value = passed_s if rules.objective == LATENCY else attained_s
        to_value = max(to_value, 1e-300)
        heat = cooling.hottest * (cooling.coldest / cooling.hottest) ** share
        ceiling = (
            value + price * excess * max(value, _LITTLE * rules.good) + price * stuck_excess * max(value, rules.good)
        )
        ceiling *= np.exp(-heat * np.log(1.0 - u[8]))
        charged = price * to_excess * max(to_value, _LITTLE * rules.good)
        charged += price * to_stuck * max(to_value, rules.good)
        if step < 0 or to_value + charged < ceiling:
            count, value, excess, stuck_excess = to_count, to_value, to_excess, to_stuck
            # a plan without time leaves that of a batch open: none is short enough for what it may become
            batch_s = to_batch_s if at_floor else attained_s if attained_s > 0 else rules.open_s
            had, has = has, had
            is_kept = at_floor or (stuck_excess == 0 and attained_s > 0)  # stages take as many units in a shorter time
            for stage in range(count + 1):
                bounds[stage], kinds[stage] = to_bounds[stage], to_kinds[stage]
            if excess + stuck_excess == 0 and value < walk.numbers[1, 1] * (1 - 1e-9):
                walk.stages[1] = count
                walk.numbers[1, 0], walk.numbers[1, 1], walk.numbers[1, 2] = batch_s, value, 0.0
                for stage in range(count + 1):
                    walk.bounds[1, stage], walk.types[1, stage] = bounds[stage], kinds[stage]
    walk.stages[0], walk.random[0] = count, x
    walk.numbers[0, 0], walk.numbers[0, 1], walk.numbers[0, 2] = batch_s, value, excess + stuck_excess
    return priced
