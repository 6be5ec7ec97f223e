"""The layer graph: stages as boxes, layers in them coloured by device, edges between layers.

A graph of up to 60 layers shows names and edges. A larger one shows every layer as a cell, so that 1,500 fit on a
screen, and draws no edges; a page shows those of the layer that is chosen, and its name.

Left out: what happens on a click (``templates/report.js``).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from heterps_compile.cost.layer_cost import DATA_INTENSIVE
from heterps_compile.plan.plan import Plan, PlannedStage
from heterps_compile.units import counted, format_money, format_seconds

from .svg import WIDTH, Picture, device_classes, ending, fitting, line, picture, rect, safe, text, titled

NAMED_LAYERS = 60
_DRAWN_EDGES = 400
_CHIP = (124.0, 34.0)  # of a layer with its name
_CELL = (15.0, 15.0)
_GAP, _PAD, _HEAD = 8.0, 10.0, 44.0
_BETWEEN = 30.0  # stages, where the arrow goes
_LEAST_PARTS = 4  # of a row, that a box takes one of
_TOP = 40.0


@dataclass(frozen=True, slots=True)
class LayerView:
    """What a picture shows of a layer; ``kind`` and ``label`` (data or compute) are "" where not known.

    ``change`` says in words what is different in another plan; "" for nothing.
    """

    name: str
    stage: int
    device: str
    kind: str = ""
    label: str = ""
    change: str = ""


@dataclass(frozen=True, slots=True)
class _Box:
    x: float
    y: float
    width: float
    height: float


def plan_layers(plan: Plan) -> list[LayerView]:
    """Return the layers of a plan of which nothing but their names is known."""
    return [LayerView(name, stage.index, stage.device) for stage in plan.stages for name in stage.layers]


def layer_graph(plan: Plan, layers: Sequence[LayerView], edges: Sequence[tuple[int, int]] = ()) -> Picture:
    """Draw the layers of a plan in the boxes of its stages, each to be chosen.

    Args:
        plan: The plan.
        layers: In the order of the plan.
        edges: (producer, consumer) as indices of layers.
    """
    colours = device_classes(stage.device for stage in plan.stages)
    height, parts = _graph(plan, layers, edges, colours, alive=True)
    title = f"{counted(len(layers), 'layer')} of {fitting(plan.model, 400)} in {counted(len(plan.stages), 'stage')}"
    return picture("layers", title, height, parts, role="group")


def older_graph(plan: Plan, layers: Sequence[LayerView], newer: Plan) -> Picture:
    """Draw the layers of an older plan as one still picture, devices in the colours that they have in the newer one."""
    colours = device_classes(stage.device for stage in (*newer.stages, *plan.stages))
    height, parts = _graph(plan, layers, (), colours, alive=False)
    title = f"Before: {counted(len(layers), 'layer')} in {counted(len(plan.stages), 'stage')}"
    return picture("layers-before", title, height, parts)


def _graph(
    plan: Plan,
    layers: Sequence[LayerView],
    edges: Sequence[tuple[int, int]],
    colours: dict[str, int],
    *,
    alive: bool,
) -> tuple[float, list[str]]:
    named = len(layers) <= NAMED_LAYERS
    size = _CHIP if named else _CELL
    gap = _GAP if named else 3.0
    boxes, height = _boxes(plan.stages, size, gap)
    has_data = any(layer.label == DATA_INTENSIVE for layer in layers)
    shown = {stage.device: colours[stage.device] for stage in plan.stages}
    parts = [_legend(shown, has_data=has_data, has_changed=any(layer.change for layer in layers))]
    parts += _arrows(boxes)
    places: list[tuple[float, float]] = []
    heads: list[str] = []
    for stage, box in zip(plan.stages, boxes, strict=True):
        parts.append(rect(box.x, box.y, box.width, box.height, f"box s{colours[stage.device]}", ' rx="8"'))
        heads += _head(stage, box, plan.currency)
        across = max(1, int((box.width - 2 * _PAD + gap) / (size[0] + gap)))
        for i in range(len(stage.layers)):
            row, column = divmod(i, across)
            places.append((box.x + _PAD + column * (size[0] + gap), box.y + _HEAD + row * (size[1] + gap)))
    if named and len(edges) <= _DRAWN_EDGES:
        parts += [_edge(places[first], places[last], size) for first, last in edges]
    parts += [*heads, '<g class="layers">']
    for index, (layer, place) in enumerate(zip(layers, places, strict=True)):
        drawn = _shape(layer, place, size, colours[layer.device], named=named)
        parts.append(f"{_handle(index, layer)}{drawn}</g>" if alive else drawn)
    parts.append("</g>")
    return height, parts


def _boxes(stages: Sequence[PlannedStage], size: tuple[float, float], gap: float) -> tuple[list[_Box], float]:
    """Put the stages' boxes into rows; give them and the height of all."""
    most = max(1, int((WIDTH - 2 * _PAD - 2 * _PAD + gap) / (size[0] + gap)))
    boxes: list[_Box] = []
    x, y, row = _PAD, _TOP, 0.0
    for stage in stages:
        count = len(stage.layers)
        across = min(count, most if count > 3 * most else max(1, min(most, round((count * 3) ** 0.5) + 1)))
        width = _of_the_row(across * (size[0] + gap) - gap + 2 * _PAD)
        across = max(1, int((width - 2 * _PAD + gap) / (size[0] + gap)))
        height = _HEAD + -(-count // across) * (size[1] + gap) - gap + _PAD
        if boxes and x + width > WIDTH - _PAD + 1:
            x, y, row = _PAD, y + row + _BETWEEN, 0.0
        boxes.append(_Box(x, y, width, height))
        x, row = x + width + _BETWEEN, max(row, height)
    return boxes, y + row + _PAD


def _of_the_row(width: float) -> float:
    """Return the width of the least part of a row, a quarter at least, that a box of some width fits in."""
    row = WIDTH - 2 * _PAD
    parts = [(row - (count - 1) * _BETWEEN) / count for count in range(_LEAST_PARTS, 0, -1)]
    return next((part for part in parts if part >= width), row)


def _legend(colours: dict[str, int], *, has_data: bool, has_changed: bool) -> str:
    parts, x = [], _PAD
    for name, colour in colours.items():
        label = fitting(name, 150)
        parts += [rect(x, 12, 14, 14, f"d{colour}", ' rx="3"'), text(x + 20, 23, label)]
        x += 36 + 6.6 * len(label)
        if x > WIDTH - 330:
            parts.append(text(x, 23, "…", "soft"))
            break
    if has_changed:
        parts += [f'<circle class="p4" cx="{x + 6:.1f}" cy="19" r="3.5"/>', text(x + 15, 23, "changed", "soft")]
    if has_data:
        parts += [rect(WIDTH - 290, 12, 14, 14, "paper line data", ' rx="3"')]
        parts += [text(WIDTH - 270, 23, "dashed: bound by data, not by computation", "soft")]
    return "".join(parts)


def _arrows(boxes: Sequence[_Box]) -> Iterator[str]:
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


def _head(stage: PlannedStage, box: _Box, currency: str) -> list[str]:
    head = f"stage {stage.index}: {stage.replicas} x {stage.device}"
    below = f"{format_seconds(stage.time_s)} a batch, {format_money(stage.price_per_hour)} {currency}/h"
    return [
        text(box.x + _PAD, box.y + 18, fitting(head, box.width - 2 * _PAD), "ink head halo"),
        text(box.x + _PAD, box.y + 34, fitting(below, box.width - 2 * _PAD), "soft small halo"),
    ]


def _edge(start: tuple[float, float], end: tuple[float, float], size: tuple[float, float]) -> str:
    width, height = size
    if start[1] == end[1] and 0 < end[0] - start[0] <= width + _GAP + 1:  # the chip beside
        y = start[1] + height / 2
        return f'<path class="edge line" d="M{start[0] + width:.1f} {y:.1f}H{end[0]:.1f}"/>'
    x1, y1 = start[0] + width / 2, start[1] + height
    x2, y2 = end[0] + width / 2, end[1]
    bend = max(14.0, min(60.0, abs(y2 - y1) / 2))
    if start[1] == end[1]:  # along one row, below the chips between
        down, end_y = (y1 + 12, y1 + 12), y1
    else:
        down, end_y = (y1 + bend, y2 - bend), y2
    curve = f"C{x1:.1f} {down[0]:.1f} {x2:.1f} {down[1]:.1f} {x2:.1f} {end_y:.1f}"
    return f'<path class="edge line" d="M{x1:.1f} {y1:.1f}{curve}"/>'


def _handle(index: int, layer: LayerView) -> str:
    """Open the group of a layer, by which it is chosen with mouse and keyboard."""
    known = f", {safe(layer.kind)}" if layer.kind else ""
    changed = f", {safe(layer.change)}" if layer.change else ""
    return (
        f'<g class="layer" data-layer="{index}" tabindex="{-1 if index else 0}" role="button" aria-pressed="false" '
        f'aria-label="{safe(layer.name)}{known}, stage {layer.stage} on {safe(layer.device)}{changed}">'
    )


def _shape(layer: LayerView, place: tuple[float, float], size: tuple[float, float], colour: int, *, named: bool) -> str:
    x, y = place
    classes = f"d{colour} data" if layer.label == DATA_INTENSIVE else f"d{colour}"
    title = f"{layer.name}: {layer.change}" if layer.change else layer.name
    parts = [titled(rect(x, y, *size, classes, f' rx="{5 if named else 2}"'), title)]
    if layer.change:  # a dot in the corner
        parts.append(f'<circle class="p4" cx="{x + size[0] - 4:.1f}" cy="{y + 4:.1f}" r="3.5"/>')
    if named:
        parts.append(text(x + 7, y + 15, ending(layer.name, size[0] - 12)))
        parts.append(text(x + 7, y + 28, fitting(layer.change or layer.kind, size[0] - 12), "soft small"))
    return "".join(parts)
