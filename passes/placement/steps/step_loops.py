"""The loop of the annealing over steps, which numba compiles: one plan changed over and over, its step simulated.

A change draws one or two of these::

    type      a stage goes to another type
    shift     a stage begins elsewhere
    merge     two neighbouring stages become one
    split     a stage is cut in two, and one of them may go to another type
    units     a stage gets other replicas
    count     the step gets more micro-batches or fewer

What a micro-batch takes is what ``StageWorks`` of ``schedule/step_problem.py`` says, the step what
``schedule/step_length.py`` simulates; a bound on it rules out most plans before that. Tests hold the loop against both.

Left out: rows of tables on servers, rules of synchronisation but the least of all, and what micro-batches hold; the
plans of the loop are priced again with these (``anneal_steps.py``).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_compile.cost.memory import MEMORY_TOLERANCE
from heterps_compile.cost.problem import Floats, Ints
from heterps_compile.cost.stage_law import Alone, divided, micro_batch, moving_time, ring_part
from heterps_compile.passes.placement.local.annealing_loops import COST, PRICE, Cooling, Tables, pay, set_talk

_NUMBERS = 12  # that a change draws

ODDS = (0.15, 0.35, 0.47, 0.62, 0.92)
"""Of the changes in the order of the module, cumulated; the rest is ``count``."""


class StepTables(NamedTuple):
    """What steps take between P positions, for C numbers of micro-batches and up to K replicas.

    Attributes:
        of: The tables of the steady state; sync_s is in no data here.
        counts: [C], micro-batches, ascending.
        forward_s, backward_s, accumulate_s: [C, P, T], sums over the layers before a position, of a micro-batch.
        whole_s: [P, T], likewise of the whole batch.
        behind_s: [4, P, T], sums of own work behind the last backward: whatever the replicas are, and the three parts
            of a rule's.
        hops_s: [T, K + 1], what messages of an all-reduce take, of so many replicas.
        talks: [P, P], messages of a stage.
        way_bytes: [P], that cross a cut in one direction.
        way_per_byte, way_latency_s: [T, T], between two stages.
        own_latency_s: [T], of a message of a unit.
        is_apart: Whether moving data occupies the network card, and not the stage.
        training: Whether there are backwards.
        usual: The part of a micro-batch that is its forward, where it takes no time.
    """

    of: Tables
    counts: Ints
    forward_s: Floats
    backward_s: Floats
    accumulate_s: Floats
    whole_s: Floats
    behind_s: Floats
    hops_s: Floats
    talks: Floats
    way_bytes: Floats
    way_per_byte: Floats
    way_latency_s: Floats
    own_latency_s: Floats
    is_apart: bool
    training: bool
    usual: float


class StepRules(NamedTuple):
    """What plans must keep to.

    Attributes:
        objective: ``COST``, ``PRICE``, or ``SLOWEST`` for the step.
        fewest, most: Stages.
        slowest_s: The longest step.
        budget: Price per hour.
        usual_count, rounds: A plan has at most the usual micro-batches, or so many for each replica of a stage.
        odds: Of changes, see :data:`ODDS`.
        shift: Mean of how far a bound moves, in positions.
    """

    objective: int
    fewest: int
    most: int
    slowest_s: float
    budget: float
    usual_count: int
    rounds: int
    odds: Floats
    shift: float


class StepWalk(NamedTuple):
    """A plan, and the best one that came of it.

    Attributes:
        bounds, types, units: [2, W], of the plan and of the best.
        sizes: [2, 2], stages, and which number of micro-batches.
        numbers: [2, 3], value, excess over limits, step; the value is inf without a plan.
        random: [1], state of the generator.
    """

    bounds: Ints
    types: Ints
    units: Ints
    sizes: Ints
    numbers: Floats
    random: NDArray[np.uint64]


def anneal_steps(tables: StepTables, rules: StepRules, walk: StepWalk, cooling: Cooling) -> int:  # noqa: PLR0915 -- one loop, as in annealing_loops.py
    """Change a plan many times, in place; return how many actions were simulated, and stages priced."""
    of, counts, training = tables.of, tables.counts, tables.training
    types, room = of.compute_s.shape[1], walk.bounds.shape[1]
    most_units = tables.hops_s.shape[1] - 1
    bounds, kinds, units = walk.bounds[0], walk.types[0], walk.units[0]
    size, place = walk.sizes[0]
    value, excess, _ = walk.numbers[0]
    to_bounds, to_kinds, to_units = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    talk_s = np.empty((3, room))
    forward_s, backward_s, moving_s, behind_s, on_card_s = np.empty((5, room))
    way_s, delay_s, rest_s = np.empty((3, room))
    turn, warm_up = np.empty(room, np.int64), np.empty(room, np.int64)
    is_wired = np.empty((2, room), np.bool_)
    # when replicas are free, and their wires: forward sent and received, backward sent and received
    free_s, arrives_s = np.empty((5, room, most_units)), np.empty((room, counts[-1]))
    used, u, worked = np.empty(types), np.empty(_NUMBERS), 0
    x = walk.random[0]
    for step in range(-1, cooling.steps):
        progress = max(step, 0) / max(cooling.steps, 1)
        heat = cooling.hottest * (cooling.coldest / cooling.hottest) ** progress
        price = cooling.cheapest * (cooling.dearest / cooling.cheapest) ** progress
        for number in range(_NUMBERS):
            x ^= x >> np.uint64(12)
            x ^= x << np.uint64(25)
            x ^= x >> np.uint64(27)
            u[number] = ((x * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0
        for stage in range(size + 1):
            to_bounds[stage], to_kinds[stage], to_units[stage] = bounds[stage], kinds[stage], units[stage]
        to_size, to_place = size, place
        for change in range(0 if step < 0 else 1 + (u[0] < 0.4)):
            base = 2 + 5 * change
            which, at = u[base], int(u[base + 1] * to_size)
            by, other, sign = u[base + 2], int(u[base + 3] * types), u[base + 4] < 0.5
            if which < rules.odds[0]:
                to_kinds[at] = other
            elif which < rules.odds[1]:
                if at > 0:
                    far = int(1 - rules.shift * np.log(1.0 - by))
                    to = to_bounds[at] + (far if sign else -far)
                    to_bounds[at] = min(max(to, to_bounds[at - 1] + 1), to_bounds[at + 1] - 1)
            elif which < rules.odds[2]:
                if at > 0:
                    if sign:
                        to_kinds[at - 1], to_units[at - 1] = to_kinds[at], to_units[at]
                    for stage in range(at, to_size):
                        to_bounds[stage], to_kinds[stage] = to_bounds[stage + 1], to_kinds[stage + 1]
                        to_units[stage] = to_units[stage + 1]
                    to_size -= 1
            elif which < rules.odds[3]:
                low, high = to_bounds[at], to_bounds[at + 1]
                if high - low > 1 and to_size < rules.most:
                    for stage in range(to_size, at, -1):
                        to_bounds[stage + 1], to_kinds[stage] = to_bounds[stage], to_kinds[stage - 1]
                        to_units[stage] = to_units[stage - 1]
                    to_bounds[at + 1] = low + 1 + int(by * (high - low - 1))
                    to_size += 1
                    if u[base + 4] < 0.25:
                        to_kinds[at] = other
                    elif sign:
                        to_kinds[at + 1] = other
            elif which < rules.odds[4]:
                count = counts[to_place]
                if u[base + 4] < 0.7:
                    turns = 1 + int(by * min(count, 12))
                    to_units[at] = (count + turns - 1) // turns
                else:
                    to_units[at] += 1 if by < 0.5 else -1
            else:
                before = counts[to_place]
                to_place = min(max(to_place + (1 if sign else -1), 0), len(counts) - 1)
                for stage in range(to_size):
                    to_units[stage] = int(np.round(to_units[stage] * counts[to_place] / before))
        count, widest, crowded = counts[to_place], 0, 0.0
        is_possible = True
        for stage in range(to_size):
            low, high, type_ = to_bounds[stage], to_bounds[stage + 1], to_kinds[stage]
            if step >= 0:
                to_units[stage] = max(1, min(to_units[stage], count, int(of.limits[type_])))
            widest = max(widest, to_units[stage])
            if of.forbidden[high, type_] > of.forbidden[low, type_]:
                is_possible = False
            if len(of.memory_bytes) > 0:
                held = of.memory_bytes[low, high] / of.capacity_bytes[type_] - 1
                crowded += held if held > MEMORY_TOLERANCE else 0.0
        if count > max(rules.usual_count, rules.rounds * widest):
            is_possible = False
        if count < widest and counts[-1] >= widest:
            is_possible = False
        if not is_possible:
            if step < 0:
                value, excess = np.inf, 0.0
                break
            continue
        set_talk(of, to_bounds, to_kinds, to_size, talk_s)
        # what a micro-batch takes
        used[:] = 0.0
        for stage in range(to_size):
            low, high, type_, k = to_bounds[stage], to_bounds[stage + 1], to_kinds[stage], to_units[stage]
            talk = talk_s[0, stage]
            used[type_] += k
            compute_s = max(of.compute_s[high, type_] - of.compute_s[low, type_], 0.0)
            fixed_s = max(of.fixed_compute_s[high, type_] - of.fixed_compute_s[low, type_], 0.0)
            data_s = max(of.data_s[high, type_] - of.data_s[low, type_], 0.0) + talk
            fixed_data_s = of.fixed_data_s[high, type_] - of.fixed_data_s[low, type_] + of.fixed_talk[type_] * talk
            sync_s = max(of.sync_s[high, type_] - of.sync_s[low, type_], 0.0)
            sync_s *= ring_part(k, of.units_per_machine[type_], of.inner[type_])
            shared_s = of.shared_s[high, type_] - of.shared_s[low, type_]
            data_s = moving_time(divided(fixed_data_s, data_s - fixed_data_s, k), sync_s, shared_s)
            behind_s[stage] = sync_s + tables.behind_s[0, high, type_] - tables.behind_s[0, low, type_]
            if sync_s > 0:
                behind_s[stage] += tables.hops_s[type_, k]
            if k > 1:
                once_s = tables.behind_s[1, high, type_] - tables.behind_s[1, low, type_]
                once_s += (tables.behind_s[2, high, type_] - tables.behind_s[2, low, type_]) * (1 - 1 / k)
                behind_s[stage] += once_s + (tables.behind_s[3, high, type_] - tables.behind_s[3, low, type_]) * (k - 1)
            on_card_s[stage] = 0.0
            if tables.is_apart:
                on_card_s[stage], data_s = data_s, 0.0
            ahead_s = max(tables.forward_s[to_place, high, type_] - tables.forward_s[to_place, low, type_], 0.0)
            back_s = max(tables.backward_s[to_place, high, type_] - tables.backward_s[to_place, low, type_], 0.0)
            adds_s = max(tables.accumulate_s[to_place, high, type_] - tables.accumulate_s[to_place, low, type_], 0.0)
            whole_s = max(tables.whole_s[high, type_] - tables.whole_s[low, type_], 0.0)
            latency_s = tables.talks[low, high] * tables.own_latency_s[type_]
            compute_s = divided(fixed_s, compute_s - fixed_s, k)
            alone = Alone(ahead_s, back_s, adds_s, whole_s, latency_s, 0.0, tables.usual)
            passes = micro_batch(alone, compute_s, data_s, k, count)
            forward_s[stage], backward_s[stage], moving_s[stage] = passes.forward_s, passes.backward_s, passes.moving_s
        for stage in range(to_size):
            way_s[stage], delay_s[stage], after = 0.0, 0.0, to_size - 1
            is_wired[0, stage] = is_wired[1, stage] = False
            size_bytes = tables.way_bytes[to_bounds[stage + 1]]
            if stage < after and size_bytes > 0:
                pair = (to_kinds[stage], to_kinds[stage + 1])
                way_s[stage] = tables.way_latency_s[pair] + size_bytes * tables.way_per_byte[pair] / count
                overlap_s = moving_s[stage] / (1 if stage == 0 else 2)
                overlap_s += moving_s[stage + 1] / (1 if stage + 1 == after else 2)
                delay_s[stage] = max(0.0, way_s[stage] - overlap_s)
                is_wired[0, stage] = way_s[stage] > min(forward_s[stage], forward_s[stage + 1])
                is_wired[1, stage] = way_s[stage] > min(backward_s[stage], backward_s[stage + 1])
        # a bound on the step
        least_s, begin_s, end_s, ways = 0.0, 0.0, 0.0, 2 if training else 1
        rest_s[to_size - 1] = 0.0
        for stage in range(to_size - 2, -1, -1):
            rest_s[stage] = rest_s[stage + 1] + ways * delay_s[stage] + forward_s[stage + 1]
            if training:
                rest_s[stage] += backward_s[stage + 1]
        for stage in range(to_size):
            turns = -(-count // to_units[stage])
            ahead_s, back_s = forward_s[stage], backward_s[stage]
            if training:
                busy_s = max(ahead_s + turns * back_s, turns * ahead_s + back_s) + rest_s[stage]
                busy_s = max(busy_s, turns * (ahead_s + back_s))
                least_s = max(
                    least_s, begin_s + busy_s + max(behind_s[stage], end_s), on_card_s[stage] + behind_s[stage]
                )
            else:
                least_s = max(least_s, begin_s + turns * ahead_s + rest_s[stage], on_card_s[stage])
            begin_s += ahead_s + delay_s[stage]
            end_s += back_s + delay_s[stage]
        paid, beyond = pay(of, (rules.fewest, rules.most, rules.budget), used, to_size)
        crowded += beyond
        ceiling = value * (1 + price * excess) * (1 - heat * np.log(1.0 - u[1])) if step >= 0 else np.inf
        worked += to_size
        to_value, to_excess, step_s, is_taken = 0.0, 0.0, least_s, True
        for look in range(2):
            if look == 1:
                shortest_s = np.inf
                for schedule in range(2 if training else 1):
                    longest, behind = 0, 0
                    for stage in range(to_size - 1, -1, -1):
                        width = to_units[stage]
                        behind += width
                        warm_up[stage] = count if schedule == 0 else min(count, behind - 1)
                        longest = max(longest, warm_up[stage])
                        turn[stage] = 0
                        free_s[0, stage, :width] = 0.0
                        if is_wired[0, stage]:
                            free_s[1, stage, :width] = 0.0
                            free_s[2, stage, : to_units[stage + 1]] = 0.0
                        if is_wired[1, stage]:
                            free_s[3, stage, : to_units[stage + 1]] = 0.0
                            free_s[4, stage, :width] = 0.0
                    for i in range(count + longest if training else count):
                        if i < count:
                            ready_s = 0.0
                            for stage in range(to_size):
                                replica = turn[stage]
                                end_s = max(ready_s, free_s[0, stage, replica]) + forward_s[stage]
                                free_s[0, stage, replica] = end_s
                                ready_s = end_s + delay_s[stage]
                                if is_wired[0, stage]:
                                    ready_s = max(end_s, free_s[1, stage, replica]) + way_s[stage]
                                    free_s[1, stage, replica] = ready_s
                                    to = turn[stage + 1]
                                    ready_s = max(ready_s, free_s[2, stage, to] + way_s[stage])
                                    free_s[2, stage, to] = ready_s
                                    ready_s -= way_s[stage] - delay_s[stage]
                                turn[stage] = replica + 1 if replica + 1 < to_units[stage] else 0
                        if not training:
                            continue
                        for stage in range(to_size - 1, -1, -1):
                            j = i - warm_up[stage]
                            if j < 0 or j >= count:
                                continue
                            ready_s = arrives_s[stage, j] if stage < to_size - 1 else 0.0
                            replica = j % to_units[stage]
                            end_s = max(ready_s, free_s[0, stage, replica]) + backward_s[stage]
                            free_s[0, stage, replica] = end_s
                            if stage > 0:
                                ready_s = end_s + delay_s[stage - 1]
                                if is_wired[1, stage - 1]:
                                    ready_s = max(end_s, free_s[3, stage - 1, replica]) + way_s[stage - 1]
                                    free_s[3, stage - 1, replica] = ready_s
                                    to = j % to_units[stage - 1]
                                    ready_s = max(ready_s, free_s[4, stage - 1, to] + way_s[stage - 1])
                                    free_s[4, stage - 1, to] = ready_s
                                    ready_s -= way_s[stage - 1] - delay_s[stage - 1]
                                arrives_s[stage - 1, j] = ready_s
                    worked += 2 * to_size * count
                    step_s = 0.0
                    for stage in range(to_size):
                        end_s = on_card_s[stage]
                        for replica in range(to_units[stage]):
                            end_s = max(end_s, free_s[0, stage, replica])
                        step_s = max(step_s, end_s + behind_s[stage] if training else end_s)
                    shortest_s = min(shortest_s, step_s)
                    if shortest_s <= least_s * (1 + 1e-12):
                        break
                step_s = shortest_s
            to_value = max(step_s if rules.objective not in (COST, PRICE) else paid, 1e-300)
            if rules.objective == COST:
                to_value *= step_s
            elif rules.objective == PRICE:  # of one price, the shortest
                to_value *= 1 + 1e-6 * step_s / rules.slowest_s
            to_excess = crowded
            if step_s > rules.slowest_s:
                to_excess += step_s / rules.slowest_s - 1
            is_taken = to_value * (1 + price * to_excess) < ceiling
            if not is_taken:
                break
        if not is_taken and step >= 0:
            continue
        size, place, value, excess = to_size, to_place, to_value, to_excess
        for stage in range(size + 1):
            bounds[stage], kinds[stage], units[stage] = to_bounds[stage], to_kinds[stage], to_units[stage]
        walk.numbers[0, 2] = step_s
        if excess == 0 and value < walk.numbers[1, 0] * (1 - 1e-12):
            walk.sizes[1, 0], walk.sizes[1, 1] = size, place
            walk.numbers[1, 0], walk.numbers[1, 1], walk.numbers[1, 2] = value, excess, step_s
            for stage in range(size + 1):
                walk.bounds[1, stage], walk.types[1, stage] = bounds[stage], kinds[stage]
                walk.units[1, stage] = units[stage]
    walk.sizes[0, 0], walk.sizes[0, 1], walk.random[0] = size, place, x
    walk.numbers[0, 0], walk.numbers[0, 1] = value, excess
    return worked
