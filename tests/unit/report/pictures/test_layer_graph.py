"""The picture of the layer graph: words lie in their boxes, no line crosses a word, lines follow the layer graph."""

import random
import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from drawn_words import SVG, Rectangle, parsed, words
from large_plan import large_findings

from heterps_compile.report.findings import Findings
from heterps_compile.report.pictures.layer_graph import LayerEdge, LayerView, layer_graph
from heterps_compile.report.pictures.layer_layout import Sheet, lay_out
from heterps_compile.report.pictures.svg import NARROW, WIDTH
from heterps_compile.report.pictures.text_width import ending, fitting, text_width, wrapped


def lines(drawn: ET.Element) -> list[tuple[str, list[tuple[float, float]]]]:
    """Return every line between layers: the edges it stands for, and its corners."""
    found = []
    for wire in drawn.iter(f"{SVG}g"):
        if wire.get("class") == "wire":
            numbers = list(map(float, re.findall(r"[\d.]+", wire[0].get("d", ""))))
            found.append((wire.get("data-edges", ""), list(zip(numbers[::2], numbers[1::2], strict=True))))
    return found


def crosses(path: list[tuple[float, float]], box: Rectangle) -> bool:
    """Tell whether an upright line goes through a rectangle."""
    left, top, right, bottom = box
    return any(
        min(x1, x2) < right and max(x1, x2) > left and min(y1, y2) < bottom and max(y1, y2) > top
        for (x1, y1), (x2, y2) in pairwise(path)
    )


def random_edges(count: int, seed: int) -> list[LayerEdge]:
    """Return a chain with shortcuts, some of them from far, and one layer that many read."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    pairs = {(i, i + 1) for i in range(count - 1)}
    pairs |= {tuple(sorted(rng.sample(range(count), 2))) for _ in range(count // 2)}
    pairs |= {(i, count - 1) for i in range(0, count - 1, 3)}
    return [LayerEdge(a, b, rng.random() < 0.3, rng.random() < 0.3) for a, b in sorted(pairs)]


@pytest.mark.parametrize("width", [WIDTH, NARROW])
@pytest.mark.parametrize(("layers", "stages", "seed"), [(2, 1, 0), (14, 3, 1), (31, 5, 2), (60, 7, 3), (60, 2, 4)])
def test_words_lie_in_their_boxes_and_no_line_crosses_one(layers, stages, seed, width):
    found = large_findings(layers, stages)
    edges = random_edges(layers, seed) if layers < 60 else random_edges(layers, seed)[::3]
    joins = {edge.consumer for edge in edges if edge.into_join} | {e.producer for e in edges if e.after_join}
    views = [
        LayerView(f"model.encoder.{i}.{'W' * (i % 30)}", view.stage, view.device, "conv 3x3, 1,024 -> 2,048", "data")
        for i, view in enumerate(found.views)
    ]
    views = [
        LayerView(v.name, v.stage, v.device, v.kind, v.label, "", "", "concat" if i in joins else "")
        for i, v in enumerate(views)
    ]
    drawn = parsed(layer_graph(found.plan, views, edges, width=width))
    wires = lines(drawn)
    assert wires or width == NARROW
    for said, box in words(drawn):
        assert box[0] >= 0, said
        assert box[2] <= width, said
        assert [path for _, path in wires if crosses(path, box)] == [], said
    for chip in drawn.iter(f"{SVG}g"):
        if chip.get("class") == "layer":
            check_chip(chip)


def check_chip(chip: ET.Element) -> None:
    """Check that every text of a layer lies in one of its shapes, by its measured width."""
    rects = [
        (x, y, x + float(r.get("width", "")), y + float(r.get("height", "")))
        for r in chip.iter(f"{SVG}rect")
        for x, y in [(float(r.get("x", "")), float(r.get("y", "")))]
    ]
    for said, (left, top, right, bottom) in words(chip):
        assert any(a <= left and b <= top and right <= c and bottom <= d for a, b, c, d in rects), said


def test_lines_of_different_nets_share_no_stretch():
    """Two lines that lie on each other could not be told apart, unless both end, or both begin, at one slot."""
    sheet = Sheet(WIDTH, 40, (118, 36), (17, 14), [(i, i + 1) for i in range(30)] + [(i, 30 - i) for i in range(13)])
    laid = lay_out(sheet)
    assert laid is not None
    stretches: dict[tuple[float, float, float], set[tuple[int, int]]] = {}
    for ends, path in zip(sheet.lines, laid.paths, strict=True):
        for (x1, y1), (x2, y2) in pairwise(path):
            for step in range(int(min(x1, x2)) + 1, int(max(x1, x2))):
                if y1 == y2:
                    stretches.setdefault((step, y1, 0), set()).add(ends)
    for together in stretches.values():
        assert len({a for a, _ in together}) == 1 or len({b for _, b in together}) == 1, together


def test_a_line_ends_where_its_slots_are():
    sheet = Sheet(WIDTH, 40, (118, 36), (8, 9), [(0, 1), (0, 9), (7, 8), (3, 16), (2, 7)])
    laid = lay_out(sheet)
    assert laid is not None
    for (a, b), path in zip(sheet.lines, laid.paths, strict=True):
        one, two = laid.slots[a], laid.slots[b]
        assert one.x <= path[0][0] <= one.x + one.width
        assert one.y <= path[0][1] <= one.y + one.height
        assert two.x <= path[-1][0] <= two.x + two.width
        assert two.y <= path[-1][1] <= two.y + two.height


def test_too_many_lines_are_left_out_in_words():
    found = large_findings(40, 1)
    edges = [LayerEdge(a, b) for a in range(40) for b in range(a + 1, 40, 3)]
    drawn = layer_graph(found.plan, found.views, edges, width=NARROW)
    assert [edges for edges, _ in lines(parsed(drawn)) if edges] == []
    assert "too many lines to draw" in drawn.svg


def test_a_text_is_cut_to_the_pixels_there_are():
    assert fitting("rl", 60) == "rl"
    assert fitting("", 60) == ""
    assert wrapped("proven bound for every plan", 90) == ["proven bound", "for every plan"]
    assert ending("head", 90) == "head"
    for width in (30, 60, 120):
        assert text_width(fitting("node_embedding_17", width)) <= width
        assert text_width(ending("node_embedding_17", width)) <= width


def test_a_plan_without_a_model_has_arrows_from_stage_to_stage():
    drawn = layer_graph(large_findings(20, 4).plan, Findings(large_findings(20, 4).plan).views)
    assert len(lines(parsed(drawn))) == 3
