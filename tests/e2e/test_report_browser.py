"""The page in a real browser: it draws, a layer is chosen and told of, nothing is complained of, no name does harm."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import browser
import pytest
from commands import heterps
from large_plan import hostile_findings, large_findings
from light_models import path
from trace_format import read_trace

from heterps_compile.plan_diff.compare_plans import diff
from heterps_compile.report.findings import Findings
from heterps_compile.report.html import html_report

pytestmark = pytest.mark.skipif(bool(browser.missing()), reason=browser.missing() or "all there")

ENTER, RIGHT, DOWN, END = "\ue007", "\ue014", "\ue015", "\ue010"
FOCUSED = "return document.activeElement.dataset.layer"


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    with browser.browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with everything that a compilation draws."""
    folder = tmp_path_factory.mktemp("compiled")
    words = ["--min-throughput", "2000", "--no-verify", "--method", "exact", "-q"]
    drawn = ["--report", "plan.html", "--plots", "pictures", "--trace", "step.json"]
    done = heterps(path("squeezenet"), *words, *drawn, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def write(folder: Path, page: str) -> Path:
    file = folder / "page.html"
    file.write_text(page, "utf-8")
    return file


def test_a_compilation_writes_page_pictures_and_trace(compiled):
    names = {"layers", "timeline", "memory-over-time", "memory", "price", "pareto", "methods"}
    assert {file.stem for file in (compiled / "pictures").glob("*.svg")} == names
    events = read_trace((compiled / "step.json").read_text())
    assert {event["ph"] for event in events} == {"M", "X", "C", "s", "f"}


def test_the_page_shows_every_picture_and_complains_of_nothing(window, compiled):
    window.open(compiled / "plan.html")
    shown = window.run(
        "return [...document.querySelectorAll('main section')].filter(s => s.offsetHeight > 40).map(s => s.id)"
    )
    assert shown == [
        *("layers", "timeline", "memory-over-time", "memory", "price", "pareto", "methods"),
        *("stages", "totals"),
    ]
    assert window.console() == []


def test_a_layer_that_is_clicked_is_explained(window, compiled):
    window.open(compiled / "plan.html")
    window.click('.layer[data-layer="2"]')
    told = window.text("#panel")
    name = window.run("return JSON.parse(document.getElementById('facts').textContent).layers[2].name")
    assert told.startswith(name)
    for word in ("FLOP a byte", "because", "v100", "cpu-core", "per million", "Reads from", "Read by"):
        assert word in told
    assert window.run("return document.querySelectorAll('.chosen-edge').length") >= 2
    assert window.run("return document.querySelectorAll('.for-wide [aria-pressed=true]').length") == 1
    assert window.console() == []


def test_a_layer_is_reached_and_explained_by_keyboard_alone(window, compiled):
    window.open(compiled / "plan.html")
    first = '.layer[data-layer="0"]'
    window.run("document.querySelector(arguments[0]).focus()", first)
    window.type(first, RIGHT)
    assert window.run(FOCUSED) == "1"
    window.type('.layer[data-layer="1"]', DOWN)
    assert int(window.run(FOCUSED)) > 1
    reached = window.run(FOCUSED)
    window.type(f'.layer[data-layer="{reached}"]', ENTER)
    assert window.text("#panel h2")
    assert window.run("return document.querySelectorAll('.for-wide .layer[tabindex=\"0\"]').length") == 1


def test_a_neighbour_in_the_panel_is_chosen_by_its_button(window, compiled):
    window.open(compiled / "plan.html")
    window.click('.layer[data-layer="0"]')
    name = window.text("#panel li button").rpartition(" (")[0]
    window.click("#panel li button")
    assert window.text("#panel h2") == name


def test_a_layer_is_found_by_a_part_of_its_name(window, tmp_path):
    window.open(write(tmp_path, html_report(large_findings(1500, 12))))
    window.type("#find", "encoder.100.block.7")
    assert window.text("#found") == "encoder.100.block.7.linear"
    window.type("#find", ENTER)
    assert window.text("#panel h2") == "encoder.100.block.7.linear"
    assert window.console() == []


def test_1500_layers_are_drawn_with_few_elements(window, tmp_path):
    window.open(write(tmp_path, html_report(large_findings(1500, 12, training=True))))
    assert window.run("return document.querySelectorAll('.for-wide .layer').length") == 1500
    assert window.run("return document.getElementsByTagName('*').length") < 8000
    assert window.run("return document.querySelectorAll('.layer text').length") == 0


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_from_its_ground_in_dark_and_light(window, tmp_path, dark):
    window.dark(wanted=dark)
    window.open(write(tmp_path, html_report(large_findings(30, 3, training=True))))
    contrasts = window.run(
        """
        const light = (colour) => {
          const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map((v) => v / 255)
            .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
          return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const ratio = (one, two) => {
          const [low, high] = [light(one), light(two)].sort((a, b) => a - b);
          return (high + 0.05) / (low + 0.05);
        };
        const of = (css, property) => getComputedStyle(document.querySelector(css))[property];
        return {
          page: ratio(of("body", "color"), of("body", "backgroundColor")),
          soft: ratio(of(".hint", "color"), of("section", "backgroundColor")),
          chip: ratio(of("svg .layer text.ink", "fill"), of("svg .layer rect", "fill")),
          kind: ratio(of("svg .layer text.soft", "fill"), of("svg .layer rect", "fill")),
          piece: ratio(of("#timeline text.paper", "fill"), of("#timeline rect.p1", "fill")),
        };
        """
    )
    window.dark(wanted=False)
    assert {name: ratio for name, ratio in contrasts.items() if ratio < 4.5} == {}


def two_plans() -> str:
    """Return the page of two plans of 20 layers, one of which moved."""
    newer = large_findings(20, 3, training=True).plan
    first, second, *rest = newer.stages
    before = (replace(first, layers=first.layers[:-1]), replace(second, layers=(first.layers[-1], *second.layers)))
    older = replace(newer, stages=(*before, *rest))
    return html_report(Findings(newer, older=older, changes=diff(older, newer)))


def test_a_page_of_two_plans_shows_what_changed_and_a_changed_layer_tells_it(window, tmp_path):
    window.open(write(tmp_path, two_plans()))
    shown = window.run("return [...document.querySelectorAll('main section')].map(s => s.id)")
    assert shown[:4] == ["changes", "layers", "layers-before", "numbers"]
    window.type("#find", "was on")
    window.type("#find", ENTER)
    assert window.text("#panel").endswith("stage 0, on v100, was on cpu-core")
    assert window.run("return document.querySelectorAll('#layers-before [role=button]').length") == 0
    assert window.console() == []


@pytest.mark.parametrize("page", ["plan", "two plans"])
def test_the_tab_key_goes_from_top_to_bottom_and_through_the_layers_once(window, tmp_path, page):
    window.open(write(tmp_path, two_plans() if page == "two plans" else html_report(large_findings(20, 3))))
    window.run("document.querySelector(arguments[0]).focus()", at(3))
    window.type(at(3), ENTER)
    order = window.run(
        """
        const all = [...document.querySelectorAll("a[href], button, input, [tabindex]")];
        return all.filter((e) => e.tabIndex === 0 && e.getClientRects().length)
          .map((e) => e.dataset.layer ? "layer" : e.id || e.getAttribute("class") || e.tagName.toLowerCase());
        """
    )
    assert order[0] == "skip"
    links = window.run("return document.querySelectorAll('nav a').length")
    assert order[1:] == ["a"] * links + ["find", "layer"]


@pytest.mark.parametrize("page", ["plan", "two plans"])
def test_what_can_be_reached_or_seen_as_a_picture_has_a_name(window, tmp_path, page):
    window.open(write(tmp_path, two_plans() if page == "two plans" else html_report(large_findings(20, 3))))
    nameless = window.run(
        """
        const name = (e) => e.getAttribute("aria-label") || e.labels?.[0]?.textContent || e.textContent.trim()
          || document.getElementById(e.getAttribute("aria-labelledby"))?.textContent;
        return [...document.querySelectorAll("a, button, input, [tabindex], [role], section, aside, nav")]
          .filter((e) => !name(e)).map((e) => e.outerHTML.slice(0, 80));
        """
    )
    assert nameless == []
    assert window.run("return [...document.querySelectorAll('h1, h2, h3')].map(h => h.tagName)[0]") == "H1"
    assert window.run("return document.documentElement.lang") == "en"


def test_hostile_names_stay_text(window, tmp_path):
    window.open(write(tmp_path, html_report(hostile_findings())))
    for index in range(8):
        window.run("document.querySelector(arguments[0]).dispatchEvent(new Event('click', {bubbles: true}))", at(index))
        assert window.text("#panel h2")
    title = window.run("return document.title")
    assert title.startswith("</script><script>")
    assert window.run("return document.images.length + document.scripts.length") == 2
    assert window.console() == []


def at(index: int) -> str:
    return f'.layer[data-layer="{index}"]'


MEASURED = """
  const inside = (a, b) =>
    a.left >= b.left - 1 && a.right <= b.right + 1 && a.top >= b.top - 1 && a.bottom <= b.bottom + 1;
  const shown = (e) => e.getClientRects().length > 0;
  const all = (css, root = document) => [...root.querySelectorAll(css)].filter(shown);
  const told = (e) => e.textContent.slice(0, 60);
  const box = (e) => e.getBoundingClientRect();
  const through = (line, rect) => {
    const far = line.getTotalLength(), at = line.getScreenCTM();
    for (let i = 0; i <= far; i += 1) {
      const { x, y } = line.getPointAtLength(i).matrixTransform(at);
      if (x > rect.left && x < rect.right && y > rect.top + 2 && y < rect.bottom - 2) return true;
    }
    return false;
  };
  const words = all("svg text"), wires = all("#layers .wire .edge");
  return {
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    cut: words.filter((t) => !inside(box(t), box(t.ownerSVGElement))).map(told),
    out: all("#layers .layer")
      .flatMap((l) => all("text", l).filter((t) => !all("rect", l).some((r) => inside(box(t), box(r))))).map(told),
    crossed: all("#layers svg text").filter((t) => wires.some((w) => through(w, box(t)))).map(told),
    empty: all("section, aside").filter((s) => s.innerText.trim().length < 12 || box(s).height < 40).map((s) => s.id),
    lines: wires.length,
  };
"""


@pytest.mark.slow  # a point on every pixel of every line, at four widths
@pytest.mark.parametrize("width", [400, 800, 1280, 2560])
def test_every_word_lies_in_its_box_no_line_crosses_one_and_nothing_is_cut_off(window, compiled, width):
    window.size(width)
    window.open(compiled / "plan.html")
    measured = window.run(MEASURED)
    window.size(1400)
    assert measured.pop("lines") > 20
    assert measured == {"wide": 0, "cut": [], "out": [], "crossed": [], "empty": []}
