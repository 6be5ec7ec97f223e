"""The page of a search: everything is there, nothing is markup but ours, words stand apart, 2,000 trials stay small."""

import io
import json
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from drawn_words import SVG, outside, overlapping, parsed, words
from search_states import HOSTILE, RECORD, Simulated, first_trial_runs, searched_state

from heterps_compile.console import make_console
from heterps_compile.errors import InputError
from heterps_compile.report.pictures.importance_bars import importance_bars
from heterps_compile.report.pictures.parallel_axes import parallel_axes
from heterps_compile.report.pictures.search_curves import best_value, learning_curves
from heterps_compile.report.pictures.svg import NARROW, WIDTH, Picture
from heterps_compile.report.pictures.worker_gantt import worker_gantt
from heterps_compile.report.tuning_page import tuning_page
from heterps_compile.tuning.board import print_board
from heterps_compile.tuning.compute_classes import ComputeClass
from heterps_compile.tuning.importance import importances
from heterps_compile.tuning.journal import Event, Reported, Told
from heterps_compile.tuning.search_state import SearchState, state_of
from heterps_compile.tuning.space_file import space_of_text

MEMORY = "the trial ended with exit code 1: CUDA out of memory"
SECTIONS = [
    "best-configurations",
    "best-value",
    "learning-curves",
    "rungs",
    "importance",
    "parallel-axes",
    "machines",
    "parts",
]


def fails(trial: int, attempt: int) -> str:
    if trial % 11 == 3:
        return MEMORY
    return "worker gpu-1 was lost" if trial % 9 == 1 and attempt == 0 else ""


def hostile() -> SearchState:
    parameters = "".join(f"m{i} = {{ choice = {json.dumps(HOSTILE[i : i + 3])} }}\n" for i in range(4))
    record = replace(
        RECORD,
        space_name=f"{HOSTILE[0]}.toml",
        space_text=f"[train]\nlr = {{ float = [1e-4, 0.1], log = true }}\n[model]\n{parameters}",
        metric=HOSTILE[1],
        method="random",
        rule=HOSTILE[4],
        engine=HOSTILE[5],
        currency=HOSTILE[5],
        classes=tuple(replace(of, name=name) for of, name in zip(RECORD.classes, HOSTILE[3:5], strict=True)),
        parts=HOSTILE[:2],
        arguments={name[:40]: name for name in HOSTILE},
        versions={HOSTILE[0]: HOSTILE[1]},
        started_at=HOSTILE[2],
    )
    return searched_state(
        record,
        value=lambda config, fidelity: float(config["train.lr"]) - 0.1 / fidelity,
        fails=lambda trial, _: HOSTILE[trial % 7] if trial % 5 == 0 else "",
        stop_after=40,
    )


def many_parameters() -> SearchState:
    names = [f"layer_{i}_of_the_very_long_encoder_width" for i in range(40)]
    text = "[model]\n" + "\n".join(f"{name} = {{ integer = [1, {8 + i}] }}" for i, name in enumerate(names))
    record = replace(RECORD, space_text=text, parts=("all",), trials=120)
    return searched_state(record, value=lambda config, _: float(config[f"model.{names[0]}"]), ends="done")


def two_thousand() -> SearchState:
    classes = (
        ComputeClass("gpu-a100", 10, 16e9, 2.4, 14e12, 1),
        ComputeClass("16 cores", 40, 16e9, 0.5, 5e11, 16),
        ComputeClass("4 cores", 100, 16e9, 0.1, 1e11, 4),
    )
    return searched_state(replace(RECORD, trials=2000, classes=classes), fails=fails, ends="2,000 trials were run")


def outliers() -> SearchState:
    record = replace(RECORD, metric="loss", is_maximised=False)
    return searched_state(record, value=lambda c, f: 1 / f if c["train.lr"] < 0.05 else 1e308, ends="done")


