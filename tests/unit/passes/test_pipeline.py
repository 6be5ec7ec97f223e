"""The steps of a compilation: what fits what, and what is said where it does not."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import reviewed
from drafts import DRAFT, GRAPH
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heterps_compile.cluster.load import load_cluster
from heterps_compile.errors import HeterpsError, InputError, PlugInError, UnknownNameError
from heterps_compile.passes import pipeline
from heterps_compile.passes.choose_schedule import ChooseSchedule
from heterps_compile.passes.contract import check_wiring, steps_of
from heterps_compile.passes.drafts import (
    Draft,
    Emitted,
    Fused,
    Layered,
    Placed,
    Posed,
    Provisioned,
    Scheduled,
    advance,
    filled_in,
)
from heterps_compile.passes.group_layers import GroupLayers
from heterps_compile.passes.pipeline import (
    DEFAULT,
    as_pipeline,
    parse_pipeline,
    pass_text,
    pipeline_text,
    run_passes,
    run_to,
)
from heterps_compile.passes.place_layers import PlaceLayers
from heterps_compile.plan.request import Request
from heterps_compile.report.draft_text import draft_text

OPENED = Draft(graph=GRAPH, cluster=load_cluster("heterps-paper"), request=Request(method="greedy"))


@dataclass(frozen=True, slots=True)
class Reverse:
    name: ClassVar[str] = "reverse"

    def __call__(self, draft: Layered) -> Layered:
        return advance(draft, Layered)


@dataclass(frozen=True, slots=True)
class Lies:
    name: ClassVar[str] = "lies"

    def __call__(self, draft: Draft) -> Fused:
        return draft  # type: ignore[return-value] # what it does wrong


@dataclass(frozen=True, slots=True)
class Silent:
    name: ClassVar[str] = "silent"

    def __call__(self, draft):  # type: ignore[no-untyped-def] # what it does wrong
        return draft


def test_the_default_passes_go_from_a_graph_to_stages() -> None:
    check_wiring(Draft, DEFAULT, Emitted)
    assert [steps_of(step)[1].__name__ for step in DEFAULT] == [
        "Layered", "Annotated", "Posed", "Placed", "Fused", "Provisioned", "Agreed", "Scheduled", "Emitted",
    ]  # fmt: skip


def test_a_pass_that_cannot_have_what_it_needs_is_refused_before_anything_runs() -> None:
    seen: list[str] = []
    with pytest.raises(HeterpsError) as told:
        run_passes(OPENED, [GroupLayers(), ChooseSchedule()], Scheduled, lambda step, _: seen.append(step.name))
    assert re.search("'choose-schedule'.*Provisioned.*Layered.*group-layers", str(told.value))
    assert not seen


def test_a_schedule_is_not_chosen_without_replicas() -> None:
    with pytest.raises(HeterpsError, match=r"'choose-rules'.*Provisioned"):
        check_wiring(Draft, [step for step in DEFAULT if step.name != "provision"], Emitted)


def test_passes_that_end_too_early_are_refused() -> None:
    with pytest.raises(HeterpsError, match="Emitted"):
        check_wiring(Draft, [GroupLayers()], Emitted)


def test_a_pass_that_changes_the_layers_unmakes_what_was_made_of_them() -> None:
    assert type(Reverse()(DRAFT)) is Layered
    with pytest.raises(HeterpsError, match=r"'place-layers'.*Posed.*Layered"):
        check_wiring(Draft, [*DEFAULT[:3], Reverse(), *DEFAULT[3:]], Emitted)
    check_wiring(Draft, [DEFAULT[0], Reverse(), *DEFAULT[1:]], Emitted)


def test_a_pass_that_does_not_keep_or_say_its_types_is_named() -> None:
    with pytest.raises(PlugInError, match=r"'lies'.*Draft.*Fused"):
        run_passes(OPENED, [Lies()], Fused)
    with pytest.raises(PlugInError, match="'silent'"):
        run_passes(OPENED, [Silent()], Draft)


def test_the_default_passes_run_as_far_as_is_wanted_and_from_where_a_draft_is() -> None:
    posed = run_to(OPENED, Posed)
    assert type(posed) is Posed
    assert type(run_to(advance(DRAFT, Placed), Fused)) is Fused
    assert run_to(posed, Posed) is posed


def test_a_draft_at_a_later_step_keeps_what_it_has_and_no_more() -> None:
    bare = replace(DRAFT, measurements=None)
    earlier = advance(bare, Layered)
    assert (type(earlier), earlier.layers, hasattr(earlier, "costs")) == (Layered, DRAFT.layers, False)
    with pytest.raises(TypeError, match="search"):
        advance(earlier, Provisioned, stages=())


def test_a_pass_fills_in_what_its_steps_differ_in() -> None:
    assert [filled_in(*steps_of(step)) for step in DEFAULT] == [
        ("layers",), ("costs",), ("costs", "times", "problem", "open_tables"), ("search", "tried", "other"),
        ("stages",), ("stages", "parameter_servers", "tables"), ("stages",), ("stages", "schedule"),
        ("partition", "runnable"),
    ]  # fmt: skip
    assert filled_in(Draft, Posed) == ("layers", "costs", "times", "problem", "open_tables")
    assert filled_in(*steps_of(Reverse())) == ("layers",)


# ---- as text


@dataclass(frozen=True, slots=True)
class Tune:
    words: tuple[str, ...] = ()
    text: str = "plain"
    count: int = 3
    share: float = 0.5
    on: bool = False
    limit: int | None = 7
    name: ClassVar[str] = "tune"

    def __call__(self, draft: Layered) -> Layered:
        return advance(draft, Layered, layers=draft.layers)


class Entry:
    """An entry point of another package."""

    group, value, dist = "heterps_compile.passes", "theirs:Tune", None

    def __init__(self, name: str, made: object) -> None:
        self.name, self._made = name, made

    def load(self) -> object:
        return self._made


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package that brings passes."""
    brought = [Entry("tune", Tune), Entry("misnamed", Tune), Entry("silent", Silent)]
    monkeypatch.setattr(pipeline, "entry_points", lambda group: brought if group == "heterps_compile.passes" else [])


