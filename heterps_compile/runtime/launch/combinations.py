"""Settings of a run that do not go together, as tables: one row a combination.

``prepare()`` walks :data:`RUN` before anything starts. The other tables are walked when their facts are known, such as
the number of samples. ``docs/runtime.md`` shows all rows.

Left out: the range of one option, which its declaration has (``run_options.py``); what fits no layout
(``pipeline/layout.py``); checkpoints (``checkpoint/start.py``).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Generic, TypeVar

from heterps_compile.backends.find import find_backend, trains
from heterps_compile.cost.precision import FULL, OUT_OF_AUTOCAST, PRECISIONS, SCALED
from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.planned_stage import PlannedStage
from heterps_compile.plan.table_words import server_options_of
from heterps_compile.runtime.pipeline.layout import Layout
from heterps_compile.runtime.signature import is_of_a_module
from heterps_compile.runtime.sync.find import capabilities_of
from heterps_compile.runtime.validation.best import LOSS
from heterps_compile.sync_rules.adsaga import Adsaga
from heterps_compile.sync_rules.rule import SyncRule
from heterps_compile.sync_rules.rule_text import rule_text
from heterps_compile.sync_rules.through_servers import Servers
from heterps_compile.units import counted, format_bytes

from .run_options import RunOptions
from .stage_files import sparse_weights_of, stages_with
from .sync_of_run import agreeing, block_rule, tables_of
from .training_file import FileFacts, check_training_file

Facts = TypeVar("Facts")
Place = Mapping[str, object]
"""Where a run has a combination: the values of the fields of its message."""

LOCAL, RANK, PRINTED = "a run that starts its ranks on this machine", "a rank that another program starts", "launch"
"""The ways to start ranks."""


@dataclass(frozen=True, slots=True)
class Combination(Generic[Facts]):
    """Two settings that do not go together. Texts have fields in braces.

    Attributes:
        setting: One of them, as the documentation calls it.
        other: The other one.
        find: Returns the values of the fields for each place where a run has both.
        value: How the run has both.
        expected: What is allowed instead, and the reason.
        fix: What to change.
    """

    setting: str
    other: str
    find: Callable[[Facts], Iterable[Place]]
    value: str
    expected: str
    fix: str


def refuse_combinations(table: Iterable[Combination[Facts]], facts: Facts) -> None:
    """Check that a run has no combination of a table.

    Raises:
        RunError: for the first one that it has, with both values and the fix.
    """
    for row in table:
        for place in row.find(facts):
            fields = {name: printable(str(value)) for name, value in place.items()}
            value, expected, fix = (text.format_map(fields) for text in (row.value, row.expected, row.fix))
            raise RunError(f"{value}; expected {expected}. Fix: {fix}")


def when(is_found: object, **values: object) -> Iterable[Place]:
    """Return one place if a combination is there."""
    return (values,) if is_found else ()


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run before it starts.

    Attributes:
        options: Of the run.
        plan: The plan.
        folder: The compiled folder.
        layout: Of the ranks that hold stages.
        precision: Of forwards.
        rules: The synchronisation rule of each stage.
    """

    options: RunOptions
    plan: Plan
    folder: Path
    layout: Layout
    precision: str
    rules: Sequence[SyncRule]

    @property
    def fields(self) -> Place:
        """Return the fields of all messages: options by name, and the settings that the plan may decide."""
        origin = "the plan's precision" if self.options.precision is None else "--precision"
        decided = {"precision": f"{origin} is {self.precision}", "dtype": PRECISIONS[self.precision]}
        decided |= {"batch": str(self.layout.batch), "rules": ", ".join(map(rule_text, self.rules))}
        return {**self.options.by_name, **decided, "model": self.plan.model}

    @property
    def trains_a_plan_for_inference(self) -> bool:
        """Check if stages would train as they infer; an ONNX model has one mode."""
        return self.options.training and self.plan.request.mode != "training" and is_of_a_module(self.plan)

    @property
    def is_narrow(self) -> bool:
        """Check if forwards compute in another dtype than float32."""
        return PRECISIONS[self.precision] != PRECISIONS[FULL]

    def when(self, is_found: object) -> Iterable[Place]:
        """Return one place if a combination is there."""
        return (self.fields,) if is_found else ()

    def stages(self, is_found: object, is_of: Callable[[PlannedStage], bool]) -> Iterator[Place]:
        """Yield stages of the plan, with their backends."""
        for stage in self.plan.stages if is_found else ():
            if is_of(stage):
                yield {**self.fields, "stage": stage.index, "backend": stage.backend}

    def rules_of(self, is_found: object, is_of: Callable[[SyncRule], bool]) -> Iterator[Place]:
        """Yield stages with several replicas, by their rules."""
        for stage, rule in agreeing(self.rules, self.layout).items() if is_found else ():
            if is_of(rule):
                yield {**self.fields, "stage": stage, "rule": rule_text(rule)}

    def other_staleness(self) -> Iterator[Place]:
        """Yield stages that expect another staleness of the servers."""
        given = Servers(self.options.servers.staleness)
        return self.rules_of(self.options.servers.count, lambda rule: rule.uses_servers and rule != given)

    def tables(self, is_found: object) -> Iterator[Place]:
        """Yield stages that remember a gradient of every batch."""
        return self.rules_of(is_found, lambda rule: isinstance(rule, Adsaga))

    def blocks(self, is_found: object, *kinds: str) -> Iterator[Place]:
        """Yield the rule that keeps a predictor for every block of the data, if it is of one of some kinds."""
        rule = block_rule(self.rules)
        if is_found and rule is not None and rule.rule in (kinds or ("mm", "mc")):
            yield {**self.fields, "rule": rule_text(rule)}

    def unserved(self, is_found: bool) -> Iterator[Place]:
        """Yield the tables that the plan has on servers, if the run has none."""
        tables = self.plan.tables
        if tables is not None and not self.options.servers.count and is_found:
            counts = {"tables": counted(len(tables.names), "table"), "servers": counted(tables.servers, "server")}
            yield {**counts, "options": server_options_of(self.plan), "size": format_bytes(tables.size_bytes)}

    def out_of_autocast(self) -> Iterator[Place]:
        """Yield what the model computes in float32 whatever the precision."""
        for note in self.plan.notes if self.is_narrow else ():
            if OUT_OF_AUTOCAST in note:
                yield {**self.fields, "note": note}

    def sparse_weights(self) -> Iterator[Place]:
        """Yield weights with sparse gradients in stages whose rule combines dense ones.

        With servers, which store tables, only the first step finds them.
        """
        for stage, rule in agreeing(self.rules, self.layout).items():
            if not capabilities_of(rule).takes_sparse and not self.options.servers.count:
                for name in sparse_weights_of(self.plan, self.folder, stage):
                    yield {"stage": stage, "rule": rule_text(rule), "weight": name}

    def shared_weights(self) -> Iterator[Place]:
        """Yield weights that stages share, one of which has several replicas, and that no one rule sums."""
        for name in self.plan.replicated:
            stages = stages_with(self.plan, self.folder, name)
            rules = list(dict.fromkeys(self.rules[stage] for stage in stages))
            is_summed = len(rules) == 1 and capabilities_of(rules[0]).sums
            if not is_summed and not agreeing(self.rules, self.layout).keys().isdisjoint(stages):
                texts = " and ".join(map(rule_text, rules))
                yield {"stages": " and ".join(map(str, stages)), "weight": name, "rules": texts}


