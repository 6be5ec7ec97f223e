from dataclasses import dataclass, fields, replace

import pytest
from drafts import DRAFT, renamed

from heterps_compile.passes.contract import Draft
from heterps_compile.report.draft_text import SECTIONS, draft_text


@dataclass(frozen=True)
class Step:
    name: str
    ensures: tuple[str, ...]
    requires: tuple[str, ...] = ()

    def __call__(self, draft: Draft) -> Draft:
        return draft


def test_every_field_that_a_pass_can_fill_in_has_its_text():
    given = {"graph", "cluster", "request", "measurements"}
    assert set(SECTIONS) == {field.name for field in fields(Draft)} - given


@pytest.mark.parametrize("name", SECTIONS)
def test_every_field_reads_well(golden, name):
    golden(f"report/draft_{name}.txt", draft_text(Step("some-pass", (name,)), DRAFT))


def test_stages_without_replicas_are_shown_without_their_numbers():
    bare = replace(DRAFT, stages=tuple(replace(stage, replicas=0) for stage in DRAFT.stages))
    assert draft_text(Step("fuse-stages", ("stages",)), bare) == (
        "after fuse-stages\n  stage 0  cpu   emb\n  stage 1  v100  fc1 fc2\n"
    )


def test_the_time_a_search_took_changes_nothing():
    slower = replace(DRAFT, search=replace(DRAFT.search, search_s=99.0))
    step = Step("place-layers", ("search",))
    assert draft_text(step, slower) == draft_text(step, DRAFT)


def test_names_are_only_names():
    text = draft_text(Step("p", ("layers", "costs", "stages")), renamed("\x1b[2J\nafter nothing"))
    assert text.replace("\n", "").isprintable()
    assert [line for line in text.splitlines() if line.startswith("after")] == ["after p"]
