"""The loops of the march over positions and furthest segments, compiled when they are first called.

A step of the march takes hundreds of thousands of segments one by one, each a few comparisons that depend on the one
before; array operations take several times as long. numba compiles the functions here to machine code, the first
time for some seconds, and keeps that beside the bytecode, or in the user's cache where that folder is read-only.

Legend: T types, E entries, n positions; ``longest_segments.py`` says what they are.

Left out: what reaches are (``longest_segments.py``), what the march does with them (``march.py``).
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple, ParamSpec, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from heterps_compile.cost.problem import Floats, Ints

_P = ParamSpec("_P")
_R = TypeVar("_R")

Ends = NDArray[np.int32]
"""Positions [E, n], of which there are many."""


class Sums(NamedTuple):
    """What decides where a stage must end, [T, n + 1] each.

    Attributes:
        compute_s: Computation before a position.
        until_s, since_s: Data movement before a position, with what a segment that ends there sends, and less what one
            that begins there receives.
        sync_s: What more than one replica synchronises.
        shared_s: What no replica divides, nor has to itself.
        usable: [T, n], the last end that the layers allow.
    """

    compute_s: Floats
    until_s: Floats
    since_s: Floats
    sync_s: Floats
    shared_s: Floats
    usable: Ints


class Shares(NamedTuple):
    """What entries take of the sums, [E] each.

    Attributes:
        types: Device types.
        compute, data: Shares of computation and data movement that one of the replicas takes.
        synchronise: Whether they synchronise, and a single replica, which does not, may reach further.
    """

    types: Ints
    compute: Floats
    data: Floats
    synchronise: Ints


class Task(NamedTuple):
    """Every so many entries from the first on, and the last ends at a longer limit.

    Attributes:
        ends: Of some entries, at that limit.
        rows: [E], which row is that of an entry; -1 for none.
        first, step: Which entries.
    """

    ends: Ends
    rows: Ints
    first: int
    step: int


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return the machine code of one of the functions below."""
    return cast("Callable[_P, _R]", _compiled(function))


@cache
def _compiled(function: Callable[..., object]) -> Callable[..., object]:
    import numba  # noqa: PLC0415  # takes a third of a second

    try:
        made = numba.njit(nogil=True, error_model="numpy", cache=True)(function)
    except RuntimeError:  # no folder to keep it in
        made = numba.njit(nogil=True, error_model="numpy")(function)
    return cast("Callable[..., object]", made)


def furthest(sums: Sums, shares: Shares, limit_s: float, ends: Ends, task: Task) -> None:
    """Fill in, for entries and positions, the last ends of segments that take no longer than the limit.

    The position itself where there is none.

    Args:
        sums: Of the chain.
        shares: Of the entries.
        limit_s: Seconds.
        ends: [E, n], to be filled in.
        task: Which entries, and what to begin from.
    """
    compute_s, until_s, since_s, sync_s, shared_s, usable = sums
    length, count = usable.shape[1], len(shares.types)
    least_s, at = np.empty((2, length + 1)), np.zeros(2, np.int64)  # of until_s from a position on; with all, or alone
    for e in range(task.first, count, task.step):
        t, share, extra, row = shares.types[e], shares.data[e], float(shares.synchronise[e]), task.rows[e]
        most_s, least, alone = limit_s / shares.compute[e], np.inf, np.inf
        if row < 0:
            for c in range(length, -1, -1):
                least = min(least, share * until_s[t, c] + extra * sync_s[t, c])
                alone = min(alone, until_s[t, c])
                least_s[0, c], least_s[1, c] = least, alone
        by_compute = at[0] = at[1] = 0
        for a in range(length):
            most_compute_s, most_shared_s = compute_s[t, a] + most_s, shared_s[t, a] + limit_s
            most_until_s = share * since_s[t, a] + extra * sync_s[t, a] + limit_s
            if row >= 0:
                end = task.ends[row, a]
            else:
                while by_compute < length and compute_s[t, by_compute + 1] <= most_compute_s:
                    by_compute += 1
                limit, end = min(by_compute, usable[t, a]), a
                # what an end and all behind it send rules out the rest, nearly: from there a few steps back
                for way in range(2 if extra > 0 else 1):
                    c, most_s_there = min(at[way], limit), most_until_s if way == 0 else since_s[t, a] + limit_s
                    while c < limit and least_s[way, c + 1] <= most_s_there:
                        c += 1
                    while c > a and least_s[way, c] > most_s_there:
                        c -= 1
                    at[way], end = c, max(end, c)
            while end > a:
                if shared_s[t, end] <= most_shared_s:
                    until = share * until_s[t, end] + extra * sync_s[t, end]
                    if compute_s[t, end] <= most_compute_s and until <= most_until_s:
                        break
                    is_alone = extra > 0 and compute_s[t, end] <= compute_s[t, a] + limit_s
                    if is_alone and until_s[t, end] <= since_s[t, a] + limit_s:
                        break
                end -= 1
            ends[e, a] = max(a, end)