@dataclass(frozen=True, slots=True)
class DataFacts:
    """Samples of a pass over data, and the rules of the stages.

    Attributes:
        rules: Of each stage.
        layout: Of the ranks.
        samples: Of the training data or of the validation data; None for data without an end.
    """

    rules: Sequence[SyncRule]
    layout: Layout
    samples: int | None

    def other_batches(self) -> Iterator[Place]:
        """Yield the rule that remembers a gradient of every batch, if the data have other batches."""
        batch, found = self.layout.batch, "no end" if self.samples is None else f"{self.samples:,} samples"
        for rule in tables_of(self.rules, self.layout).values():
            even, rest = divmod(self.samples or 1, batch)
            way = f"a multiple of {batch:,} samples, another --batch" if rest else f"batches={even}"
            if self.samples != (expected := rule.batches * batch):
                yield {"rule": rule_text(rule), "samples": found, "expected": expected, "batch": batch, "way": way}

    def broken_cycles(self) -> Iterator[Place]:
        """Yield the rule that keeps predictors, if the data are no whole cycles of blocks."""
        rule, batch = block_rule(self.rules), self.layout.batch
        if rule is None or self.samples is None or self.samples % (rule.cycle_steps * batch) == 0:
            return
        cycle, fitting = rule.cycle_steps * batch, Fraction(self.samples, (rule.blocks or 1) * batch)
        way = f"block_steps={fitting}, or " * (fitting.denominator == 1 and fitting % rule.steps == 0)
        yield {"rule": rule_text(rule), "samples": f"{self.samples:,}", "cycle": f"{cycle:,}", "way": way}

    def unequal_parts(self) -> Iterator[Place]:
        """Yield the rule that keeps predictors, if its blocks cannot have equal parts of the data."""
        rule, samples = block_rule(self.rules), self.samples or 0
        if rule is not None and (samples % (rule.blocks or 1) or not samples):
            yield {"rule": rule_text(rule), "samples": f"{samples:,}", "blocks": rule.blocks}


