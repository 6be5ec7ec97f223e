"""Trainings in processes under every rule that runs: `bench_sync.py --processes`.

The click model of sync_tasks.py is compiled into one stage of two replicas and trained through the product's own `run`:
held-back loss at the end, and the bytes that the log counted beside those that the rule plans with.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from sync_laws import Line
from sync_tasks import FIELDS, NUMBERS, Batch, ClickModel, Clicks

import heterps_compile
from heterps_compile.sync_rules.assignment import parse_rule
from heterps_compile.sync_rules.rule import FlatBuffer, SyncGroup

REPLICAS, BATCH, STEPS = 2, 200, 200
RULES = (
    "all-reduce",
    "topk(density=0.05)",
    "topk(density=0.05, feedback=false)",
    "adasum",
    "adasum(on=step)",
    "local(steps=8)",
    "shadow(every=8, rule=average)",
)
TRAINING = """
import torch

def loss(outputs, batch):
    return torch.nn.functional.binary_cross_entropy_with_logits(outputs, batch["label"])

def optimizer(parameters):
    return torch.optim.Adam([parameter for _, parameter in parameters], lr=2e-2)
"""


@dataclass(frozen=True, slots=True)
class Run:
    """A training that ended.

    Attributes:
        rule: As it was asked for.
        loss: Of the held-back samples at the end.
        sent_bytes: As the log counted them.
        planned_bytes: As the rule has them.
        gap: The last one between the replicas that was told, in parts of the weights; None where they are equal.
    """

    rule: str
    loss: float
    sent_bytes: int
    planned_bytes: int
    gap: float | None


def write(path: Path, batch: Batch) -> None:
    ids, numbers, label = batch
    columns = {
        "ids": pa.FixedSizeListArray.from_arrays(ids.flatten().numpy(), FIELDS),
        "numbers": pa.FixedSizeListArray.from_arrays(numbers.flatten().numpy(), NUMBERS),
        "label": pa.array(label.numpy()),
    }
    pq.write_table(pa.table(columns), path)


def trained(folder: Path, rule: str, elements: int, tensors: int) -> Run:
    log = folder / "log.jsonl"
    log.unlink(missing_ok=True)
    result = heterps_compile.run(
        folder / "click.heterps",
        train=folder / "train.py",
        data=str(folder / "clicks.parquet"),
        validate=str(folder / "held_back.parquet"),
        validate_every=STEPS,
        steps=STEPS,
        replicas=(REPLICAS,),
        batch=BATCH,
        micro_batches=REPLICAS,
        sync=rule,
        log=str(log),
        quiet=True,
    )
    told = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    sent = sum(sum(step["sync_bytes"].values()) for step in told if "sync_bytes" in step)
    gaps = [gap for step in told for gap in step.get("replica_gap", {}).values()]
    asked, buffers = parse_rule(rule), (FlatBuffer(elements),)
    planned = asked.exchange(SyncGroup(REPLICAS, buffers, buffers, tensors)).sent_bytes
    # what is sent after a step is counted with the next one
    after_step = asked.period_steps > 1 or "on=step" in rule
    exchanges = (STEPS - after_step) // asked.period_steps
    loss = result.validations[-1].metrics["loss"]
    return Run(rule, loss, sent, planned * exchanges, gaps[-1] if gaps else None)


def compile_clicks(model: ClickModel, batch: int, folder: Path) -> None:
    """Write the model of clicks as one stage that trains, of any number of replicas."""
    example = torch.zeros(batch, FIELDS, dtype=torch.int64), torch.zeros(batch, NUMBERS)
    any_batch = {0: torch.export.Dim("batch")}
    heterps_compile.compile(
        model,
        example,
        mode="training",
        batch=batch,
        max_stages=1,
        verify=False,
        dynamic_shapes={"ids": any_batch, "numbers": any_batch},
    ).save(folder)


def processes() -> Iterator[str | Line]:
    clicks = Clicks()
    torch.manual_seed(0)
    model = ClickModel()
    elements = sum(parameter.numel() for parameter in model.parameters())
    tensors = len(list(model.parameters()))
    with TemporaryDirectory() as name:
        folder = Path(name)
        compile_clicks(model, BATCH, folder / "click.heterps")
        (folder / "train.py").write_text(TRAINING, encoding="utf-8")
        write(folder / "clicks.parquet", clicks.draw(BATCH * STEPS, 1))
        write(folder / "held_back.parquet", clicks.draw(10_000, 2))
        runs = [trained(folder, rule, elements, tensors) for rule in RULES]
    yield (
        f"clicks in processes: {elements:,} weights, {REPLICAS} replicas, {STEPS} steps of {BATCH} samples, through "
        "`heterps_compile.run`"
    )
    yield ""
    yield "| rule | held-back loss | of dense | bytes counted | bytes planned | gap |"
    yield "|---|---|---|---|---|---|"
    for one in runs:
        gap = "-" if one.gap is None else f"{100 * one.gap:.1f} %"
        of_dense = 100 * (one.loss / runs[0].loss - 1)
        sizes = f"{one.sent_bytes:,} | {one.planned_bytes:,}"
        yield f"| `{one.rule}` | {one.loss:.4f} | {of_dense:+.1f} % | {sizes} | {gap} |"
    off = [one.rule for one in runs if one.sent_bytes != one.planned_bytes and not one.rule.startswith("shadow")]
    yield ""
    what = f"bytes of {len(runs) - 1} rules in processes as planned"
    why = "sync_rules/; a thread beside passes over what it is late for"
    yield Line.fact("all", what, not off, ", ".join(off) or "yes", why)
