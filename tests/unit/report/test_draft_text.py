from dataclasses import fields, replace

import pytest
from drafts import DRAFT, renamed

from heterps_compile.cost.served_tables import Table
from heterps_compile.passes.drafts import Draft, Emitted
from heterps_compile.passes.fuse_stages import FuseStages
from heterps_compile.passes.place_layers import PlaceLayers
from heterps_compile.plan.served_tables import ServedTables
from heterps_compile.report.draft_text import SECTIONS, draft_text, fields_text

SERVED = replace(
    DRAFT,
    tables=ServedTables(("emb.weight",), ("emb",), 3, 3 * 10**10, 8192, 0.001, 0.12),
    open_tables=(Table("other.weight", 10**9, {"emb": 4096}),),
)


def test_every_field_that_a_pass_can_fill_in_has_its_text():
    given = {field.name for field in fields(Draft)}
    assert set(SECTIONS) == {field.name for field in fields(Emitted)} - given


@pytest.mark.parametrize("name", SECTIONS)
def test_every_field_reads_well(golden, name):
    golden(f"report/draft_{name}.txt", fields_text("some-pass", [name], SERVED))


def test_stages_without_replicas_are_shown_without_their_numbers():
    bare = replace(DRAFT, stages=tuple(replace(stage, replicas=0) for stage in DRAFT.stages))
    assert draft_text(FuseStages(), bare) == ("after fuse-stages\n  stage 0  cpu   emb\n  stage 1  v100  fc1 fc2\n")


def test_the_time_a_search_took_changes_nothing():
    slower = replace(DRAFT, search=replace(DRAFT.search, search_s=99.0))
    assert draft_text(PlaceLayers(), slower) == draft_text(PlaceLayers(), DRAFT)


def test_names_are_only_names():
    text = fields_text("p", ("layers", "costs", "stages"), renamed("\x1b[2J\nafter nothing"))
    assert text.replace("\n", "").isprintable()
    assert [line for line in text.splitlines() if line.startswith("after")] == ["after p"]