def check_file(options: RunOptions) -> FileFacts:
    """Check the training file of a run, without running it, and the options that depend on its functions.

    Raises:
        InputError: if there is no such file, or it lacks what a run needs.
        RunError: if options and functions do not go together.
    """
    refuse_combinations(TRAINING_FILE, facts := check_training_file(options))
    return facts


def has_own_dtypes(stage: PlannedStage) -> bool:
    """Check if a stage is not of PyTorch's own ops, whose dtypes autocast decides."""
    return not find_backend(stage.backend).capabilities.is_module


def recomputes_in_vain(stage: PlannedStage) -> bool:
    """Check if a stage is planned to compute activations again and cannot."""
    return stage.recompute and not find_backend(stage.backend).capabilities.recomputes


TRAINING_FILE: Sequence[Combination[FileFacts]] = (
    Combination("`--data`", "`data()` in the training file",
        lambda file: when(file.options.data and "data" in file.defined, data=file.options.data[:60]),
        "--data is {data} and the training file has data()", "one of the two, which gives the samples",
        "leave --data out, or remove data() from the file"),
    Combination("no `--data`", "no `data()` in the training file",
        lambda file: when(not file.options.data and "data" not in file.possible),
        "--data is missing and no training file has data()", "one of the two, which gives the samples",
        "--data FILE, or --data random"),
    Combination("`--validate`", "`validation_data()` in the training file",
        lambda file: when(file.options.validate and "validation_data" in file.defined, data=file.options.validate),
        "--validate is {data} and the training file has validation_data()",
        "one of the two, which gives the validation data", "leave --validate out, or remove validation_data()"),
    Combination("`--validate-every`, `--keep-best`", "no validation data",
        lambda file: when((file.options.validate_every or file.options.best) and not file.may_validate),
        "--validate-every or --keep-best is given and there are no validation data", "data to validate on",
        "--validate DATA, or define validation_data() in the training file"),
    Combination("`--keep-best` other than `loss`", "no `metrics()` in the training file",
        lambda file: when(file.metric != LOSS and "metrics" not in file.possible, metric=file.metric),
        "--keep-best is {metric} and the training file has no metrics()", "loss, the only metric without that function",
        "--keep-best loss, or define metrics(outputs, batch)"),
)  # fmt: skip
"""Walked by ``prepare()``, which does not run the training file, and by ranks, which have run it."""

