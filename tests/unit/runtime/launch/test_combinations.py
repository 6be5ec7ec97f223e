"""Settings that do not go together: each row of the tables is refused by ``prepare()``, and its neighbour is not."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from plans import PLAN
from safetensors.torch import save_file
from torch import Tensor, nn

import heterps_compile
from heterps_compile.cost.precision import OUT_OF_AUTOCAST
from heterps_compile.errors import HeterpsError, RunError
from heterps_compile.plan.plan import Artifact, Plan
from heterps_compile.plan.served_tables import ServedTables
from heterps_compile.plan.source import read_plan
from heterps_compile.runtime.engines.elastic_limits import PRINTED_RESTARTS, RESTARTS
from heterps_compile.runtime.launch import prepare as preparing
from heterps_compile.runtime.launch.combinations import (
    DATA,
    RUN,
    START,
    TRAINING_FILE,
    VALIDATION_DATA,
    Combination,
    DataFacts,
    refuse_combinations,
)
from heterps_compile.runtime.launch.prepare import Prepared, prepare
from heterps_compile.runtime.launch.run_options import RunOptions, by_field
from heterps_compile.runtime.pipeline.layout import Layout, StepShape, make_layout
from heterps_compile.sync_rules.adsaga import Adsaga
from heterps_compile.sync_rules.assignment import parse_rule
from heterps_compile.sync_rules.local_steps import LocalSteps
from heterps_compile.sync_rules.rule_text import rule_text

TABLES: dict[str, tuple[Combination[Any], ...]] = {
    "Before a run starts": (*TRAINING_FILE, *RUN),
    "When the data are open": (*DATA, *VALIDATION_DATA),
    "By what starts the ranks": (*START, *RESTARTS, *PRINTED_RESTARTS),
}
BARE = "def loss(outputs, batch): ...\ndef optimizer(parameters): ...\n"
MM, MC = (f"local(steps=2, rule={rule}, blocks=3, block_steps=4)" for rule in ("mm", "mc"))
SHARED = ("a weight that stages share", "`adasum`, `local`, `shadow` or different rules in these stages")
GROWN = {"parameter_servers": 1, "grow_tables": ("*",)}
Change = Callable[[Plan], Plan]


def stages(**changes: Any) -> Change:
    """Return a change of the first stage of a plan."""
    return lambda plan: replace(plan, stages=(replace(plan.stages[0], **changes), *plan.stages[1:]))


def for_inference(plan: Plan) -> Plan:
    return replace(plan, request=replace(plan.request, mode="inference"))


def with_tables(plan: Plan) -> Plan:
    return replace(plan, tables=ServedTables(("t",), (plan.stages[0].layers[0],), 2, 1 << 20, 0, 0.0, 0.0))


def with_shared_weight(plan: Plan) -> Plan:
    files = (("shared_0.safetensors",), ("shared_1.safetensors", "shared_1.py"))
    artifacts = tuple(tuple(Artifact(name, "0" * 64) for name in of_stage) for of_stage in files)
    return replace(plan, replicated=("shared",), artifacts=artifacts)


class Case(NamedTuple):
    """One row, a run that has it, the values that its message names, and what to change to have it no more."""

    settings: tuple[str, str]
    options: dict[str, Any]
    values: str
    instead: dict[str, Any]
    change: Change = lambda plan: plan
    file: str = BARE
    otherwise: Change | None = None
    """Another change of the plan for the neighbour; None for the same."""


CASES = [
    Case(("`--data`", "`data()` in the training file"), {}, r"--data is random.*data\(\)", {"data": ""},
         file=BARE + "def data(): ...\n"),
    Case(("no `--data`", "no `data()` in the training file"), {"data": ""}, r"--data is missing.*data\(\)",
         {"data": "random"}),
    Case(("no `--data`", "no `data()` in the training file"), {"train": None, "data": ""}, "--data is missing",
         {"data": "random"}),
    Case(("`--validate`", "`validation_data()` in the training file"), {"validate": "v.tsv"},
         r"--validate is v\.tsv.*validation_data\(\)", {"validate": None}, file=BARE + "def validation_data(): ...\n"),
    Case(("`--validate-every`, `--keep-best`", "no validation data"), {"validate_every": 5},
         r"--validate-every.*--validate DATA", {"validate": "v.tsv"}),
    Case(("`--validate-every`, `--keep-best`", "no validation data"), {"keep_best": "loss", "checkpoint": "ck"},
         r"--keep-best.*--validate DATA", {"validate": "v.tsv"}),
    Case(("`--keep-best` other than `loss`", "no `metrics()` in the training file"),
         {"validate": "v.tsv", "keep_best": "auc:max", "checkpoint": "ck"}, r"--keep-best is auc.*metrics\(\)",
         {"keep_best": "loss"}),
    Case(("`--train`", "a plan for inference"), {}, "--train.*compiled for inference.*--mode training",
         {"train": None}, for_inference),
    Case(("`--train`", "a backend that does not train"), {}, "--train.*stage 0.*onnxruntime.*--backend torch", {},
         stages(backend="onnxruntime"), otherwise=stages(backend="jax")),
    Case(("a plan that computes activations again", "a backend that cannot"), {}, "stage 0.*onnxruntime.*--recompute",
         {}, stages(backend="onnxruntime", recompute=True), otherwise=stages(backend="jax", recompute=True)),
    Case(("`--train`, a plan with tables on servers", "no `--parameter-servers`"), {},
         "1 table on 2 servers.*--parameter-servers is 0.*--parameter-servers 2", {"parameter_servers": 1},
         with_tables),
    Case(("inference, a plan with tables on servers", "no servers, which only training has"), {"train": None},
         "1 table on 2 servers.*inference.*--tables held", {}, lambda plan: with_tables(for_inference(plan)),
         otherwise=for_inference),
    Case(("`--weights`", "a backend that does not train"), {"train": None, "weights": "w"},
         "--weights.*stage 0.*onnxruntime", {"weights": None}, stages(backend="onnxruntime")),
    Case(("`--precision` other than `fp32`", "a backend other than `torch`"), {"precision": "bf16"},
         "--precision is bf16.*stage 0.*jax", {"precision": None}, stages(backend="jax")),
    Case(("`--precision` other than `fp32`", "a backend other than `torch`"), {},
         "the plan's precision is bf16.*stage 0.*jax", {"precision": "fp32"},
         lambda plan: replace(stages(backend="jax")(plan), request=replace(plan.request, precision="bf16"))),
    Case(("`--precision bf16` or `fp16`", "a model with parts outside of autocast"), {"precision": "bf16"},
         f"--precision is bf16.*{OUT_OF_AUTOCAST}", {"precision": "fp32"},
         lambda plan: replace(plan, notes=(f"1 region {OUT_OF_AUTOCAST}",))),
    Case(("`--precision bf16` or `fp16`", "another narrow `--wire`"), {"precision": "bf16", "wire": "float16"},
         "--precision is bf16.*--wire is float16.*--wire bfloat16", {"wire": "bfloat16"}),
    Case(("`--precision fp16`", "`--parameter-servers`"), {"precision": "fp16", "parameter_servers": 2},
         "--precision is fp16.*--parameter-servers is 2", {"precision": "bf16"}),
    Case(("`--clip-norm`", "`--staleness`"), {"clip_norm": 1.5, "parameter_servers": 1, "staleness": 3},
         "--clip-norm is 1.5.*--staleness is 3", {"staleness": 0}),
    Case(("`--ema`", "`--parameter-servers`"), {"ema": 0.9, "parameter_servers": 1},
         "--ema is 0.9.*--parameter-servers is 1", {"ema": None}),
    Case(("`--grow-tables`", "`--server-memory`"), {**GROWN, "server_memory": 9}, "--grow-tables.*--server-memory is 9",
         {"server_memory": None}),
    Case(("`servers`", "no `--parameter-servers`"), {"sync": "servers(staleness=4)"},
         r"stage 0.*servers\(staleness=4\).*--parameter-servers is 0", {"parameter_servers": 1, "staleness": 4}),
    Case(("`servers`", "another `--staleness`"), {"sync": "servers", "parameter_servers": 1, "staleness": 4},
         "stage 0 agrees by servers.*--staleness is 4", {"staleness": 0}),
    Case(("`local`, `shadow`, `adasum(on=step)`", "`--clip-norm`"), {"sync": "local(steps=2)", "clip_norm": 1.5},
         r"stage 0.*local\(steps=2\).*--clip-norm is 1.5", {"sync": "topk(density=0.1)"}),
    Case(("`local`, `shadow`, `adasum(on=step)`", "`--clip-norm`"), {"sync": "adasum(on=step)", "clip_norm": 1.5},
         r"stage 0.*adasum\(on=step\).*--clip-norm", {"replicas": (1, 1)}),
    Case(("`local`, `shadow`", "`--ema`"), {"sync": "stage 1=local(steps=2)", "ema": 0.9},
         r"stage 1.*local\(steps=2\).*--ema is 0.9", {"sync": "adasum(on=step)"}),
    Case(SHARED, {"sync": "stage 0=topk(density=0.1)"},
         r"stages 0 and 1.*shared.*topk\(density=0.1\) and all-reduce", {"sync": "topk(density=0.1)"},
         with_shared_weight),
    Case(SHARED, {"sync": "adasum"},
         "stages 0 and 1.*shared.*adasum", {"replicas": (1, 1)}, with_shared_weight),
    Case(("`local` with `rule=mm` or `rule=mc`", "another rule in another stage"), {"sync": f"stage 0={MM}, *=adasum"},
         rf"{re.escape(MM)}.*adasum.*--sync '{re.escape(MM)}'", {"sync": MM}),
    Case(("`local` with `rule=mm` or `rule=mc`", "`--shuffle`"), {"sync": MM, "shuffle": 16},
         f"{re.escape(MM)}.*--shuffle is 16", {"shuffle": None}),
    Case(("`local` with `rule=mm` or `rule=mc`", "`--ema`"), {"sync": MM, "ema": 0.9, "replicas": (1, 1)},
         f"{re.escape(MM)}.*--ema is 0.9", {"ema": None}),
    Case(("`local` with `rule=mm` or `rule=mc`", "`--parameter-servers`"), {"sync": MM, "parameter_servers": 1},
         f"{re.escape(MM)}.*--parameter-servers is 1", {"sync": "all-reduce"}),
    Case(("`local` with `rule=mc`", "`--precision fp16`"), {"sync": MC, "precision": "fp16"},
         f"{re.escape(MC)}.*--precision is fp16", {"sync": MM}),
    Case(("`adsaga`", "a `--shuffle` of other than whole batches"), {"sync": "adsaga(batches=5)", "shuffle": "all"},
         r"stage 0.*adsaga\(batches=5\).*--shuffle is all.*--shuffle 128", {"shuffle": 128}),
    Case(("`adsaga`", "`--precision fp16`"), {"sync": "adsaga(batches=5)", "precision": "fp16"},
         r"stage 0.*adsaga\(batches=5\).*--precision is fp16", {"precision": "bf16"}),
    Case(("`adsaga`", "`--parameter-servers`"), {"sync": "stage 0=adsaga(batches=5)", "parameter_servers": 1},
         r"stage 0.*adsaga\(batches=5\).*--parameter-servers is 1", {"replicas": (1, 2)}),
    Case(("`adsaga`", "`adsaga` of other batches in another stage"),
         {"sync": "stage 0=adsaga(batches=5), *=adsaga(batches=6)"}, r"stage 0.*adsaga\(batches=5\)",
         {"sync": "stage 0=adsaga(batches=5), *=adsaga(batches=5, delay=1)"}),
]  # fmt: skip


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two stages of PyTorch that train."""
    folder = tmp_path_factory.mktemp("compiled") / "m"
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    made = heterps_compile.compile(
        model, (torch.ones(32, 4),), mode="training", backend="torch", min_stages=2, method="greedy", verify=False
    )
    made.save(folder)
    for name in ("shared_0", "shared_1"):
        save_file({"shared" if name.endswith("0") else "other": torch.zeros(2)}, folder / f"{name}.safetensors")
    (folder / "shared_1.py").write_text('TIED_AS = {"other": "shared"}\n')
    return folder


