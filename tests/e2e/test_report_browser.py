"""The page in a real browser: it draws, a layer is chosen and told of, nothing is complained of, no name does harm."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import browser
import pytest
from commands import heterps
from large_plan import hostile_findings, large_findings
from light_models import path
from plans import PLAN
from search_states import first_trial_runs, searched_state
from trace_format import read_trace

from heterps_compile.plan.served_tables import ParameterServers
from heterps_compile.plan_diff.compare_plans import diff
from heterps_compile.report.findings import Findings
from heterps_compile.report.html import html_report
from heterps_compile.report.tuning_page import tuning_page

pytestmark = [
    pytest.mark.slow,  # a compilation with all its pictures, and a browser
    pytest.mark.skipif(bool(browser.missing()), reason=browser.missing() or "all there"),
]

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


@pytest.mark.component("browser")
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
  const shown = (e) => e.getClientRects().length > 0 && getComputedStyle(e).visibility === "visible";
  const all = (css, root = document) => [...root.querySelectorAll(css)].filter(shown);
  const told = (e) => e.textContent.trim().slice(0, 60);
  const box = (e) => e.getBoundingClientRect();
  const stretches = (line) => {
    const d = line.getAttribute("d"), at = line.getScreenCTM(), points = [];
    for (const [, kind, x, y] of d.matchAll(/([MLHV])([-\\d.]+)(?:[ ,]([-\\d.]+))?/g)) {
      const [x0, y0] = points.at(-1) || [0, 0];
      points.push(kind === "H" ? [+x, y0] : kind === "V" ? [x0, +x] : [+x, +y]);
    }
    return points.map(([x, y]) => new DOMPoint(x, y).matrixTransform(at))
      .slice(1).map((p, i, rest) => [i ? rest[i - 1] : new DOMPoint(...points[0]).matrixTransform(at), p]);
  };
  const through = ([a, b], r) =>
    Math.min(a.x, b.x) < r.right && Math.max(a.x, b.x) > r.left &&
    Math.min(a.y, b.y) < r.bottom - 2 && Math.max(a.y, b.y) > r.top + 2;
  const words = all("svg text"), wires = all("#layers .wire .edge"), lines = wires.flatMap(stretches);
  const overlapping = all("svg").flatMap((picture) => {
    const found = all("text", picture).map((t) => [t, box(t)]).sort((a, b) => a[1].top - b[1].top), pairs = [];
    found.forEach(([one, a], i) => {
      for (const [two, b] of found.slice(i + 1)) {
        if (b.top > a.bottom - 3) break;
        if (a.left < b.right - 1 && b.left < a.right - 1) pairs.push(`${told(one)} | ${told(two)}`);
      }
    });
    return pairs;
  });
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (one, two) => {
    const [low, high] = [light(one), light(two)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const seen = (colour) => !/rgba\\(.*, 0\\)|none|transparent/.test(colour);
  const ground = (e) => {
    const colour = getComputedStyle(e).backgroundColor;
    return seen(colour) ? colour : ground(e.parentElement);
  };
  const drawnOn = (t) => {
    const { x, y, width, height } = box(t), [cx, cy] = [x + width / 2, y + height / 2];
    const below = all("rect", t.ownerSVGElement).filter((r) => r.compareDocumentPosition(t) & 4).filter((r) => {
      const b = box(r);
      return b.left <= cx && cx <= b.right && b.top <= cy && cy <= b.bottom && seen(getComputedStyle(r).fill);
    });
    return getComputedStyle(below.at(-1)).fill;
  };
  const pale = [...new Map([
    ...all("body *").filter((e) => !e.closest("svg, script, style"))
      .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))
      .map((e) => [e, ratio(getComputedStyle(e).color, ground(e))]),
    ...(words.length < 400 ? words : words.slice(0, 100)).map((t) => [t, ratio(getComputedStyle(t).fill, drawnOn(t))]),
  ])].filter(([, contrast]) => contrast < 4.5).map(([e, contrast]) => `${told(e)} ${contrast.toFixed(2)}`);
  return {
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    cut: words.filter((t) => !inside(box(t), box(t.ownerSVGElement))).map(told),
    out: all("#layers .layer")
      .flatMap((l) => all("text", l).filter((t) => !all("rect", l).some((r) => inside(box(t), box(r))))).map(told),
    crossed: all("#layers svg text").filter((t) => lines.some((l) => through(l, box(t)))).map(told),
    overlapping,
    empty: all("section, aside, .tiles div")
      .filter((s) => s.innerText.trim().length < 12 || box(s).height < 40).map((s) => s.id),
    pale,
    tiny: words.filter((t) => parseFloat(getComputedStyle(t).fontSize) * t.getScreenCTM().a < 10).map(told),
    wires: wires.length,
  };
"""