def to_go(ends: Ends, prices: Floats) -> Floats:
    """Return [n + 1], what the units from a position to the end of the chain cost at least."""
    count, length = ends.shape
    found, best = np.full(length + 1, np.inf), np.full(length + 1, np.inf)
    found[length] = best[length] = 0.0
    for a in range(length - 1, -1, -1):
        least = np.inf
        for e in range(count):
            if ends[e, a] > a:
                least = min(least, prices[e] + best[ends[e, a]])
        found[a], c = least, a
        while c <= length and best[c] > least:  # best[c]: the least over a .. c, which never rises with c
            best[c] = least
            c += 1
    return found


def come(ends: Ends, prices: Floats) -> Floats:
    """Return [n + 1], what the units up to a position cost at least; from later positions one comes no less far."""
    count, length = ends.shape
    found, best = np.full(length + 1, np.inf), np.full(length + 1, np.inf)
    found[0] = best[0] = 0.0
    begins = np.zeros(count, np.int64)  # the first position from which an entry comes as far
    for c in range(1, length + 1):
        least = np.inf
        for e in range(count):
            a = begins[e]
            while a < c and ends[e, a] < c:
                a += 1
            begins[e] = a
            if a < c:
                least = min(least, prices[e] + best[a])
        found[c], a = least, c
        while a >= 0 and best[a] > least:  # best[a]: the least over a .. c, which never falls with a
            best[a] = least
            a -= 1
    return found


def through(ends: Ends, come: Floats, rest: Floats) -> Floats:
    """Return [E], what the cheapest path with an entry costs at least, less its own price.

    Args:
        ends: Of the entries.
        come: [n + 1], what the units up to a position cost at least.
        rest: [n + 1], what those from a position on, or from one before it, cost at least.
    """
    count, length = ends.shape
    found = np.full(count, np.inf)
    for e in range(count):
        for a in range(length):
            if ends[e, a] > a:
                found[e] = min(found[e], come[a] + rest[ends[e, a]])
    return found


def cheapest(ends: Ends, prices: Floats, to_go: Floats, equal: float) -> tuple[Ints, Ints]:
    """Return the entries of the cheapest path, and where its steps end; there must be one.

    Of ends that are as good the last is taken: it fits where any does.
    """
    count, length = ends.shape
    entries, stops, window = np.empty(length, np.int64), np.empty(length, np.int64), np.empty(length + 1)
    steps = position = 0
    while position < length:
        best, known, window[position] = np.inf, position, np.inf  # window[c]: the least of to_go over position + 1 .. c
        for e in range(count):
            end = ends[e, position]
            while known < end:
                known += 1
                window[known] = min(window[known - 1], to_go[known])
            if end > position and prices[e] + window[end] < best:
                best, entries[steps] = prices[e] + window[end], e
        if best == np.inf:
            raise ValueError("there is no path")
        last = ends[entries[steps], position]
        for c in range(position + 1, last + 1):
            if to_go[c] <= window[last] * (1 + equal):
                stops[steps] = c
        position = stops[steps]
        steps += 1
    return entries[:steps], stops[:steps]