@pytest.fixture
def prepared(compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Prepared]:
    """Return ``prepare()`` of a run with options, on a plan that is changed."""
    plan, usual = read_plan(str(compiled)), {"data": "random", "replicas": (2, 2), "schedule": "1f1b"}
    checked = hashlib.sha256((compiled / "plan.json").read_bytes()).hexdigest()

    def run(options: dict[str, Any], change: Change, file: str = BARE) -> Prepared:
        monkeypatch.setattr(preparing, "read_plan", lambda _: change(plan))
        (tmp_path / "train.py").write_text(file)
        values = {"train": str(tmp_path / "train.py"), **usual, "micro_batches": 4, "batch": 128, **options}
        return prepare(RunOptions(directory=str(compiled), **by_field(values)), checked_sha256=checked)

    return run


@pytest.mark.parametrize("case", CASES, ids=[" and ".join(case.settings) for case in CASES])
def test_a_combination_is_refused_with_both_values_and_its_neighbour_is_not(case, prepared):
    (row,) = [row for row in (*TRAINING_FILE, *RUN) if (row.setting, row.other) == case.settings]
    with pytest.raises(RunError) as refused:
        prepared(case.options, case.change, case.file)
    assert re.search(case.values, str(refused.value))
    assert re.sub(r"\{\w+\}", "", row.expected)[:20] in str(refused.value), "another row refused it"
    assert prepared({**case.options, **case.instead}, case.otherwise or case.change, case.file).world_size >= 2


