"""The page and its pictures: everything is there, nothing is markup but ours, 1,500 layers stay small."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from large_plan import HOSTILE, hostile_findings, large_findings
from small_problems import small_problem

from heterps_compile.bench.comparison import Comparison
from heterps_compile.cost.problem import MethodResult
from heterps_compile.plan.plan import PoolDevice
from heterps_compile.plan.served_tables import ParameterServers
from heterps_compile.plan_diff.compare_plans import diff
from heterps_compile.report.findings import Findings
from heterps_compile.report.html import for_script, html_report, layer_facts
from heterps_compile.report.pictures.pareto import Point, pareto, usual_floors
from heterps_compile.report.pictures.svg import WIDTH, can_draw_png, ticks, to_png
from heterps_compile.report.pictures.text_width import ending

SVG = "{http://www.w3.org/2000/svg}"
POINTS = (Point(0, 100.0, 1.0, True, True), Point(200, 200.0, 3.0, False, False), Point(300, 400.0, 2.5, True, True))
METHODS = Comparison("m", 3, 2, 2.0, "USD", "cost", 8, (MethodResult("exact", 2.0, 1, 0.1),))
SMALL = large_findings(20, 3, training=True)
WHOLE = replace(SMALL, points=POINTS, comparison=METHODS)


class Elements(HTMLParser):
    """Collects what a browser would make of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


def embedded(page: str) -> dict:
    match = re.search(r'<script type="application/json" id="facts">(.*?)</script>', page, re.DOTALL)
    assert match is not None
    return json.loads(match[1])


def test_every_picture_is_there_when_there_is_something_to_tell():
    names = [drawn.name for drawn in WHOLE.pictures()]
    assert names == ["layers", "timeline", "memory-over-time", "memory", "price", "pareto", "methods"]
    assert [drawn.name for drawn in Findings(SMALL.plan).pictures()] == names[:-2]


@pytest.mark.parametrize(
    "found", [WHOLE, large_findings(1500, 90), hostile_findings()], ids=["whole", "large", "hostile"]
)
def test_every_picture_is_xml_of_one_svg_with_a_label(found):
    for drawn in found.pictures():
        root = ET.fromstring(drawn.svg)  # noqa: S314 - our own text
        assert root.tag == f"{SVG}svg"
        assert root.get("aria-label")
        assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
            *("svg", "style", "rect", "text", "line", "path", "g", "title", "circle")
        }


def test_the_graph_has_a_shape_a_layer_in_the_order_of_the_plan():
    root = ET.fromstring(SMALL.pictures()[0].svg)  # noqa: S314 - our own text
    layers = [group for group in root.iter(f"{SVG}g") if group.get("class") == "layer"]
    assert [group.get("data-layer") for group in layers] == [str(i) for i in range(20)]
    assert [group.get("tabindex") for group in layers] == ["0"] + ["-1"] * 19
    assert layers[0].get("aria-label") == "encoder.0.block.0.linear, gemm, stage 0 on v100"


def test_the_timeline_has_a_piece_an_action():
    root = ET.fromstring(SMALL.pictures()[1].svg)  # noqa: S314 - our own text
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    assert sum(title.startswith("forward of micro-batch") for title in titles) == 3 * 16
    assert sum(title.startswith("backward of micro-batch") for title in titles) == 3 * 16


def test_changes_against_an_older_plan_are_told_and_moved_layers_marked():
    first, second, *others = SMALL.plan.stages
    older = (replace(first, layers=first.layers[:-1]), replace(second, layers=(first.layers[-1], *second.layers)))
    changes = diff(replace(SMALL.plan, stages=(*older, *others)), SMALL.plan)
    page = html_report(replace(SMALL, changes=changes))
    moved = embedded(page)["layers"][len(first.layers) - 1]
    assert (moved["device"], moved["change"]) == ("v100", "was on cpu-core")
    assert page.count("moved from cpu-core to v100") == 1
    assert f'{first.layers[-1]}, gemm, stage 0 on v100, was on cpu-core"' in page
    assert "Changes against the older plan" not in html_report(SMALL)


def test_memory_stands_beside_what_the_device_has_where_the_plan_knows():
    plan = replace(SMALL.plan, devices=(PoolDevice("v100", "gpu", 2.42, 8, 32 * 2**30),))
    memory = next(drawn for drawn in Findings(plan).pictures() if drawn.name == "memory")
    assert "54.9 MiB of 32 GiB" in memory.svg
    for part in ("weights 9.54 MiB", "gradients 9.54 MiB", "optimiser state 19.1 MiB", "activations 7.63 MiB"):
        assert f">{part}</text>" in memory.svg
    assert ">64.1 MiB</text>" in memory.svg