RUN: Sequence[Combination[RunFacts]] = (
    Combination("`--train`", "a plan for inference",
        lambda run: run.when(run.trains_a_plan_for_inference),
        "--train is given and {model} is compiled for inference",
        "a plan for training: stages would train without dropout, and without moving the statistics of batch norms",
        "compile with --mode training (mode='training')"),
    Combination("a plan that computes activations again", "a backend that cannot",
        lambda run: run.stages(run.options.training, recomputes_in_vain),
        "stage {stage} is planned to compute its activations again and has the backend {backend}",
        "a backend that computes forwards again", "compile with --recompute never, or with another --backend"),
    Combination("`--train`", "a backend that does not train",
        lambda run: run.stages(run.options.training, lambda stage: not trains(stage.backend)),
        "--train is given and stage {stage} has the backend {backend}", "a backend that trains",
        "compile with --backend torch"),
    Combination("`--train`, a plan with tables on servers", "no `--parameter-servers`",
        lambda run: run.unserved(run.options.training),
        "the plan has {tables} on {servers} and --parameter-servers is 0",
        "servers for these tables: no stage has memory for them",
        "{options}, or as many as hold {size} here, or compile with --tables held"),
    Combination("inference, a plan with tables on servers", "no servers, which only training has",
        lambda run: run.unserved(not run.options.training and run.plan.request.mode != "training"),
        "the plan has {tables} on {servers} and the run is an inference",
        "a plan whose stages hold all tables: servers are for training only", "compile with --tables held"),
    Combination("`--weights`", "a backend that does not train",
        lambda run: run.stages(run.options.weights, lambda stage: not trains(stage.backend)),
        "--weights is given and stage {stage} has the backend {backend}",
        "a backend that trains: the weights of others are part of what runs them",
        "leave --weights out, or compile with --backend torch"),
    Combination("`--precision` other than `fp32`", "a backend other than `torch`",
        lambda run: run.stages(run.precision != FULL, has_own_dtypes),
        "{precision} and stage {stage} has the backend {backend}",
        "stages of PyTorch's own ops: others compute in the dtypes that they were compiled with",
        "--precision fp32, or compile with --backend torch"),
    Combination("`--precision bf16` or `fp16`", "a model with parts outside of autocast",
        RunFacts.out_of_autocast,
        "{precision} and the model has parts outside of torch.autocast ({note})",
        "fp32: other bits than the model's would be computed", "--precision fp32"),
    Combination("`--precision bf16` or `fp16`", "another narrow `--wire`",
        lambda run: run.when(run.is_narrow and run.options.wire not in (PRECISIONS[FULL], PRECISIONS[run.precision])),
        "{precision} and --wire is {wire}", "one narrow dtype: values that are computed in {dtype} are sent so",
        "--wire {dtype}, or leave --wire out"),
    Combination("`--precision fp16`", "`--parameter-servers`",
        lambda run: run.when(run.precision in SCALED and run.options.servers.count),
        "{precision} and --parameter-servers is {parameter_servers}",
        "one of the two: servers step rows as they are pushed, before it is known if the step is skipped",
        "--precision bf16, or leave --parameter-servers out"),
    Combination("`--clip-norm`", "`--staleness`",
        lambda run: run.when(run.options.clip_norm and run.options.servers.count and run.options.servers.staleness),
        "--clip-norm is {clip_norm} and --staleness is {staleness}",
        "one of the two: servers apply each push as it comes, and no step has the norm of all its gradients",
        "leave one of the two out"),
    Combination("`--ema`", "`--parameter-servers`",
        lambda run: run.when(run.options.ema and run.options.servers.count),
        "--ema is {ema} and --parameter-servers is {parameter_servers}",
        "one of the two: servers step the rows of a batch, and an average moves all rows in every step",
        "leave one of the two out"),
    Combination("`--grow-tables`", "`--server-memory`",
        lambda run: run.when(run.options.servers.grow_tables and run.options.servers.memory_bytes),
        "--grow-tables is {grow_tables} and --server-memory is {server_memory} B",
        "one of the two: rows of tables that grow are in memory only",
        "leave --server-memory out, and evict rows (--evict-unseen STEPS, --evict-below SCORE)"),
    Combination("`servers`", "no `--parameter-servers`",
        lambda run: run.rules_of(not run.options.servers.count, lambda rule: rule.uses_servers),
        "stage {stage} agrees by {rule} and --parameter-servers is 0", "servers for this rule",
        "--parameter-servers N, or --sync all-reduce"),
    Combination("`servers`", "another `--staleness`",
        RunFacts.other_staleness,
        "stage {stage} agrees by {rule} and --staleness is {staleness}", "the same staleness",
        "give both the same (--staleness)"),
    Combination("`local`, `shadow`, `adasum(on=step)`", "`--clip-norm`",
        lambda run: run.rules_of(run.options.clip_norm, lambda rule: capabilities_of(rule).steps_alone),
        "stage {stage} agrees by {rule} and --clip-norm is {clip_norm}",
        "one of the two: each replica steps on its own gradients, and none has those of all",
        "leave --clip-norm out, or take another rule (--sync)"),
    Combination("`local`, `shadow`", "`--ema`",
        lambda run: run.rules_of(run.options.ema, lambda rule: capabilities_of(rule).apart),
        "stage {stage} agrees by {rule} and --ema is {ema}",
        "one of the two: replicas have different weights, and the average is of those that they have in common",
        "leave --ema out, or take another rule (--sync)"),
    Combination("`adasum`, `adsaga`", "embeddings with `sparse=True`",
        RunFacts.sparse_weights,
        "stage {stage} agrees by {rule} and the gradient of {weight} is sparse",
        "dense gradients, which the rule combines",
        "compile with sparse=False in this embedding, or take another rule (--sync)"),
    Combination("a weight that stages share", "`adasum`, `local`, `shadow` or different rules in these stages",
        RunFacts.shared_weights,
        "stages {stages} share the weight {weight} and agree by {rules}",
        "one rule that sums: the weight's gradient is the sum of theirs", "--sync all-reduce in these stages"),
    Combination("`local` with `rule=mm` or `rule=mc`", "another rule in another stage",
        lambda run: run.blocks(len(set(run.rules)) > 1),
        "the run keeps predictors of blocks by {rule} and stages agree by {rules}",
        "one rule in all stages: a predictor is a model of all stages", "--sync '{rule}'"),
    Combination("`local` with `rule=mm` or `rule=mc`", "`--shuffle`",
        lambda run: run.blocks(run.options.shuffle),
        "the run keeps predictors of blocks by {rule} and --shuffle is {shuffle}",
        "samples in their order: a shuffle mixes those of different blocks", "leave --shuffle out"),
    Combination("`local` with `rule=mm` or `rule=mc`", "`--ema`",
        lambda run: run.blocks(run.options.ema),
        "the run keeps predictors of blocks by {rule} and --ema is {ema}",
        "one of the two: validations are of predictors or of an average", "leave one of the two out"),
    Combination("`local` with `rule=mm` or `rule=mc`", "`--parameter-servers`",
        lambda run: run.blocks(run.options.servers.count),
        "the run keeps predictors of blocks by {rule} and --parameter-servers is {parameter_servers}",
        "one of the two: all blocks share the rows on servers", "leave --parameter-servers out, or --sync all-reduce"),
    Combination("`local` with `rule=mc`", "`--precision fp16`",
        lambda run: run.blocks(run.precision in SCALED, "mc"),
        "the run keeps predictors of blocks by {rule} and {precision}",
        "another precision: two chains step on every batch, and fp16 may skip a step of one of them",
        "--precision bf16, or rule=mm"),
    Combination("`adsaga`", "a `--shuffle` of other than whole batches",
        lambda run: run.tables(run.options.shuffle not in (None, run.layout.batch)),
        "stage {stage} agrees by {rule} and --shuffle is {shuffle}",
        "batches that come again, of which the rule remembers the gradients",
        "--shuffle {batch}, which mixes the order of batches and the samples inside each, or leave --shuffle out"),
    Combination("`adsaga`", "`--precision fp16`",
        lambda run: run.tables(run.precision in SCALED),
        "stage {stage} agrees by {rule} and {precision}",
        "another precision: the rule would remember the gradients of a step that is skipped", "--precision bf16"),
    Combination("`adsaga`", "`--parameter-servers`",
        lambda run: run.tables(run.options.servers.count),
        "stage {stage} agrees by {rule} and --parameter-servers is {parameter_servers}",
        "one of the two: each push alone steps rows on servers",
        "leave --parameter-servers out, or take another rule (--sync)"),
    Combination("`adsaga`", "`adsaga` of other batches in another stage",
        lambda run: run.tables(len({rule.batches for rule in tables_of(run.rules, run.layout).values()}) > 1),
        "stage {stage} agrees by {rule} and another stage by adsaga of other batches", "the same number of batches",
        "give both the same (--sync)"),
)  # fmt: skip
"""Walked by ``prepare()``."""