def test_what_a_training_file_may_have_is_known_when_it_is_run(prepared):
    asked = {"validate_every": 5, "keep_best": "auc:max", "checkpoint": "ck", "stop_after": 2}
    assert prepared(asked, lambda plan: plan, "from beside import *\n").world_size == 4


def test_a_run_has_the_precision_and_the_rules_of_its_plan_if_it_names_none(prepared):
    def planned(plan: Plan) -> Plan:
        return replace(plan, request=replace(plan.request, precision="bf16"))

    assert prepared({}, planned).precision == "bf16"
    assert prepared({"precision": "fp32"}, planned).precision == "fp32"
    assert prepared({"precision": "fp16", "train": None}, planned).precision == "fp16"


def test_every_combination_has_a_case():
    cased = {case.settings for case in CASES} | {("`adasum`, `adsaga`", "embeddings with `sparse=True`")}
    assert {(row.setting, row.other) for row in (*TRAINING_FILE, *RUN)} == cased


class Sparse(nn.Module):
    """Two tables with sparse gradients and a dense one, of which the forward looks up those that are named."""

    def __init__(self, *looked_up: str) -> None:
        super().__init__()
        self.looked_up = looked_up
        self.table, self.dense = nn.Embedding(20, 4, sparse=True), nn.Embedding(20, 4)
        self.bag = nn.EmbeddingBag(20, 4, mode="sum", sparse=True)

    def forward(self, ids: Tensor) -> Tensor:
        parts = {"table": lambda: self.table(ids).sum(1), "dense": lambda: self.dense(ids).sum(1)}
        return torch.stack([parts.get(name, lambda: self.bag(ids))() for name in self.looked_up]).sum(0)