def test_servers_of_tables_have_a_bar_of_their_price():
    plan = replace(SMALL.plan, parameter_servers=ParameterServers(3, 0.12))
    price = next(drawn for drawn in Findings(plan).pictures() if drawn.name == "price")
    assert ">parameter servers: 3 cores</text>" in price.svg
    assert ">0.12 USD/h</text>" in price.svg


def test_what_a_picture_says_on_hovering_it_says_in_words_too():
    """The numbers of pieces and points stand below them, as nobody hovers over paper or a phone."""
    drawn = {one.name: one.svg for one in WHOLE.pictures()}
    assert ">stage 2: forward 45.8 us, backward 91.7 us</text>" in drawn["timeline"]
    assert ">100 samples/s, 1.00 USD/h</text>" in drawn["pareto"]
    assert ">200 samples/s, 3.00 USD/h, best found in time</text>" in drawn["pareto"]
    assert "proven bound, 2.00 USD, for every plan" in drawn["methods"]


def test_1500_layers_make_a_page_under_five_megabytes():
    page = html_report(large_findings(1500, 12, training=True))
    assert len(page.encode()) < 5_000_000
    assert len(embedded(page)["layers"]) == 1500


def test_a_page_has_no_element_and_no_handler_that_a_name_brought():
    page = Elements(html_report(hostile_findings()))
    plain = Elements(html_report(large_findings(8, 2)))
    assert page.tags.count("script") == plain.tags.count("script") == 2
    assert "img" not in page.tags
    assert [name for name, _ in page.attributes if name.startswith("on")] == []


def test_hostile_names_are_text_in_the_embedded_facts_too():
    page = html_report(hostile_findings())
    names = [layer["name"] for layer in embedded(page)["layers"]]
    assert names[:2] == list(HOSTILE[:2])
    assert names[3] == "two\\nlines\\r\\x00\\x1b[31m"
    assert names[4] == "\\u202eright to left"
    assert len(names[7]) == 200
    assert "49" not in names[5]
    assert not {"\x1b", "\u202e", "\x00"} & set(page)


def test_embedded_json_cannot_end_its_script():
    text = for_script({"name": "</script><!--&"})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"name": "</script><!--&"}


def test_the_page_fetches_nothing_and_runs_the_one_script_it_names():
    page = html_report(WHOLE)
    links = [value for name, value in Elements(page).attributes if name in ("src", "href", "action", "data", "srcset")]
    assert links
    assert all(link.startswith("#") for link in links)
    assert "url(" not in page
    assert "@import" not in page
    assert re.search(
        r"content=\"default-src &#39;none&#39;; style-src .*; script-src &#39;sha256-[\w+/=]{44}&#39;\"", page
    )


def test_a_layer_is_told_with_what_it_takes_and_costs_on_every_type():
    problem = small_problem(1, layers=20, types=2, structure=False)
    facts = layer_facts(replace(SMALL, problem=problem))
    first = facts["layers"][0]
    assert [key for key, _ in first["facts"]][:3] == ["kind", "parameters", "weights"]
    assert [row[0] for row in first["types"]] == ["type0", "type1"]
    assert first["types"][0][3].endswith(" USD")


def test_a_point_is_on_the_front_where_nothing_is_as_fast_and_cheaper():
    problem = small_problem(3, structure=False, memory=False, units=50)
    free = replace(problem, min_throughput=0.0)
    points = pareto(free, usual_floors(problem.batch / 2.0, 6), time_limit_s=60)
    assert points
    front = [(point.throughput_samples_per_s, point.price_per_hour) for point in points if point.is_on_front]
    assert front == sorted(set(front))  # faster is dearer all along it
    assert [price for _, price in front] == sorted({price for _, price in front})
    for point in points:
        assert point.throughput_samples_per_s >= point.floor * (1 - 1e-6)
        assert any(rate >= point.throughput_samples_per_s and price <= point.price_per_hour for rate, price in front)


def test_floors_lie_around_the_throughput_and_hold_it():
    floors = usual_floors(50.0, 3)
    assert floors == pytest.approx([5.0, 50.0, 50.0, 500.0])


def test_ticks_are_round_and_end_within():
    assert ticks(10) == [0, 2, 4, 6, 8, 10]
    assert ticks(0.0031) == pytest.approx([0, 0.001, 0.002, 0.003])
    assert ticks(0) == [0.0]


def test_the_end_of_a_dotted_name_is_kept():
    assert ending("encoder.layers.12.attention", 90) == "…12.attention"
    assert ending("head", 90) == "head"


@pytest.mark.skipif(not can_draw_png(), reason="resvg-py is not installed")
def test_a_picture_is_drawn_as_png_at_double_size():
    drawn = SMALL.pictures()[0]
    png = to_png(drawn)
    assert png.startswith(b"\x89PNG\r\n")
    assert int.from_bytes(png[16:20], "big") == 2 * WIDTH
