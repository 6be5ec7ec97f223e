"""The cheapest plan at one time of a batch, where units have prices: loops that numba compiles.

At a fixed time a stage needs so many units, whatever other stages do, but for the types of those it talks to. The path
knows the types of the stages right before and behind a stage, p and q; the ends of values that skip these have the
types of another plan, the *context*::

    grid      0            i                      j           n
              |    ...  p  |      segment on t    |  q  ...   |
    state                (i, p, t)   ----->    (j, t, q)

    values    p -> t, t -> q         over the links between these types
              skipping those         over the links to the types that the context has there

O(grid^2 types^3) at most, and O(grid^2 types) where what a stage exchanges costs it no unit. With a least number of
stages a state also knows how many there are before it.

Left out: which times, prices and grids are worth it (``priced_paths.py``), and what plans cost (``evaluate``): a rule
by which replicas agree takes its least here, and machines that are rented whole are paid by the unit.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_compile.cost.memory import MEMORY_TOLERANCE
from heterps_compile.cost.problem import Floats, Ints
from heterps_compile.cost.rule_times import TIME_TOLERANCE

from .annealing_loops import Tables, fewest_units


class Talk(NamedTuple):
    """What segments between G grid positions receive and send.

    Attributes:
        near_in, near_out: [G, G], bytes from the stage before and to the one behind; by first position and end.
        far_s: [G, G, T], seconds of the bytes that come from or go to other stages.
        late_in, late_out: [G, G, T], the longest latency of those.
    """

    near_in: Floats
    near_out: Floats
    far_s: Floats
    late_in: Floats
    late_out: Floats


class Terms(NamedTuple):
    """What a path is to be cheapest on.

    Attributes:
        batch_s: The time of a batch.
        prices: [T], of a unit.
        fewest: Stages.
    """

    batch_s: float
    prices: Floats
    fewest: int


class Paths(NamedTuple):
    """The cheapest paths to every state: G grid positions, types before and behind it, and K numbers of stages.

    Attributes:
        cost, units: [G, T, T, K], of the path, and of its last segment.
        came: [G, T, T, K, 3], the state before: its position, the type before that, and its number of stages.
    """

    cost: Floats
    units: Floats
    came: NDArray[np.int32]


def segment_talk(tables: Tables, moved_bytes: Floats, talks: Floats, grid: Ints, context: Ints) -> Talk:
    """Sum up what segments receive and send.

    Args:
        tables: Of the problem.
        moved_bytes: [P, P], see ``SegmentTable``; used without links between pairs of types.
        talks: [P, P], likewise.
        grid: [G], positions, the first and the last included.
        context: [L], the types of layers; below 0 for the type with the cheapest link.
    """
    nodes, types = grid.shape[0] - 1, tables.compute_s.shape[1]
    per_byte, latency_s = tables.per_byte, tables.latency_s
    near_in, near_out = np.zeros((nodes + 1, nodes + 1)), np.zeros((nodes + 1, nodes + 1))
    far_s = np.zeros((nodes + 1, nodes + 1, types))
    late_in, late_out = np.zeros((nodes + 1, nodes + 1, types)), np.zeros((nodes + 1, nodes + 1, types))
    if per_byte.shape[0] == 1:
        for i in range(nodes):
            for j in range(i + 1, nodes + 1):
                cell = (grid[i], grid[j])
                for t in range(types):
                    far_s[i, j, t] = moved_bytes[cell] * per_byte[0, t] + talks[cell] * latency_s[0, t]
        return Talk(near_in, near_out, far_s, late_in, late_out)
    far_out = np.zeros((nodes + 1, nodes + 1, types))
    # the last column is that of the cheapest link, which -1 stands for
    links, delays = np.empty((types, types + 1)), np.empty((types, types + 1))
    for t in range(types):
        links[t, :types], links[t, types] = per_byte[t], per_byte[t].min()
        delays[t, :types], delays[t, types] = latency_s[t], latency_s[t].min()
    for i in range(1, nodes):
        layer = tables.layer[grid[i]]
        for entry in range(tables.starts[layer], tables.starts[layer + 1]):
            producer, size_bytes = tables.producer[entry], tables.size_bytes[entry]
            first = tables.reader[tables.low[entry]]
            # received by segments from i that reach behind the first reader, sent by those to i that hold the producer
            end, begin = i + 1, i - 1
            while tables.layer[grid[end]] <= first:
                end += 1
            while tables.layer[grid[begin]] > producer:
                begin -= 1
            if producer == layer - 1:
                near_in[i, end] += size_bytes
            else:
                there = context[producer]
                for t in range(types):
                    far_s[i, end, t] += size_bytes * links[t, there]
                    late_in[i, end, t] = max(late_in[i, end, t], delays[t, there])
            if first == layer:
                near_out[begin, i] += size_bytes
            else:
                for t in range(types):
                    slowest = 0.0
                    for read in range(tables.low[entry], tables.high[entry]):
                        there = context[tables.reader[read]]
                        slowest = max(slowest, links[t, there])
                        late_out[begin, i, t] = max(late_out[begin, i, t], delays[t, there])
                    far_out[begin, i, t] += size_bytes * slowest
        for j in range(i + 2, nodes + 1):
            near_in[i, j] += near_in[i, j - 1]
            for t in range(types):
                far_s[i, j, t] += far_s[i, j - 1, t]
                late_in[i, j, t] = max(late_in[i, j, t], late_in[i, j - 1, t])
        for begin in range(i - 2, -1, -1):
            near_out[begin, i] += near_out[begin + 1, i]
            for t in range(types):
                far_out[begin, i, t] += far_out[begin + 1, i, t]
                late_out[begin, i, t] = max(late_out[begin, i, t], late_out[begin + 1, i, t])
    far_s += far_out
    return Talk(near_in, near_out, far_s, late_in, late_out)


def cheapest_paths(tables: Tables, talk: Talk, grid: Ints, terms: Terms) -> Paths:  # noqa: PLR0915 -- as in annealing
    """Find the cheapest path to every state; inf of a state that none reaches."""
    nodes, types = grid.shape[0] - 1, tables.compute_s.shape[1]
    limits, prices, limit_s = tables.limits, terms.prices, terms.batch_s * (1 + TIME_TOLERANCE)
    linked = tables.per_byte.shape[0] > 1
    last = terms.fewest if terms.fewest > 1 else 0  # stands for so many stages, or more
    cost, units_of = np.full((nodes + 1, types, types, last + 1), np.inf), np.zeros((nodes + 1, types, types, last + 1))
    came = np.zeros((nodes + 1, types, types, last + 1, 3), np.int32)
    cheapest, by = np.empty(last + 1), np.empty(last + 1, np.int32)
    cost[0, 0, :, 0] = 0.0
    for i in range(nodes):
        low, before = grid[i], types if i > 0 else 1
        for t in range(types):
            is_reached = False
            for k in range(last + 1):
                cheapest[k], by[k] = np.inf, 0
                for p in range(before):
                    if cost[i, p, t, k] < cheapest[k]:
                        cheapest[k], by[k], is_reached = cost[i, p, t, k], p, True
            if not is_reached or limits[t] < 1:
                continue
            slowest, latest = 0.0, 0.0
            if linked:
                slowest, latest = tables.per_byte[t].max(), tables.latency_s[t].max()
            for j in range(i + 1, nodes + 1):
                high, behind = grid[j], types if j < nodes else 1
                compute_s = tables.compute_s[high, t] - tables.compute_s[low, t]
                fixed_s = tables.fixed_compute_s[high, t] - tables.fixed_compute_s[low, t]
                shared_s = tables.shared_s[high, t] - tables.shared_s[low, t]
                is_stuck = fixed_s >= limit_s or shared_s > limit_s
                if (
                    is_stuck
                    or compute_s - fixed_s > limits[t] * (limit_s - fixed_s)
                    or tables.forbidden[high, t] > tables.forbidden[low, t]
                ):
                    break  # no longer segment is any better
                if len(tables.memory_bytes) > 0:
                    held = tables.memory_bytes[low, high] / tables.capacity_bytes[t] - 1
                    if held > MEMORY_TOLERANCE:
                        continue
                least = 1.0
                if compute_s > limit_s:
                    least = max(np.ceil((compute_s - fixed_s) / (limit_s - fixed_s)), 2.0)
                own_s = tables.data_s[high, t] - tables.data_s[low, t] + talk.far_s[i, j, t]
                own_fixed_s = tables.fixed_data_s[high, t] - tables.fixed_data_s[low, t]
                sync_s = tables.sync_s[high, t] - tables.sync_s[low, t]
                near_in, near_out = talk.near_in[i, j], talk.near_out[i, j]
                most_s = own_s + (near_in + near_out) * slowest + 2 * latest
                if least == 1.0 and most_s <= limit_s:
                    for k in range(last + 1):
                        to, total = min(k + 1, last), cheapest[k] + prices[t]
                        for q in range(behind):
                            if total < cost[j, t, q, to]:
                                cost[j, t, q, to], units_of[j, t, q, to] = total, 1.0
                                came[j, t, q, to, 0], came[j, t, q, to, 1], came[j, t, q, to, 2] = i, by[k], k
                    continue
                for p in range(before):
                    in_s = talk.late_in[i, j, t]
                    if near_in > 0:
                        in_s = max(in_s, tables.latency_s[t, p]) + near_in * tables.per_byte[t, p]
                    for q in range(behind):
                        is_better = False
                        for k in range(last + 1):
                            is_better |= cost[i, p, t, k] + least * prices[t] < cost[j, t, q, min(k + 1, last)]
                        if not is_better:
                            continue
                        out_s = talk.late_out[i, j, t]
                        if near_out > 0:
                            out_s = max(out_s, tables.latency_s[t, q]) + near_out * tables.per_byte[t, q]
                        talk_s = talk.far_s[i, j, t] + in_s + out_s
                        data_s, units = own_s + in_s + out_s, least
                        if units > 1 or data_s > limit_s:
                            spent_s = own_fixed_s + tables.fixed_talk[t] * talk_s
                            parts = (fixed_s, compute_s - fixed_s, spent_s, data_s - spent_s, sync_s, shared_s)
                            units, _ = fewest_units(parts, tables.units_per_machine[t], tables.inner[t], limit_s)
                            if units == 0 or units > limits[t]:
                                continue
                        for k in range(last + 1):
                            to, total = min(k + 1, last), cost[i, p, t, k] + units * prices[t]
                            if total < cost[j, t, q, to]:
                                cost[j, t, q, to], units_of[j, t, q, to] = total, units
                                came[j, t, q, to, 0], came[j, t, q, to, 1], came[j, t, q, to, 2] = i, p, k
    return Paths(cost, units_of, came)