@pytest.mark.parametrize(
    ("looked_up", "weight"), [(("dense", "table"), "table.weight"), (("bag",), "bag.weight"), (("dense",), None)]
)
def test_a_rule_that_combines_dense_gradients_refuses_sparse_ones(tmp_path, looked_up, weight):
    made = heterps_compile.compile(
        Sparse(*looked_up), (torch.zeros(8, 3, dtype=torch.int64),), mode="training", method="greedy", verify=False
    )
    made.save(tmp_path / "m")
    (tmp_path / "train.py").write_text(BARE)
    usual = {"train": str(tmp_path / "train.py"), "data": "random", "replicas": (2,), "micro_batches": 2, "batch": 16}

    def rules(sync: str, **more: Any) -> list[str]:
        options = RunOptions(directory=str(tmp_path / "m"), **by_field({**usual, "sync": sync, **more}))
        return list(map(rule_text, prepare(options).sync))

    for sync in ("all-reduce", "topk(density=0.1)", "adasum(on=step)"):
        assert rules(sync) == [sync]
    assert rules("adasum", parameter_servers=2) == ["adasum"]  # which hold the tables
    if weight is None:
        assert rules("adasum") == ["adasum"]
        return
    with pytest.raises(HeterpsError) as refused:
        rules("adasum")
    assert re.search(rf"stage 0\b.*adasum.*{re.escape(weight)}.*sparse=False.*--sync", str(refused.value))


