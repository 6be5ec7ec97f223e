"""Short forms of names of layers, any two of which differ.

A name that is too long keeps its end, from the beginning of a part on. Names with the same end keep the part in which
they differ as well::

    model.encoder.layers.0.self_attn.q_proj    …0.self_attn.q_proj
    model.encoder.layers.0.self_attn.k_proj    …0.self_attn.k_proj
    /tower/blocks.0/mlp/dense/MatMul           …0/…dense/MatMul
    /tower/blocks.1/mlp/dense/MatMul           …1/…dense/MatMul

"…" stands for characters that are left out. Where no such form tells a name from another one, a number does: ``…x#2``.

Left out: which names a table has, and how wide it is.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, pairwise

from heterps_compile.escape import printable
from heterps_compile.fit_lines import cells

_PART = re.compile(r"[^./:]+[./:]*|[./:]+")
_LEFT_OUT = "…"
_LEAST = 8  # columns of the terminal that a name has at least

_Parts = tuple[str, ...]


def short_names(rooms: Mapping[str, int]) -> dict[str, str]:
    """Shorten names, so that each is printable and no two are the same.

    Args:
        rooms: Columns of the terminal that each name may take; fewer than 8 count as 8.

    Returns:
        The short form of every name; the name itself where it fits.
    """
    plain = {name: printable(name) for name in rooms}
    wide = {name: max(_LEAST, room) for name, room in rooms.items()}
    made: dict[str, str] = {}
    taken: set[str] = set()

    def take(name: str, short: str) -> bool:
        if short in taken or _size(short) > wide[name]:
            return False
        made[name] = short
        taken.add(short)
        return True

    long = [name for name, text in plain.items() if not take(name, text)]
    parts = {name: tuple(_PART.findall(text)) for name, text in plain.items()}
    ends = {name: _end(parts[name], wide[name]) for name in long}
    alike = _by_end(parts.values(), max(wide.values(), default=0))
    for end in dict.fromkeys(ends.values()):
        if end.removeprefix(_LEFT_OUT) not in alike:  # the ends of a part, and not whole parts
            alike[end] = sorted(parts[other] for other in long if ends[other] == end)
    for name, end in ends.items():
        others = alike.get(end) or alike[end.removeprefix(_LEFT_OUT)]
        candidates = [end] if len(others) == 1 else _candidates(parts[name], others, wide[name])
        if not any(take(name, short) for short in candidates):
            numbers = (f"#{n}" for n in count(2))
            next(n for n in numbers if take(name, f"{_last(end, wide[name] - len(n))}{n}"))
    return {name: made[name] for name in rooms}


def _size(text: str) -> int:
    """Return the columns of the terminal, or the characters if these are more: some take no column."""
    return max(len(text), cells(text))


def _by_end(names: Iterable[_Parts], room: int) -> dict[str, list[_Parts]]:
    """Return the sorted names, by every run of their last parts that fits."""
    found: dict[str, list[_Parts]] = {}
    for parts in sorted(names):
        end = ""
        for part in reversed(parts):
            end = part + end
            if len(end) > room:
                break
            found.setdefault(end, []).append(parts)
    return found


def _end(parts: _Parts, room: int) -> str:
    """Write the last parts of a name that fit, or the ends of its last part."""
    if short := _keep(parts, (), room):
        return short
    last = parts[-1]
    left_out = "" if parts == (last,) else _LEFT_OUT
    first = _first(last, (room - 2) // 2)
    return f"{left_out}{first}{_LEFT_OUT}{_last(last, room - len(left_out) - 1 - _size(first))}"


def _candidates(parts: _Parts, in_order: Sequence[_Parts], room: int) -> Iterator[str]:
    """Yield short forms of a name that may differ from those of others of a sorted list, the clearest first."""
    here = bisect_left(in_order, parts)
    branches = _branches(parts, in_order, here)
    choices = (branches, branches[-1:])
    yield from filter(None, (_keep(parts, kept, room) for kept in choices if kept))
    yield from filter(None, (_keep(parts, kept, room, cuts=True) for kept in choices if kept))
    text = "".join(parts)
    others = ("".join(other) for other in (*in_order[max(0, here - 1) : here], *in_order[here + 1 : here + 2]))
    place = min(max((_same(text, other) for other in others), default=0), len(text) - 1)
    head = _LEFT_OUT if place else ""
    if _size(head + text[place:]) <= room:
        yield head + text[place:]
    else:
        head += _first(text[place:], room // 2) + _LEFT_OUT
        yield head + _last(text, room - _size(head))


def _branches(parts: _Parts, in_order: Sequence[_Parts], here: int) -> tuple[int, ...]:
    """Return the places of parts in which a name differs first from others of a sorted list."""
    found, common = set[int](), _same(in_order[0], in_order[-1])
    for others in (in_order[here + 1 :], in_order[:here][::-1]):
        same = len(parts)
        for one, other in pairwise((parts, *others)):
            same = min(same, _same(one, other))
            found.add(same)
            if same == common:
                break
    return tuple(sorted(place for place in found if place < len(parts)))


def _same(one: Sequence[str], other: Sequence[str]) -> int:
    """Return how many items two sequences begin with that are the same."""
    shorter = min(len(one), len(other))
    return next((i for i in range(shorter) if one[i] != other[i]), shorter)


def _keep(parts: _Parts, kept: Sequence[int], room: int, *, cuts: bool = False) -> str:
    """Write some parts of a name and as many of its last ones as fit; "" where they do not.

    Args:
        parts: Of the name.
        kept: Places of parts to keep, ascending.
        room: Columns of the terminal.
        cuts: Write the last characters of the last part where it does not fit.
    """
    head, after = "", 0
    for place in kept:
        head += (_LEFT_OUT if place > after else "") + parts[place]
        after = place + 1
    rest, tail = parts[after:], ""
    for i in range(len(rest) - 1, -1, -1):
        longer = rest[i] + tail
        if _size(head + (_LEFT_OUT if i else "") + longer) > room:
            break
        tail = longer
    if tail or not rest:
        short = head + (_LEFT_OUT if len(tail) < sum(map(len, rest)) else "") + tail
        return short if _size(short) <= room else ""
    left = room - _size(head) - len(_LEFT_OUT)
    return f"{head}{_LEFT_OUT}{_last(rest[-1], left)}" if cuts and left > 1 else ""


def _first(text: str, room: int) -> str:
    """Return the first characters that fit."""
    kept = text[:room]
    while _size(kept) > room:
        kept = kept[:-1]
    return kept


def _last(text: str, room: int) -> str:
    """Return the last characters that fit."""
    kept = text[max(0, len(text) - room) :]
    while _size(kept) > room:
        kept = kept[1:]
    return kept
