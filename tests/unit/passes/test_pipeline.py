"""The steps of a compilation: what fits what, and what is said where it does not."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from drafts import DRAFT, GRAPH

from heterps_compile.cluster.load import load_cluster
from heterps_compile.errors import HeterpsError, PlugInError
from heterps_compile.passes.choose_schedule import ChooseSchedule
from heterps_compile.passes.contract import check_wiring, run_passes, steps_of
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
from heterps_compile.passes.pipeline import DEFAULT, run_to
from heterps_compile.plan.request import Request

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
        "Layered", "Annotated", "Posed", "Placed", "Fused", "Provisioned", "Scheduled", "Emitted",
    ]  # fmt: skip


def test_a_pass_that_cannot_have_what_it_needs_is_refused_before_anything_runs() -> None:
    seen: list[str] = []
    with pytest.raises(HeterpsError) as told:
        run_passes(OPENED, [GroupLayers(), ChooseSchedule()], Scheduled, lambda step, _: seen.append(step.name))
    assert str(told.value) == (
        "pass 'choose-schedule' needs a draft that is Provisioned, and gets one that is Layered; passes before it: "
        "group-layers"
    )
    assert not seen


def test_a_schedule_is_not_chosen_without_replicas() -> None:
    with pytest.raises(HeterpsError, match="'choose-schedule' needs a draft that is Provisioned"):
        check_wiring(Draft, [step for step in DEFAULT if step.name != "provision"], Emitted)


def test_passes_that_end_too_early_are_refused() -> None:
    with pytest.raises(HeterpsError, match="a draft that is Emitted is wanted, and the passes group-layers give one"):
        check_wiring(Draft, [GroupLayers()], Emitted)


def test_a_pass_that_changes_the_layers_unmakes_what_was_made_of_them() -> None:
    assert type(Reverse()(DRAFT)) is Layered
    with pytest.raises(HeterpsError, match="'place-layers' needs a draft that is Posed, and gets one that is Layered"):
        check_wiring(Draft, [*DEFAULT[:3], Reverse(), *DEFAULT[3:]], Emitted)
    check_wiring(Draft, [DEFAULT[0], Reverse(), *DEFAULT[1:]], Emitted)


def test_a_pass_that_does_not_keep_or_say_its_types_is_named() -> None:
    with pytest.raises(PlugInError, match="pass 'lies' gave a Draft, and must give a Fused"):
        run_passes(OPENED, [Lies()], Fused)
    with pytest.raises(PlugInError, match="pass 'silent' does not say what it takes and gives; annotate its call"):
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
        ("layers",), ("costs",), ("times", "problem"), ("search", "tried"), ("stages",),
        ("stages", "parameter_servers"), ("schedule", "stages"), ("partition", "runnable"),
    ]  # fmt: skip
    assert filled_in(Draft, Posed) == ("layers", "costs", "times", "problem")
    assert filled_in(*steps_of(Reverse())) == ("layers",)
