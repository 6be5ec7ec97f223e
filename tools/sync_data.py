"""Rules that know how data come, through the product's own `run`: `bench_sync.py --data`.

The day of five blocks of `bench_sync.py --runs` is trained in processes under `local` with its three rules, and the
held-back clicks of every block are scored by the validation of the run: with the predictor of the block where there is
one, else with the one averaged model. Quadratics say the rest to the digit: what predictors settle at, and how far from
the minimum training with one step ends with and without the table of `adsaga`.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from plain_rules import steady_models
from safetensors.torch import load_file
from sync_laws import Line
from sync_processes import compile_clicks, write
from sync_tasks import ClickModel, Clicks
from torch import Tensor, nn

import heterps_compile
from heterps_compile.sync_rules.assignment import parse_rule
from heterps_compile.sync_rules.rule import FlatBuffer, SyncGroup

BLOCKS, REPLICAS = 5, 4
BATCH, STEPS, BLOCK_STEPS, CYCLES, HELD_BACK = 512, 8, 32, 8, 5000
OF_BLOCKS = f"blocks={BLOCKS}, block_steps={BLOCK_STEPS}, skip=1"
RULES = (
    f"local(steps={STEPS})",
    f"local(steps={STEPS}, rule=mm, {OF_BLOCKS})",
    f"local(steps={STEPS}, rule=mc, {OF_BLOCKS})",
)
TRAINING = f"""
import torch

class AucOfBlocks:
    def __init__(self):
        self.reset()

    def reset(self):
        self.seen = []

    def update(self, outputs, labels):
        self.seen.append((outputs, labels))

    def compute(self):
        outputs, labels = (torch.cat(parts) for parts in zip(*self.seen))
        found = []
        for scores, truth in zip(outputs.chunk({BLOCKS}), labels.chunk({BLOCKS})):
            ranks = torch.empty(len(scores), dtype=torch.float64)
            ranks[scores.argsort()] = torch.arange(1, len(scores) + 1, dtype=torch.float64)
            positive = truth.sum().double()
            rank_sum = (ranks * truth).sum() - positive * (positive + 1) / 2
            found.append(float(rank_sum / (positive * (len(truth) - positive))))
        return sum(found) / len(found)

of_blocks = AucOfBlocks()

def loss(outputs, batch):
    return torch.nn.functional.binary_cross_entropy_with_logits(outputs, batch["label"])

def metrics(outputs, batch):
    of_blocks.update(outputs, batch["label"])
    return {{"auc": of_blocks}}

def optimizer(parameters):
    return torch.optim.Adam([parameter for _, parameter in parameters], lr=5e-3)
"""
QUADRATIC = """
import torch

def loss(outputs, batch):
    return outputs.square().sum(1).mean() / 2

def optimizer(parameters):
    return torch.optim.SGD([parameter for _, parameter in parameters], lr={rate})
"""


class Centre(nn.Module):
    """The place that is nearest to all samples, in float64."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.full((size,), 100.0, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.place - x


