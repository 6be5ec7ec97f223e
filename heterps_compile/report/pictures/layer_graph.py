"""The layer graph: stages as boxes, layers in them coloured by device, edges between layers.

A graph of up to 100 layers shows names and edges. A larger one shows every layer as a cell, so that 1,500 fit on a
screen, and draws no edges; a page shows those of the layer that is chosen, and its name.

Left out: what happens on a click (``templates/report.js``).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from heterps_compile.cost.layer_cost import DATA_INTENSIVE
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.planned_stage import PlannedStage
from heterps_compile.units import counted, format_money, format_seconds

from .layer_layout import Box, Sheet, lay_out, straight
from .svg import WIDTH, Picture, device_classes, legend, line, picture, rect, safe, text, titled
from .text_width import SMALL, ending, fitting, text_width

NAMED_LAYERS = 100
_DRAWN_EDGES = 400
_CHIP = (118.0, 36.0)  # of a layer with its name, at the least
_LOW_CHIP = 24.0  # pixels high, of layers of which nothing but the name is known
_WIDEST_CHIP = 170.0  # that names widen the others to, on wide pictures
_CELL = (15.0, 15.0)
_CELL_GAP, _PAD, _HEAD = 3.0, 10.0, 44.0
_BETWEEN = 30.0  # stages of cells
_LEAST_PARTS = 4  # of a row, that a box takes one of


@dataclass(frozen=True, slots=True)
class LayerView:
    """What a picture shows of a layer; ``kind`` and ``label`` (data or compute) are "" where not known.

    ``title`` is what it is called in the picture: "" for its name, ``kind`` where its name tells nothing. ``change``
    says in words what is different in another plan, "" for nothing. ``join`` names what it does last with values of
    other layers, "" for nothing.
    """

    name: str
    stage: int
    device: str
    kind: str = ""
    label: str = ""
    change: str = ""
    title: str = ""
    join: str = ""

    @property
    def lines(self) -> tuple[str, str]:
        """Return what it is called in a picture, and the line below that."""
        title = self.title or self.name
        return title, self.name if title == self.kind else self.kind


@dataclass(frozen=True, slots=True)
class LayerEdge:
    """A value that a layer makes and another reads.

    ``after_join`` says that the first makes it after its join, ``into_join`` that the second reads it there alone.
    """

    producer: int
    consumer: int
    after_join: bool = False
    into_join: bool = False


def plan_layers(plan: Plan) -> list[LayerView]:
    """Return the layers of a plan of which no more is known than what they are called."""
    return [
        LayerView(
            name, stage.index, stage.device_words, kind=plan.titles.get(name, ""), title=plan.titles.get(name, "")
        )
        for stage in plan.stages
        for name in stage.layers
    ]


def layer_graph(
    plan: Plan, layers: Sequence[LayerView], edges: Sequence[LayerEdge] = (), *, width: float = WIDTH
) -> Picture:
    """Draw the layers of a plan in the boxes of its stages, each to be chosen.

    Args:
        plan: The plan.
        layers: In the order of the plan.
        edges: Between layers.
        width: In pixels.
    """
    colours = device_classes(stage.device_words for stage in plan.stages)
    height, parts = _graph(plan, layers, edges, colours, width, alive=True)
    title = f"{counted(len(layers), 'layer')} in {counted(len(plan.stages), 'stage')}"
    return picture("layers", title, height, parts, about=fitting(plan.model, 400), role="group", width=width)


def older_graph(plan: Plan, layers: Sequence[LayerView], newer: Plan, *, width: float = WIDTH) -> Picture:
    """Draw the layers of an older plan as one still picture, devices in the colours that they have in the newer one."""
    colours = device_classes(stage.device_words for stage in (*newer.stages, *plan.stages))
    height, parts = _graph(plan, layers, (), colours, width, alive=False)
    told = f"{counted(len(layers), 'layer')} in {counted(len(plan.stages), 'stage')}"
    return picture("layers-before", "Before", height, parts, about=told, width=width)


def _graph(
    plan: Plan,
    layers: Sequence[LayerView],
    edges: Sequence[LayerEdge],
    colours: dict[str, int],
    width: float,
    *,
    alive: bool,
) -> tuple[float, list[str]]:
    if len(layers) > NAMED_LAYERS:
        parts, top = _legend(plan, layers, colours, width)
        height, drawn = _cells(plan, layers, colours, (width, top), alive=alive)
        return height, parts + drawn
    slots = _slots(plan, layers)
    lines = _lines(slots, edges) if len(edges) <= _DRAWN_EDGES else {}
    parts, top = _legend(plan, layers, colours, width)
    counts = [sum(layers[slot.layer].stage == stage.index for slot in slots) for stage in plan.stages]
    sheet = Sheet(width, top, _chip_size(layers, width), counts, list(lines))
    laid = lay_out(sheet)
    if laid is None or len(edges) > _DRAWN_EDGES:
        words = [("", "too many lines to draw: choose a layer to see what it reads and what reads it")]
        parts, top = _legend(plan, layers, colours, width, more=words)
        laid, lines = lay_out(replace(sheet, top=top, lines=())), {}
    assert laid is not None  # noqa: S101 - without lines there is always room; this tells the type checker
    for stage, box in zip(plan.stages, laid.boxes, strict=True):
        parts.append(rect(box.x, box.y, box.width, box.height, f"box s{colours[stage.device_words]}", ' rx="8"'))
    drawn = [_line(path, pairs) for path, pairs in zip(laid.paths, lines.values(), strict=True)]
    if not edges:
        drawn = [_line(path, []) for path in straight(laid.boxes)]
    parts += ['<g class="edges">', *drawn, "</g>"]
    for stage, box in zip(plan.stages, laid.boxes, strict=True):
        parts += _head(stage, laid.heads, box.y, plan.currency)
    parts.append('<g class="layers">')
    for index, group in groupby(range(len(slots)), key=lambda i: slots[i].layer):
        layer = layers[index]
        shapes = "".join(_chip(layer, laid.slots[i], colours[layer.device], slots[i]) for i in group)
        parts.append(f'<g class="layer"{_handle(index, layer)}>{shapes}</g>' if alive else shapes)
    return laid.height, [*parts, "</g>"]


def _chip_size(layers: Sequence[LayerView], width: float) -> tuple[float, float]:
    """Return the least width and the height of layers: as wide as their names where there is room, no line empty."""
    least, height = _CHIP
    names = max(text_width(layer.lines[0]) for layer in layers) + 15
    widest = max(names, *(text_width(layer.change, SMALL) + 25 for layer in layers))  # beside its dot
    has_second = any(layer.lines[1] or layer.change for layer in layers)
    return min(max(least, widest), _WIDEST_CHIP) if width >= WIDTH else least, height if has_second else _LOW_CHIP


@dataclass(frozen=True, slots=True)
class _Slot:
    layer: int
    is_join: bool


def _slots(plan: Plan, layers: Sequence[LayerView]) -> list[_Slot]:
    """Return a slot a layer, and one behind it for its join."""
    order = (index for stage in plan.stages for index, layer in enumerate(layers) if layer.stage == stage.index)
    return [_Slot(i, is_join) for i in order for is_join in (False, True) if not is_join or layers[i].join]


def _lines(slots: Sequence[_Slot], edges: Sequence[LayerEdge]) -> dict[tuple[int, int], list[LayerEdge]]:
    """Return lines from slot to slot, with the edges that each stands for: none from a layer to its own join."""
    number = {slot: i for i, slot in enumerate(slots)}
    lines: dict[tuple[int, int], list[LayerEdge]] = {
        (number[_Slot(slot.layer, is_join=False)], i): [] for i, slot in enumerate(slots) if slot.is_join
    }
    for edge in edges:
        ends = _Slot(edge.producer, edge.after_join), _Slot(edge.consumer, edge.into_join)
        lines.setdefault((number[ends[0]], number[ends[1]]), []).append(edge)
    return lines


def _line(path: Sequence[tuple[float, float]], edges: Sequence[LayerEdge]) -> str:
    """Draw a line through corners, and the tip of an arrow at its end."""
    (_, y1), (x2, y2) = path[-2:]
    (x0, y0), *others = path
    tip = f"M{x2:.1f} {y2:.1f}l-6 -3.5v7z" if y1 == y2 else f"M{x2:.1f} {y2:.1f}l-3.5 -6h7z"
    corners = "".join(f"L{x:.1f} {y:.1f}" for x, y in others)
    ends = " ".join(f"{edge.producer}-{edge.consumer}" for edge in edges)
    known = f' data-edges="{ends}"' if ends else ""
    return (
        f'<g class="wire"{known}><path class="edge line" d="M{x0:.1f} {y0:.1f}{corners}"/>'
        f'<path class="tip" d="{tip}"/></g>'
    )


def _cells(
    plan: Plan,
    layers: Sequence[LayerView],
    colours: dict[str, int],
    place: tuple[float, float],
    *,
    alive: bool,
) -> tuple[float, list[str]]:
    """Draw a cell a layer, below a top; return the height and the elements."""
    width, top = place
    boxes, height = _cell_boxes(plan.stages, width, top)
    parts = list(_arrows(boxes))
    heads, drawn = list[str](), list[str]()
    left = iter(range(len(layers)))
    for stage, box in zip(plan.stages, boxes, strict=True):
        parts.append(rect(box.x, box.y, box.width, box.height, f"box s{colours[stage.device_words]}", ' rx="8"'))
        heads += _head(stage, (box.x + _PAD, box.width - 2 * _PAD), box.y, plan.currency)
        across = max(1, int((box.width - 2 * _PAD + _CELL_GAP) / (_CELL[0] + _CELL_GAP)))
        for i, index in zip(range(len(stage.layers)), left, strict=False):
            row, column = divmod(i, across)
            x = box.x + _PAD + column * (_CELL[0] + _CELL_GAP)
            y = box.y + _HEAD + row * (_CELL[1] + _CELL_GAP)
            drawn.append(_cell(index, layers[index], (x, y), colours, alive=alive, hovers=width >= WIDTH))
    return height, [*parts, '<g class="edges"></g>', *heads, '<g class="layers">', *drawn, "</g>"]


def _cell(
    index: int, layer: LayerView, place: tuple[float, float], colours: dict[str, int], *, alive: bool, hovers: bool
) -> str:
    """Draw a layer as a cell, with a title where a mouse may hover over it."""
    x, y = place
    classes = f"d{colours[layer.device]} data" if layer.label == DATA_INTENSIVE else f"d{colours[layer.device]}"
    title = (f"{layer.name}: {layer.change}" if layer.change else layer.name) if hovers else ""
    handle = _handle(index, layer) if alive else ""
    if not layer.change:  # one element a layer: there may be thousands
        return titled(rect(x, y, *_CELL, f"layer {classes}" if alive else classes, f' rx="2"{handle}'), title)
    shape = titled(rect(x, y, *_CELL, classes, ' rx="2"'), title)
    dot = f'<circle class="p4" cx="{x + _CELL[0] - 4:.1f}" cy="{y + 4:.1f}" r="3.5"/>'
    return f'<g class="layer"{handle}>{shape}{dot}</g>' if alive else f"{shape}{dot}"


def _cell_boxes(stages: Sequence[PlannedStage], total: float, top: float) -> tuple[list[Box], float]:
    """Put the stages' boxes into rows; return them and the height of all."""
    size, gap = _CELL, _CELL_GAP
    most = max(1, int((total - 4 * _PAD + gap) / (size[0] + gap)))
    boxes: list[Box] = []
    x, y, row = _PAD, top, 0.0
    for stage in stages:
        count = len(stage.layers)
        across = min(count, most if count > 3 * most else max(1, min(most, round((count * 3) ** 0.5) + 1)))
        width = _of_the_row(across * (size[0] + gap) - gap + 2 * _PAD, total)
        across = max(1, int((width - 2 * _PAD + gap) / (size[0] + gap)))
        height = _HEAD + -(-count // across) * (size[1] + gap) - gap + _PAD
        if boxes and x + width > total - _PAD + 1:
            x, y, row = _PAD, y + row + _BETWEEN, 0.0
        boxes.append(Box(x, y, width, height))
        x, row = x + width + _BETWEEN, max(row, height)
    return boxes, y + row + _PAD


def _of_the_row(width: float, total: float) -> float:
    """Return the width of the least part of a row, a quarter at least, that a box of some width fits in."""
    row = total - 2 * _PAD
    most = _LEAST_PARTS if total >= WIDTH else 1
    parts = [(row - (count - 1) * _BETWEEN) / count for count in range(most, 0, -1)]
    return next((part for part in parts if part >= width), row)


def _legend(
    plan: Plan,
    layers: Sequence[LayerView],
    colours: dict[str, int],
    width: float,
    more: Sequence[tuple[str, str]] = (),
) -> tuple[list[str], float]:
    """Draw what colours and lines mean; return the elements and where the boxes may begin."""
    items = [(f"d{colours[name]}", name) for name in dict.fromkeys(stage.device_words for stage in plan.stages)]
    if any(layer.label == DATA_INTENSIVE for layer in layers):
        items.append(("paper line data", "dashed: bound by data, not by computation"))
    if any(layer.change for layer in layers):
        items.append(("p4", "dot: changed"))
    return legend([*items, *more], width)


def _arrows(boxes: Sequence[Box]) -> Iterator[str]:
    for one, two in pairwise(boxes):
        if one.y == two.y:
            y = one.y + 22
            yield line(one.x + one.width, y, two.x - 6, y, "line")
            yield f'<path class="tip" d="M{two.x - 1:.1f} {y:.1f}l-8 -4v8z"/>'
        else:
            x, below = one.x + one.width / 2, two.y - _BETWEEN / 2
            into = two.x + 60
            path = f"M{x:.1f} {one.y + one.height:.1f}V{below:.1f}H{into:.1f}V{two.y - 6:.1f}"
            yield f'<path class="line" fill="none" d="{path}"/>'
            yield f'<path class="tip" d="M{into:.1f} {two.y - 1:.1f}l-4 -8h8z"/>'


def _head(stage: PlannedStage, across: tuple[float, float], y: float, currency: str) -> list[str]:
    x, width = across
    head = f"stage {stage.index}: {stage.hardware}"
    below = f"{format_seconds(stage.time_s)} a batch, {format_money(stage.price_per_hour)} {currency}/h"
    return [
        text(x, y + 18, fitting(head, width, bold=True), "ink head"),
        text(x, y + 34, fitting(below, width, SMALL), "soft small"),
    ]


def _handle(index: int, layer: LayerView) -> str:
    """Return the attributes of a layer's group, by which it is chosen with mouse and keyboard."""
    known = f", {safe(layer.kind)}" if layer.kind else ""
    changed = f", {safe(layer.change)}" if layer.change else ""
    return (
        f' data-layer="{index}" tabindex="{-1 if index else 0}" role="button" aria-pressed="false" '
        f'aria-label="{safe(layer.name)}{known}, stage {layer.stage} on {safe(layer.device)}{changed}"'
    )


def _chip(layer: LayerView, box: Box, colour: int, slot: _Slot) -> str:
    """Draw a layer with what it is called and what it is, or what it does last with values of other layers."""
    x, y, room = box.x, box.y, box.width - 13
    if slot.is_join:
        words = fitting(layer.join, room)
        shape = rect(x, y, box.width, box.height, f"box s{colour}", f' rx="{box.height / 2:.0f}"')
        return titled(shape, f"{layer.join}, in {layer.name}") + text(
            x + box.width / 2, y + box.height / 2 + 4, words, "ink", "middle"
        )
    classes = f"d{colour} data" if layer.label == DATA_INTENSIVE else f"d{colour}"
    title = f"{layer.name}: {layer.change}" if layer.change else layer.name
    parts = [titled(rect(x, y, box.width, box.height, classes, ' rx="5"'), title)]
    if layer.change:  # a dot in the corner
        parts.append(f'<circle class="p4" cx="{x + box.width - 6:.1f}" cy="{y + 6:.1f}" r="3.5"/>')
        room -= 10
    first, second = layer.lines
    first_y = y + 15 if second or layer.change else y + box.height / 2 + 4
    parts.append(text(x + 7, first_y, _kind(first, room, 12.0) if first == layer.kind else ending(first, room)))
    if layer.change:
        parts.append(text(x + 7, y + 29, fitting(layer.change, room, SMALL), "soft small"))
    elif second:
        parts.append(text(x + 7, y + 29, _kind(second, room, SMALL), "soft small"))
    return "".join(parts)


def _kind(words: str, room: float, size: float) -> str:
    """Return kind and sizes, without the kind where that is too wide."""
    whole = (words.partition(" ")[2] or words) if text_width(words, size) > room else words
    return fitting(whole, room, size)