@pytest.mark.parametrize(("notebook", "scheme"), [("light", "light"), ("dark", "dark"), ("none", "normal")])
def test_two_plans_in_a_notebook_take_its_theme_and_change_nothing_of_it(window, tmp_path, notebook, scheme):
    plans = PLAN._repr_html_() + large_findings(20, 3).plan._repr_html_()
    theme = f' data-jp-theme-light="{str(notebook == "light").lower()}"' if notebook != "none" else ""
    page = f"<!doctype html><title>n</title><style>pre{{font-family:serif}}</style><body{theme}>{plans}"
    window.open(write(tmp_path, f'{page}<p id="other">text<img alt="x"><pre>their own</pre></p>'))
    found = window.run(
        """
        const of = (css, property) => [...document.querySelectorAll(css)].map((e) => getComputedStyle(e)[property]);
        return [of(".heterps-compile img", "colorScheme"), of(".heterps-compile pre", "fontFamily"),
          of("body > p img", "colorScheme"), of("body > pre", "fontFamily"), document.querySelectorAll("[id]").length];
        """
    )
    assert found[0] == [scheme, scheme]
    assert all("monospace" in family for family in found[1])
    assert found[2:] == [["normal"], ["serif"], 1]
    assert window.console() == []


def fails_at_times(trial: int, attempt: int) -> str:
    return "worker gpu-1 was lost" if trial % 9 == 1 and attempt == 0 else "no memory" if trial % 11 == 3 else ""


@pytest.fixture(scope="module")
def pages(compiled: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return pages of plans of every shape."""
    folder, servers = tmp_path_factory.mktemp("pages"), large_findings(40, 4, training=True)
    plan = replace(servers.plan, parameter_servers=ParameterServers(3, 0.12))
    drawn = {
        "two plans": two_plans(),
        "one layer": html_report(large_findings(1, 1)),
        "cells": html_report(large_findings(240, 7)),
        "servers": html_report(replace(servers, plan=plan)),
        "search": tuning_page(searched_state(fails=fails_at_times, resumes_at=20, stop_after=50)),
        "search that failed": tuning_page(searched_state(fails=lambda *_: "no loss", ends="all failed")),
        "first trial": tuning_page(first_trial_runs()),
    }
    for name, page in drawn.items():
        (folder / f"{name}.html").write_text(page, "utf-8")
    return {"squeezenet": compiled / "plan.html"} | {name: folder / f"{name}.html" for name in drawn}


def test_what_is_drawn_can_be_read_wherever_it_is_looked_at(window, pages):
    """Words lie in their boxes and apart, stand out, are no smaller than 10 pixels, and no line crosses one."""
    wrong = []
    looks = [(name, width, dark) for name in pages for width, dark in ((400, False), (1280, True))]
    looks += [("squeezenet", width, False) for width in (600, 800, 900, 1100, 2560)]
    for name, width, dark in looks:
        window.size(width)
        window.dark(wanted=dark)
        window.open(pages[name])
        measured = window.run(MEASURED)
        assert measured.pop("wires") >= 20 * (name == "squeezenet")
        wrong += [(name, width, *item) for item in measured.items() if item[1]]
    window.dark(wanted=False)
    window.size(1400)
    assert wrong == []