def blocks_of_clicks(folder: Path) -> Iterator[str | Line]:
    clicks = Clicks(BLOCKS)
    torch.manual_seed(0)
    model = ClickModel()
    elements = sum(parameter.numel() for parameter in model.parameters())
    compile_clicks(model, BATCH, folder / "click.heterps")
    (folder / "train.py").write_text(TRAINING, encoding="utf-8")
    drawn = [clicks.draw(BATCH * BLOCK_STEPS, 10 + place, place % BLOCKS) for place in range(BLOCKS * CYCLES)]
    write(folder / "clicks.parquet", tuple(map(torch.cat, zip(*drawn, strict=True))))
    held_back = [clicks.draw(HELD_BACK, 2_000_000 + block, block) for block in range(BLOCKS)]
    write(folder / "held_back.parquet", tuple(map(torch.cat, zip(*held_back, strict=True))))
    cycles = f"{CYCLES} cycles of {BLOCKS * BLOCK_STEPS} steps"
    yield f"clicks of {BLOCKS} blocks in processes: {REPLICAS} replicas, {cycles}"
    yield ""
    yield "| rule | AUC, mean over blocks | bytes counted | bytes planned |"
    yield "|---|---|---|---|"
    areas: list[float] = []
    off: list[str] = []
    for rule in RULES:
        log = folder / f"{len(areas)}.jsonl"
        result = heterps_compile.run(
            folder / "click.heterps",
            train=folder / "train.py",
            data=str(folder / "clicks.parquet"),
            validate=str(folder / "held_back.parquet"),
            replicas=(REPLICAS,),
            batch=BATCH,
            micro_batches=REPLICAS,
            sync=rule,
            log=str(log),
            quiet=True,
        )
        told = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
        sent = sum(sum(step["sync_bytes"].values()) for step in told if "sync_bytes" in step)
        asked, buffers = parse_rule(rule), (FlatBuffer(elements),)
        each = asked.exchange(SyncGroup(REPLICAS, buffers, buffers)).sent_bytes
        last = each // (2 if "rule=mc" in rule else 1)  # of the chain of all blocks, which no step comes after
        planned = each * (BLOCKS * BLOCK_STEPS * CYCLES // STEPS) - last
        areas.append(result.validations[-1].metrics["auc"])
        off += [] if sent == planned else [rule]
        yield f"| `{rule}` | {areas[-1]:.4f} | {sent:,} | {planned:,} |"
    yield ""
    for name, area in zip(("mm", "mc"), areas[1:], strict=True):
        what = f"clicks of {BLOCKS} blocks through run: AUC of {name} over the averaged model"
        yield Line("local", what, "higher", f"{area:.4f} over {areas[0]:.4f}", area > areas[0], "wanted of mm")
    yield Line.fact("local", "bytes of three rules as planned", not off, ", ".join(off) or "yes", "sync_rules/")


def quadratics(folder: Path) -> Iterator[Line]:
    per, batches = 4, 8
    centres = torch.eye(BLOCKS, dtype=torch.float64)
    noise = torch.randn(batches * per, BLOCKS, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    heterps_compile.compile(
        Centre(BLOCKS),
        (torch.ones(2, BLOCKS, dtype=torch.float64),),
        batch=per,
        mode="training",
        backend="torch",
        max_stages=1,
        min_throughput=1,
        verify=False,
    ).save(folder / "centre.heterps")

    def ended(name: str, samples: Tensor, rule: str, rate: float, **how: object) -> Path:
        (folder / "quadratic.py").write_text(QUADRATIC.format(rate=rate), encoding="utf-8")
        rows = pa.FixedSizeListArray.from_arrays(pa.array(samples.flatten().numpy()), BLOCKS)
        pq.write_table(pa.table({"x": rows}), folder / f"{name}.parquet")
        result = heterps_compile.run(
            folder / "centre.heterps",
            train=folder / "quadratic.py",
            data=str(folder / f"{name}.parquet"),
            replicas=(2,),
            batch=per,
            micro_batches=2,
            sync=rule,
            checkpoint=str(folder / name),
            quiet=True,
            **how,  # type: ignore[arg-type]
        )
        return Path(result.checkpoint)

    rule = f"local(steps=1, rule=mm, blocks={BLOCKS}, block_steps=1, skip=15)"
    found = ended("blocks", centres.repeat_interleave(per, 0), rule, 0.9, epochs=20)
    models = [load_file(found / f"block-{block + 1}-0.safetensors")["place"] for block in range(BLOCKS)]
    off = float((torch.stack(models) - steady_models(centres, 0.1)).abs().max())
    why = "x_m = (1 - q) sum q^j c_(m-j) / (1 - q^M), in float64"
    yield Line("local", "predictors of a run, off the formula by", "<= 1e-12", f"{off:.1e}", off <= 1e-12, why)
    minimum = noise.mean(0)

    def apart(name: str, rule: str, **how: object) -> float:
        place = load_file(ended(name, noise, rule, 0.1, epochs=60, **how) / "weights-0.safetensors")["place"]
        return float((place - minimum).norm())

    settled = steady_models(noise.view(batches, per, BLOCKS).mean(1), 0.9)[-1]
    why = "a chain over 8 batches settles at the formula of a chain over blocks"
    expected = float((settled - minimum).norm())
    yield Line.near(
        "adsaga", "all-reduce at one step: from the minimum", expected, apart("sgd", "all-reduce"), 1e-6, why
    )
    for name, text, how in (
        ("saga", "adsaga(batches=8)", {}),
        ("late", "adsaga(batches=8, delay=2)", {}),
        ("mixed", "adsaga(batches=8, delay=1)", {"shuffle": per}),
    ):
        off = apart(name, text, **how)
        what = f"{text}{' --shuffle 4' if how else ''}: from the minimum after 60 epochs"
        yield Line("adsaga", what, "<= 1e-10", f"{off:.1e}", off <= 1e-10, "linear convergence at a constant step")


def rules_of_data() -> Iterator[str | Line]:
    with TemporaryDirectory() as name:
        yield from blocks_of_clicks(Path(name))
        yield from quadratics(Path(name))
