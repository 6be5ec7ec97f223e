"""A plan with tables on servers, as a run takes it."""

from dataclasses import replace

import pytest
import torch

import heterps_compile
from heterps_compile.columns.column import Medium, pairs
from heterps_compile.errors import RunError
from heterps_compile.examples import EXAMPLES
from heterps_compile.plan.readme import readme
from heterps_compile.plan.table_words import server_options_of
from heterps_compile.plan.total_columns import TOTALS, Summary
from heterps_compile.runtime.launch.prepare import prepare
from heterps_compile.runtime.launch.run_api import make_options
from heterps_compile.runtime.launch.server_rank import planned_tables
from heterps_compile.runtime.servers.trace_lookups import find_plan_tables

TRAINING_FILE = """
def loss(outputs, batch):
    return outputs.sum()


def optimizer(parameters):
    raise NotImplementedError
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("served") / "ctr.heterps"
    model, inputs = EXAMPLES["ctrdnn"](batch=8, fields=3, rows=50, width=4, hidden=(8,))
    compiled = heterps_compile.compile(model, inputs, mode="training", tables="served", method="exact", verify=False)
    compiled.save(path)
    (path.parent / "train.py").write_text(TRAINING_FILE)
    return path


def options(folder, **more):
    train = str(folder.parent / "train.py")
    return make_options(str(folder), train=train, data="random:sparse<50", given=["train", "data", *more], **more)


def test_a_run_without_servers_of_a_plan_with_tables_on_them_is_refused_by_name(folder):
    with pytest.raises(RunError, match=r"\b3\b.*\b1\b.*--param"):
        prepare(options(folder))
    assert prepare(options(folder, parameter_servers=2)).world_size >= 3


def test_the_plan_says_how_a_run_starts_its_servers_and_where_no_run_does(folder):
    plan = heterps_compile.load(folder).plan
    started = "--parameter-servers 1 --server-optimizer adam"
    brief, thorough = (
        dict(pairs(TOTALS, Summary(plan), medium, "USD"))["tables"] for medium in (Medium.GLANCE, Medium.DETAILS)
    )
    assert brief.endswith(f", run with {started}")
    assert thorough.endswith(f"; a run starts its servers with {started}")
    assert f"heterps-compile run path/to/this/folder --train train.py --data data.parquet {started}\n" in readme(plan)
    with pytest.raises(RunError, match=started):
        prepare(options(folder))
    momentum = replace(plan, request=replace(plan.request, optimizer="momentum"))
    assert server_options_of(momentum) == "--parameter-servers 1"
    scoring = replace(plan, request=replace(plan.request, mode="inference"))
    assert "so that this plan is not run" in readme(scoring)
    assert "heterps-compile run" not in readme(scoring)


def test_servers_hold_the_tables_that_the_plan_has_there_and_no_others(folder):
    plan = heterps_compile.load(folder).plan
    found = find_plan_tables(folder, plan)
    assert plan.tables is not None
    assert {table.name for table in found} == set(plan.tables.names)
    fewer = replace(plan.tables, names=plan.tables.names[:2])
    assert [table.name for table in planned_tables(found, fewer)] == list(plan.tables.names[:2])
    with pytest.raises(RunError, match="'gone'"):
        planned_tables(found, replace(plan.tables, names=("gone",)))


def test_a_model_without_numbers_is_planned_and_its_stages_are_refused_by_name():
    with torch.device("meta"):
        model, inputs = EXAMPLES["2emb"](batch=64, rows=4 * 10**10)
    compiled = heterps_compile.compile(model, inputs, mode="training", method="exact", reading="steady-state")
    plan = compiled.plan
    assert plan.tables is not None
    assert plan.tables.names == ("words.weight",)
    assert plan.bound == pytest.approx(plan.value)
    assert plan.verification is None
    told = [note for note in plan.notes if "torch's device 'meta'" in note]
    assert len(told) == 2  # not compared, and not to be written
    with pytest.raises(heterps_compile.HeterpsError, match=r"'words\.weight'"):
        compiled.save("nowhere")