# ---- data, when they are open

SAGA, BLOCKS, SUMMED = Adsaga(5), LocalSteps(2, "mm", blocks=3, block_steps=4), parse_rule("adasum")


def layout_of(batch: int, *widths: int) -> Layout:
    return make_layout(PLAN, training=True, replicas=widths, step=StepShape("1f1b", 2, batch))


@pytest.mark.parametrize(
    ("table", "rules", "batch", "samples", "said"),
    [
        (DATA, (SUMMED, SAGA), 8, None, r"adsaga\(batches=5\).*no end.*\b40\b.*--sync"),
        (DATA, (SUMMED, SAGA), 8, 48, r"adsaga\(batches=5\).*48 samples.*\b40\b.*batches=6"),
        (DATA, (SUMMED, SAGA), 8, 41, "41 samples.*multiple of 8.*--batch"),
        (DATA, (BLOCKS, BLOCKS), 20, 120, r"120 samples.*\b240\b.*block_steps=2.*multiple of 240"),
        (DATA, (BLOCKS, BLOCKS), 20, 60, r"60 samples.*Fix: a.* 240"),
        (VALIDATION_DATA, (BLOCKS, BLOCKS), 20, 10, r"10 samples.*\b3\b"),
        (VALIDATION_DATA, (BLOCKS, BLOCKS), 20, 0, r"0 samples.*\b3\b"),
    ],
)
def test_data_that_do_not_fit_a_rule_are_refused_with_the_numbers(table, rules, batch, samples, said):
    with pytest.raises(RunError, match=said):
        refuse_combinations(table, DataFacts(rules, layout_of(batch, 1, 2), samples))


def test_data_that_fit_a_rule_are_taken():
    refuse_combinations(DATA, DataFacts((SUMMED, SAGA), layout_of(8, 1, 2), 40))
    refuse_combinations(DATA, DataFacts((SUMMED, SAGA), layout_of(8, 2, 1), 41))  # one replica has no table
    for samples in (None, 240, 480):
        refuse_combinations(DATA, DataFacts((BLOCKS, BLOCKS), layout_of(20, 1, 1), samples))
    refuse_combinations(VALIDATION_DATA, DataFacts((BLOCKS, BLOCKS), layout_of(20, 1, 1), 9))


# ---- the documentation

PAGE = Path(__file__).parents[4] / "docs" / "runtime.md"


def test_the_documentation_shows_every_combination(golden):
    lines: list[str] = []
    for title, table in TABLES.items():
        shown = [re.sub(r"\{(\w+)\}", lambda field: field[1].upper(), row.expected) for row in table]
        rows = (f"| {row.setting} | {row.other} | {text} |" for row, text in zip(table, shown, strict=True))
        lines += [f"**{title}.**", "", "| setting | with | expected |", "|---|---|---|", *rows, ""]
    before, begin, rest = PAGE.read_text("utf-8").partition("<!-- begin of the combinations -->\n")
    _, end, after = rest.partition("<!-- end of the combinations -->\n")
    assert begin
    assert end
    golden("../../docs/runtime.md", f"{before}{begin}\n" + "\n".join(lines) + f"\n{end}{after}")