def test_the_default_passes_print_and_parse() -> None:
    text = (
        "group-layers,annotate-intensity,pose-problem,place-layers,fuse-stages,provision,choose-rules,choose-schedule,"
        "emit-stages"
    )
    assert pipeline_text(DEFAULT) == text
    assert parse_pipeline(text) == DEFAULT
    assert f"\n{text}\n" in (Path(__file__).parents[3] / "docs" / "search.md").read_text()


def test_options_that_are_not_the_defaults_are_printed() -> None:
    step = PlaceLayers("exact", seed=1)
    assert pass_text(step) == "place-layers{method=exact,seed=1}"
    assert parse_pipeline(" place-layers { seed = 1 , method = exact } ") == (step,)


TEXTS = st.text(max_size=8) | st.sampled_from(["none", "true", "a+b", "a,b", "{}", "=", '"', ""])


@pytest.mark.usefixtures("theirs")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(TEXTS, max_size=3).map(tuple), text=TEXTS, count=st.integers(), share=st.floats(allow_nan=False),
    on=st.booleans(), limit=st.none() | st.integers(), method=TEXTS,
)  # fmt: skip
def test_any_passes_print_and_parse(method: str, **options: Any) -> None:
    passes = (Tune(**options), PlaceLayers(method), GroupLayers())
    assert parse_pipeline(pipeline_text(passes)) == passes


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("grup-layers", UnknownNameError, "'grup-layers'.*'group-layers'"),
        ("group-layers,place-layers{methd=rl}", UnknownNameError, "'place-layers' 'methd'"),
        ("fuse-stages{x=1}", InputError, "'fuse-stages'"),
        ("place-layers{seed=1.5}", InputError, "place-layers{seed}.*'1.5'"),
        ("place-layers{proof_s=nan}", InputError, "place-layers{proof_s}.*'nan'"),
        ("tune{on=yes}", InputError, "tune{on}.*'yes'"),
        ("tune{count=none}", InputError, "tune{count}.*'none'"),
        ("tune{count=1,count=2}", InputError, "'count'.*'tune'"),
        ("tune{count=}", InputError, "'}'.*tune{count}"),
        ("tune{count=1", InputError, "end.*','"),
        ("tune tune", InputError, "'tune'.*','"),
        ("", InputError, "end.*name"),
        ("tune,,", InputError, "','.*pass"),
        ("tune;rm", InputError, "';rm'"),
        ("misnamed", PlugInError, "'tune'.*both"),
        ("silent", PlugInError, "'silent'"),
    ],
)
def test_a_text_that_names_no_passes_is_refused(text: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said.replace("{", r"\{").replace("}", r"\}") if error is InputError else said):
        parse_pipeline(text)


@pytest.mark.usefixtures("theirs")
def test_a_third_partys_pass_goes_in_by_name_and_the_plan_tells(capsys: pytest.CaptureFixture[str]) -> None:
    graph = replace(reviewed.graph(), family="onnx")
    steps = pipeline_text(DEFAULT).replace("group-layers,", "group-layers,tune{count=4},")
    seen: list[str] = []
    draft = Draft(graph=graph, cluster=reviewed.POOL, request=replace(reviewed.REQUEST, method="greedy"))
    made = run_passes(draft, as_pipeline(steps), Emitted, lambda step, _: seen.append(draft_text(step, _)))
    assert len(made.stages) >= 1
    assert [text.splitlines()[0] for text in seen][:3] == [
        "after group-layers", "after tune", "after annotate-intensity"
    ]  # fmt: skip
    assert seen[1].splitlines()[1:] == seen[0].splitlines()[1:]


@dataclass(frozen=True, slots=True)
class Breaks:
    name: ClassVar[str] = "breaks"

    def __call__(self, draft: Draft) -> Layered:
        raise ZeroDivisionError("by \x1b[2J zero")


def test_a_third_partys_pass_that_fails_is_named_without_a_traceback() -> None:
    with pytest.raises(PlugInError, match=r"'breaks'.*ZeroDivisionError"):
        run_passes(OPENED, [Breaks()], Layered)


def test_passes_that_make_no_plan_are_refused() -> None:
    with pytest.raises(HeterpsError, match="Emitted"):
        as_pipeline("group-layers")
    assert as_pipeline(None) is DEFAULT