MAKERS = {
    "usual": lambda: searched_state(fails=fails, resumes_at=20, stop_after=50),
    "one": lambda: searched_state(replace(RECORD, trials=1, method="random"), ends="1 trial was run"),
    "first runs": first_trial_runs,
    "empty": lambda: state_of(RECORD, [], folder="RUN"),
    "all failed": lambda: searched_state(replace(RECORD, trials=20), fails=lambda *_: MEMORY, ends="all failed"),
    "equal": lambda: searched_state(value=lambda *_: 0.5, ends="done"),
    "outliers": outliers,
    "many parameters": many_parameters,
    "hostile": hostile,
    "2,000 trials": two_thousand,
}


@cache
def state(name: str) -> SearchState:
    return MAKERS[name]()


@cache
def page(name: str) -> str:
    return tuning_page(state(name))


def pictures(name: str, width: float) -> list[Picture]:
    of = state(name)
    space = space_of_text(of.record.space_name, of.record.space_text)
    drawn = [
        best_value(of, width=width),
        learning_curves(of, width=width),
        importance_bars(importances(of, space), width=width),
        parallel_axes(of, space, width=width),
        worker_gantt(of, width=width),
    ]
    return [each for each in drawn if each is not None]


class Elements(HTMLParser):
    """Collects what a browser would make of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.sections: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self.sections += [value or "" for name, value in attrs if tag == "section" and name == "id"]


def told(page: str) -> str:
    return " ".join(re.sub(r"<style>.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL).split())


def test_the_page_has_a_section_of_everything_that_there_is_to_tell():
    assert Elements(page("usual")).sections == [*SECTIONS, "failures", "search"]
    assert Elements(page("one")).sections == [*SECTIONS, "search"]
    assert Elements(page("first runs")).sections == [
        "best-configurations",
        "rungs",
        "importance",
        "machines",
        "parts",
        "search",
    ]
    assert Elements(page("empty")).sections == ["best-configurations", "importance", "machines", "parts", "search"]
    without = [name for name in SECTIONS if name not in ("best-value", "learning-curves")]
    assert Elements(page("all failed")).sections == [*without, "failures", "search"]


@pytest.mark.parametrize("name", list(MAKERS))
def test_a_page_fetches_nothing_and_runs_nothing(name):
    found = Elements(page(name))
    links = [value for key, value in found.attributes if key in ("src", "href", "action", "data", "srcset")]
    assert all(link.startswith("#") for link in links)
    assert {"script", "img", "link", "iframe"} & set(found.tags) == set()
    assert [key for key, _ in found.attributes if key.startswith("on")] == []
    assert "default-src &#39;none&#39;; style-src &#39;unsafe-inline&#39;" in page(name)
    assert "url(" not in page(name)


def test_hostile_names_are_text():
    assert not {"\x1b", "\u202e", "\x00"} & set(page("hostile"))
    assert "{{ 7 * 7 }}" in told(page("hostile"))
    assert max(map(len, told(page("hostile")).split())) <= 600
    assert set(Elements(page("hostile")).tags) <= {*Elements(page("usual")).tags}


@pytest.mark.parametrize("width", [NARROW, WIDTH])
@pytest.mark.parametrize("name", list(MAKERS))
def test_words_of_pictures_stand_apart_and_none_is_cut_off(name, width):
    for drawn in pictures(name, width):
        root = parsed(drawn)
        assert root.get("aria-label")
        assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
            *("svg", "style", "rect", "text", "line", "path", "title", "circle")
        }
        found = words(root)
        assert outside(root, found) == [], drawn.name
        assert overlapping(found) == [], drawn.name


@pytest.mark.parametrize("name", list(MAKERS))
def test_what_is_drawn_lies_in_its_picture(name):
    for drawn in pictures(name, WIDTH):
        root = parsed(drawn)
        for circle in root.iter(f"{SVG}circle"):
            assert 0 <= float(circle.get("cx")) <= WIDTH
            assert 0 <= float(circle.get("cy")) <= drawn.height
        for path in root.iter(f"{SVG}path"):
            assert "nan" not in path.get("d")
            assert max(map(float, re.findall(r"[-\d.]+", path.get("d")))) <= max(WIDTH, drawn.height)
        for rect in list(root.iter(f"{SVG}rect"))[1:]:
            assert float(rect.get("x")) + float(rect.get("width")) <= WIDTH


def test_the_gantt_has_a_piece_for_every_attempt():
    of = state("usual")
    titles = [title.text or "" for title in parsed(worker_gantt(of)).iter(f"{SVG}title")]
    attempts = [(trial, attempt) for trial in of.trials for attempt in trial.attempts]
    assert len(titles) == len(attempts)
    assert sum(", failed, " in title for title in titles) == sum(bool(attempt.reason) for _, attempt in attempts)
    assert sum(", runs, " in title for title in titles) == 5
    assert sum(", cut off, " in title for title in titles) == 5  # one worker had just ended its trial
    assert sum(", ended well, " in title for title in titles) == 45


def test_a_failed_attempt_is_told_from_others_without_colours():
    heights = {
        (rect.get("class"), rect.get("height"))
        for rect in parsed(worker_gantt(state("usual"))).iter(f"{SVG}rect")
        if rect.get("rx") not in (None, "3")  # squares of the legend
    }
    assert {height for kind, height in heights if kind in ("p1", "p3")} == {"13.0"}
    assert {height for kind, height in heights if kind in ("p0", "p2")} == {"20.0"}


def test_parameters_with_one_value_are_named_and_not_drawn():
    assert "One value alone: train.epochs" in told(page("usual"))
    axes = parsed(parallel_axes(state("usual"), space_of_text("space.toml", RECORD.space_text)))
    assert "train.epochs" not in [word for word, _ in words(axes)]


def test_what_is_left_out_is_said():
    assert "16 more parameters not drawn" in told(page("many parameters"))
    assert "10 more parameters, which tell less, are not drawn" in told(page("many parameters"))
    for left_out in ("1,283 more curves not drawn", "more configurations not drawn", "110 more workers"):
        assert left_out in told(page("2,000 trials"))


def test_two_thousand_trials_make_a_page_under_one_megabyte():
    assert len(page("2,000 trials").encode()) < 1_000_000
    assert page("2,000 trials").count("<circle") < 5_000


def test_a_page_is_a_function_of_the_journal():
    of = MAKERS["usual"]()
    assert tuning_page(of) == page("usual")


def test_a_configuration_of_another_space_is_refused_by_its_trial():
    of = state("usual")
    first = replace(of.trials[0], config={**of.trials[0].config, "model.depth": 7})
    with pytest.raises(InputError, match=r"\b0\b.*RUN.*'model.depth'.*\b7\b"):
        tuning_page(replace(of, trials=(first, *of.trials[1:])))


LARGEST = 1.7e308


def stretched(event: Event, times: float, value: float) -> Event:
    """Return an event of a search that took so many times as long, and reached a value."""
    if isinstance(event, Told | Reported):
        event = replace(event, value=value if event.trial % 2 else -value)
    return replace(event, at_s=event.at_s * times)


@pytest.mark.parametrize("times", [0.0, 1e-300, 2.5e305])
@pytest.mark.parametrize("value", [0.0, 5e-324, LARGEST])
def test_the_largest_and_the_least_numbers_of_a_journal_are_shown(times, value):
    dear = tuple(replace(each, price_per_hour=LARGEST) for each in RECORD.classes)
    simulated = Simulated(replace(RECORD, trials=40, classes=dear))
    simulated.run()
    of = state_of(simulated.record, [stretched(event, times, value) for event in simulated.events])
    assert not re.search(r"\bnan\b", told(tuning_page(of)))
    out = io.StringIO()
    print_board(make_console(out, 80), of)
    assert "nan" not in out.getvalue()


def test_misfits_and_a_torn_journal_are_told():
    of = replace(state("one"), misfits=(({"model.depth": 6}, "it needs 90 GiB"),), is_torn=True)
    words = told(tuning_page(of))
    assert "Without a machine" in words
    assert "it needs 90 GiB model.depth 6" in words
    assert "half a line at its end" in words


def test_every_picture_is_a_file_of_its_own_too():
    for drawn in pictures("usual", WIDTH):
        assert ET.fromstring(drawn.svg).get("aria-label") == drawn.label  # noqa: S314 - our own text