DATA: Sequence[Combination[DataFacts]] = (
    Combination("`adsaga`", "data of other batches, or without an end",
        DataFacts.other_batches,
        "the run agrees by {rule} and the data have {samples}",
        "{expected} samples in batches of {batch} that come again, of which the rule remembers the gradients",
        "{way}, or another rule (--sync)"),
    Combination("`local` with `rule=mm` or `rule=mc`", "data that are no whole cycles of blocks",
        DataFacts.broken_cycles,
        "the run keeps predictors of blocks by {rule} and the data have {samples} samples",
        "whole cycles of {cycle} samples, so that blocks are in the same place in every epoch",
        "{way}a multiple of {cycle} samples, or another --batch"),
)  # fmt: skip
"""Walked when the training data are open."""

VALIDATION_DATA: Sequence[Combination[DataFacts]] = (
    Combination("`local` with `rule=mm` or `rule=mc`", "validation data without equal parts for blocks",
        DataFacts.unequal_parts,
        "the run keeps predictors of blocks by {rule} and the validation data have {samples} samples",
        "a number that {blocks} divides: each block validates on an equal part", "validation data of such a number"),
)  # fmt: skip
"""Walked when the validation data are counted."""

START: Sequence[Combination[tuple[RunOptions, str]]] = (
    Combination("`--device-type`", "`run` on one machine, `launch`",
        lambda start: when(start[1] != RANK and start[0].device_type, type=start[0].device_type, way=start[1]),
        "--device-type is {type} for {way}", "it for one rank of a world alone (torchrun, srun)",
        "leave --device-type out"),
    Combination("`--restarts`", "ranks that another program starts",
        lambda start: when(start[1] == RANK and start[0].restarts, restarts=start[0].restarts, way=start[1]),
        "--restarts is {restarts} for {way}", "it for the ranks of one machine",
        "let that program restart them (torchrun --max-restarts), with --resume"),
)  # fmt: skip
"""Walked where ranks are started, with the way to start them."""
