"""Where layers, and the lines between them, lie in the picture of the layer graph.

    gutter     ──────────────────────┐
    row        [ a ] [ b ]→[ c ]     │ channel
    gutter       └─────┘             │
    row        [ d ] [ e ]           │

A stage is a box of rows of slots. Lines run in the gutters above and below rows, and from one gutter to another in a
channel at the left or right of all boxes; nothing that is read lies in either, so no line crosses a word. Lines that
end at one slot, or begin at one, share a *net*: one track in each gutter that they use. Nets in one gutter or channel
whose reaches overlap have tracks of their own.

Left out: what slots look like (``layer_graph.py``).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

TRACK = 6.0  # pixels between neighbouring tracks
_GUTTER, _TIP = 14.0, 9.0  # pixels: the least height of a gutter; what the tip of an arrow takes of it
_HEAD, _PAD, _BETWEEN = 44.0, 10.0, 18.0  # of a box's words; around what it holds; from box to box
_ROUNDS = 6
_WIDEST = 0.3  # of the picture, that channels may take

Gutter = tuple[int, int]
"""Box, and the row below it; the last gutter of a box lies below its last row."""

_Net = tuple[str, int]
"""Whether lines begin at a slot or end there, and its number."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Sheet:
    """What there is to lay out.

    Attributes:
        width: Of the picture.
        top: Where the first box begins.
        slot: The least width and the height of a slot.
        counts: Slots in every box; slots are numbered through all boxes.
        lines: (from, to) as numbers of slots.
    """

    width: float
    top: float
    slot: tuple[float, float]
    counts: Sequence[int]
    lines: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything lies.

    Attributes:
        boxes: Of every stage.
        heads: x and width of the words above the rows of a box.
        slots: Of every slot.
        paths: The corners of every line, in the order of the lines; empty where they are left out.
        height: Of all.
    """

    boxes: list[Box]
    heads: tuple[float, float]
    slots: list[Box]
    paths: list[list[tuple[float, float]]]
    height: float


@dataclass(frozen=True, slots=True)
class _Place:
    box: int
    row: int
    column: int
    x: float


@dataclass(frozen=True)
class _Grid:
    """Slots in rows, channels of some width at both sides; nothing is known of heights yet."""

    sheet: Sheet
    left: float
    right: float

    @cached_property
    def across(self) -> int:
        room = self.sheet.width - 4 * _PAD - self.left - self.right
        return max(1, int((room + _GUTTER) / (self.sheet.slot[0] + _GUTTER)))

    @cached_property
    def slot_width(self) -> float:
        room = self.sheet.width - 4 * _PAD - self.left - self.right
        return (room + _GUTTER) / self.across - _GUTTER

    @cached_property
    def places(self) -> list[_Place]:
        found = []
        for box, count in enumerate(self.sheet.counts):
            for i in range(count):
                row, column = divmod(i, self.across)
                x = 2 * _PAD + self.left + column * (self.slot_width + _GUTTER)
                found.append(_Place(box, row, column, x))
        return found

    def rows(self, box: int) -> int:
        return -(-self.sheet.counts[box] // self.across)


@dataclass(frozen=True, slots=True)
class _Route:
    """A line that is no step to the neighbour: its net, gutters, ends and channel (-1 left, 1 right, 0 none)."""

    net: _Net
    leaves: Gutter
    enters: Gutter
    x1: float
    x2: float
    side: int


def lay_out(sheet: Sheet) -> Layout | None:
    """Place slots and lines; return None where the channels would take too much of the width."""
    left = right = 0.0
    for _ in range(_ROUNDS):
        grid = _Grid(sheet, left, right)
        routes = _routes(grid)
        tracks = _channel_tracks(routes)
        needed = [TRACK * (1 + max(found.values())) + _PAD if found else 0.0 for found in tracks]
        if sum(needed) > _WIDEST * sheet.width:
            return None
        if needed[0] <= left and needed[1] <= right:
            return _draw(grid, routes, tracks)
        left, right = max(left, needed[0]), max(right, needed[1])
    return None


def _is_step(one: _Place, two: _Place) -> bool:
    return (one.box, one.row, one.column + 1) == (two.box, two.row, two.column)


def _routes(grid: _Grid) -> dict[int, _Route]:
    """Return the routes of lines by their index."""
    places, lines = grid.places, grid.sheet.lines
    far = [(i, a, b) for i, (a, b) in enumerate(lines) if not _is_step(places[a], places[b])]
    goes, comes = Counter(a for _, a, _ in far), Counter(b for _, _, b in far)
    nets = {i: ("to", b) if comes[b] >= goes[a] else ("from", a) for i, a, b in far}
    leaving, entering = defaultdict[int, list[_Net]](list), defaultdict[int, list[_Net]](list)
    members = defaultdict[_Net, list[tuple[int, int]]](list)
    for i, a, b in far:
        for port, slot in ((leaving, a), (entering, b)):
            if nets[i] not in port[slot]:
                port[slot].append(nets[i])
        members[nets[i]].append((a, b))
    middle = grid.sheet.width / 2
    sides = {}
    for net, ends in members.items():
        xs = [places[slot].x + grid.slot_width / 2 for pair in ends for slot in pair]
        sides[net] = -1 if sum(xs) / len(xs) < middle else 1
    routes = {}
    for i, a, b in far:
        one, two, net = places[a], places[b], nets[i]
        leaves, enters = (one.box, one.row + 1), (two.box, two.row)
        x1 = one.x + grid.slot_width * (0.55 + 0.35 * (leaving[a].index(net) + 1) / (len(leaving[a]) + 1))
        x2 = two.x + grid.slot_width * (0.1 + 0.35 * (entering[b].index(net) + 1) / (len(entering[b]) + 1))
        routes[i] = _Route(net, leaves, enters, x1, x2, 0 if leaves == enters else sides[net])
    return routes


def _channel_tracks(routes: Mapping[int, _Route]) -> list[dict[_Net, int]]:
    """Return the tracks of nets in the left channel and in the right one; those next to the slots come first."""
    found = []
    for side in (-1, 1):
        reaches = defaultdict[_Net, list[Gutter]](list)
        for route in routes.values():
            if route.side == side:
                reaches[route.net] += [route.leaves, route.enters]
        found.append(_tracks({net: (min(gutters), max(gutters)) for net, gutters in reaches.items()}))
    return found


def _tracks(reaches: Mapping[_Net, tuple[Any, Any]]) -> dict[_Net, int]:
    """Number tracks so that reaches that touch have different ones: first fit, by where they begin."""
    ends: list[Any] = []
    found = {}
    for key, (begin, end) in sorted(reaches.items(), key=lambda item: (item[1], str(item[0]))):
        track = next((i for i, taken in enumerate(ends) if taken < begin), len(ends))
        ends[track : track + 1] = [end]
        found[key] = track
    return found


def _draw(grid: _Grid, routes: Mapping[int, _Route], channels: Sequence[Mapping[_Net, int]]) -> Layout:
    """Give everything its coordinates."""
    sheet = grid.sheet
    first, last = 2 * _PAD + grid.left, sheet.width - 2 * _PAD - grid.right
    channel_x = {
        (side, net): (first - _PAD - TRACK * track) if side < 0 else (last + _PAD + TRACK * track)
        for side, tracks in ((-1, channels[0]), (1, channels[1]))
        for net, track in tracks.items()
    }
    tracks = _gutter_tracks(routes, channel_x)
    heights = {gutter: TRACK * (1 + max(found.values())) for gutter, found in tracks.items()}
    boxes, rows, gutters = list[Box](), dict[tuple[int, int], float](), dict[Gutter, float]()
    y = sheet.top
    for box in range(len(sheet.counts)):
        begin, y = y, y + _HEAD
        for row in range(grid.rows(box) + 1):
            gutters[box, row] = y
            taken = heights.get((box, row), 0.0)
            is_edge = row in (0, grid.rows(box))
            y += taken + (_TIP if taken or not is_edge else 0.0) + (0.0 if taken or is_edge else _GUTTER - _TIP)
            if row < grid.rows(box):
                rows[box, row] = y
                y += sheet.slot[1]
        y += _PAD
        boxes.append(Box(_PAD, begin, sheet.width - 2 * _PAD, y - begin))
        y += _BETWEEN
    slots = [Box(place.x, rows[place.box, place.row], grid.slot_width, sheet.slot[1]) for place in grid.places]

    def track_y(gutter: Gutter, net: _Net) -> float:
        return gutters[gutter] + TRACK * (tracks[gutter][net] + 0.75)

    paths = []
    for i, (a, b) in enumerate(sheet.lines):
        one, two = slots[a], slots[b]
        route = routes.get(i)
        if route is None:
            middle = one.y + one.height / 2
            paths.append([(one.x + one.width, middle), (two.x, middle)])
            continue
        y1, y2 = track_y(route.leaves, route.net), track_y(route.enters, route.net)
        path = [(route.x1, one.y + one.height), (route.x1, y1)]
        if route.side:
            x = channel_x[route.side, route.net]
            path += [(x, y1), (x, y2)]
        paths.append([*path, (route.x2, y2), (route.x2, two.y)])
    return Layout(boxes, (first, last - first), slots, paths, y - _BETWEEN + _PAD)


def _gutter_tracks(
    routes: Mapping[int, _Route], channel_x: Mapping[tuple[int, _Net], float]
) -> dict[Gutter, dict[_Net, int]]:
    """Return the tracks of nets in every gutter that they use."""
    reaches = defaultdict[Gutter, dict[_Net, list[float]]](lambda: defaultdict(list))
    for route in routes.values():
        turns = [channel_x[route.side, route.net]] if route.side else []
        if turns:
            reaches[route.leaves][route.net] += [route.x1, *turns]
            reaches[route.enters][route.net] += [route.x2, *turns]
        else:
            reaches[route.leaves][route.net] += [route.x1, route.x2]
    return {
        gutter: _tracks({net: (min(xs), max(xs)) for net, xs in found.items()}) for gutter, found in reaches.items()
    }


def straight(boxes: Iterable[Box]) -> list[list[tuple[float, float]]]:
    """Return a line from every box to the next, for a picture whose lines between slots are not known."""
    found = list(boxes)
    return [
        [(one.x + one.width / 2, one.y + one.height), (two.x + two.width / 2, two.y)] for one, two in pairwise(found)
    ]
