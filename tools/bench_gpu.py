"""What a machine with one GPU is asked: `python tools/bench_gpu.py [--device cuda:0] [--json FILE] [--dry-run]`.

1. Two processes send each other tensors of the GPU through memory that they share, and over gloo: NCCL refuses two
   ranks on one GPU. With two GPUs (`--peer cuda:1`), over NCCL too. One process runs two stages on streams of their
   own (`gpu_ways.py`).
2. A core and the GPU are calibrated, and make one pool.
3. CTRDNN is trained with its tables on CPU processes and its dense layers on the GPU, on CPU processes alone, and on
   the GPU alone.
4. A GPT is trained on the GPU in one stage and in two, each a process on the same GPU, or on two where there are two.

Not run on a GPU yet. What the plan predicts and what `heterps-compile run` measures (the median pace of its steps)
stand side by side. Without a GPU that is refused; `--dry-run` lets the CPU stand in for it, so that all of it but the
GPU is tried anywhere: its figures say nothing of a GPU.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import clock_models
import gpu_ways
import torch

import heterps_compile
from heterps_compile.ir.graph import Graph, OpKind
from heterps_compile.packages import installed_versions
from heterps_compile.passes.group_layers import group_nodes
from heterps_compile.plan.plan import Plan
from heterps_compile.profiling.calibration.calibrate import calibrate_unit
from heterps_compile.profiling.calibration.pool_entry import pool_text
from heterps_compile.profiling.host import describe_device
from heterps_compile.profiling.profile_model import Settings

CORE, GPU = "core", "gpu"
_HEADING = "[[device]]"
_WARM_UP = 5  # steps
_TRAIN = """import torch


def loss(outputs, batch):
    outputs = outputs[0] if isinstance(outputs, (list, tuple)) else outputs
    return outputs.square().mean()


def optimizer(parameters):
    return torch.optim.SGD([parameter for _, parameter in parameters], lr=1e-3)
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A plan to predict and to run.

    Attributes:
        what: In words.
        model: Of ``clock_models.MODELS``.
        batch: Samples of a step.
        data: What ``run --data`` is given.
        tables, first, rest: The device types of layers with tables, of the other layers of the first half, and of the
            second half.
        max_stages: At most so many; None where the search decides.
    """

    what: str
    model: str
    batch: int
    data: str
    tables: str
    first: str
    rest: str
    max_stages: int | None = None


_CLICKS = "random:sparse<2000"
_WORDS = "random:ids<1000"
CASES = (
    Case("CTRDNN, tables on CPU processes, dense layers on the GPU", "ctrdnn", 4096, _CLICKS, CORE, GPU, GPU),
    Case("CTRDNN, CPU processes alone", "ctrdnn", 4096, _CLICKS, CORE, CORE, CORE),
    Case("CTRDNN, the GPU alone", "ctrdnn", 4096, _CLICKS, GPU, GPU, GPU, 1),
    Case("GPT, the GPU in one stage", "gpt2", 64, _WORDS, GPU, GPU, GPU, 1),
    Case("GPT, the GPU in two stages", "gpt2", 64, _WORDS, GPU, GPU, f"{GPU}-again", 2),
)


@dataclass(frozen=True, slots=True)
class Result:
    """A case as it was predicted and measured, in samples per second.

    Attributes:
        what: The case.
        stages: Device and replicas of each.
        predicted: By the plan, every unit a device of its own.
        sharing: The same where all stages of GPUs take turns on one; the plan's where one stage has it.
        measured: By the run.
    """

    what: str
    stages: str
    predicted: float
    sharing: float
    measured: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0", help="the GPU, as PyTorch calls it")
    parser.add_argument("--peer", help="the GPU of the second of two processes; the first one's if not given")
    parser.add_argument("--dry-run", action="store_true", help="the CPU in the GPU's place")
    parser.add_argument(
        "--pool", type=Path, help="a pool with the types core and gpu; calibrated first where none is given"
    )
    parser.add_argument("--only", default="", help="cases whose words hold this")
    parser.add_argument("--steps", type=int, default=60, help="of every run")
    parser.add_argument("--json", type=Path, help="write the raw figures to a file")
    asked = parser.parse_args()
    if not asked.dry_run and not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU here; --dry-run tries all of it with the CPU in the GPU's place")
    warnings.simplefilter("ignore")
    device = "cpu" if asked.dry_run else asked.device
    _, called = describe_device(device)
    print(f"{called}{' in the place of a GPU' if asked.dry_run else ''}; {platform.platform()}", flush=True)
    print(", ".join(f"{name} {version}" for name, version in installed_versions(("torch",)).items()))
    print(*providers(), sep="\n", flush=True)
    print(*gpu_ways.ways((device, asked.peer or device)), gpu_ways.streams(device), sep="\n", flush=True)
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pool = asked.pool or folder / "pool.toml"
        if asked.pool is None:
            pool.write_text(calibrated(device))
        text = with_second_gpu(pool.read_text())
        pool = folder / "with-second.toml"
        pool.write_text(text)
        print("\n| run | stages | predicted | sharing the GPU | measured | predicted / measured |\n" + "|---" * 6 + "|")
        for place, case in enumerate(case for case in CASES if asked.only in case.what):
            found = tried(case, pool, folder / f"case-{place}", asked.steps)
            results.append(found)
            print(
                f"| {found.what} | {found.stages} | {found.predicted:,.0f} | {found.sharing:,.0f} | "
                f"{found.measured:,.0f} samples/s | {found.sharing / found.measured - 1:+.1%} |",
                flush=True,
            )
    if asked.json:
        figures = {"device": called, "dry_run": asked.dry_run, "pool": text, "runs": [asdict(each) for each in results]}
        asked.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def providers() -> Iterator[str]:
    """Yield what ONNX Runtime and jax would run on here."""
    try:
        import onnxruntime  # noqa: PLC0415 - another framework's, where it is installed

        yield f"ONNX Runtime {onnxruntime.__version__}: {', '.join(onnxruntime.get_available_providers())}"
    except ImportError as error:
        yield f"ONNX Runtime: {error}"
    try:
        import jax  # noqa: PLC0415 - as above

        yield f"jax {jax.__version__}: {', '.join(map(str, jax.devices()))}"
    except (ImportError, RuntimeError) as error:
        yield f"jax: {error}"


def calibrated(device: str) -> str:
    """Return a pool of the cores and the GPU of this machine, measured now."""
    core = pool_text(calibrate_unit(Settings(repeats=10, least_s=0.2)), CORE)
    gpu = pool_text(calibrate_unit(Settings(devices=(device,), repeats=10, least_s=0.2)), GPU)
    return core + "\n" + gpu[gpu.index(_HEADING) :]


def with_second_gpu(pool: str) -> str:
    """Return the pool with the GPU under a second name, so that two stages may be told apart."""
    parts = pool.split(_HEADING)
    (gpu,) = (part for part in parts[1:] if f'name = "{GPU}"' in part)
    return pool + "\n" + _HEADING + gpu.replace(f'name = "{GPU}"', f'name = "{GPU}-again"', 1)


def tried(case: Case, pool: Path, folder: Path, steps: int) -> Result:
    """Compile a case, run it, and hold the one against the other.

    Raises:
        SystemExit: where the run fails, with what it said.
    """
    graph = clock_models.read(case.model, training=True, batch=case.batch)
    compiled = heterps_compile.compile(
        graph,
        cluster=pool,
        objective="throughput",
        mode="training",
        pins=pins(graph, case),
        max_stages=case.max_stages,
        verify=False,
    ).save(folder)
    train, log = folder.with_suffix(".py"), folder.with_suffix(".jsonl")
    train.write_text(_TRAIN)
    command = [sys.executable, "-m", "heterps_compile", "run", str(folder), "--train", str(train), "--data", case.data]
    ended = subprocess.run(
        [*command, "--steps", str(steps), "--log", str(log), "-q"], capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise SystemExit(f"{case.what}: the run ended with {ended.returncode}\n{ended.stdout}{ended.stderr}")
    paces_s = [line["pace_s"] for line in map(json.loads, log.read_text().splitlines()) if "pace_s" in line]
    plan = compiled.plan
    stages = ", ".join(f"{stage.device} x {stage.replicas}" for stage in plan.stages)
    predicted = plan.readings.one_batch_alone.throughput_samples_per_s
    return Result(case.what, stages, predicted, sharing(plan), plan.batch / median(paces_s[_WARM_UP:]))


def sharing(plan: Plan) -> float:
    """Return the throughput where all stages of GPUs are on one, and compute in turns."""
    alone = plan.readings.one_batch_alone.throughput_samples_per_s
    on_gpu = [stage.compute_s * stage.replicas for stage in plan.stages if stage.device.startswith(GPU)]
    return alone if len(on_gpu) < 2 else min(alone, plan.batch / sum(on_gpu))


def pins(graph: Graph, case: Case) -> Mapping[str, str]:
    """Return the device type of every layer."""
    layers: Sequence[Any] = group_nodes(graph).layers
    half = len(layers) // 2
    return {
        layer.name: case.tables if layer.kind is OpKind.EMBEDDING else case.first if i < half else case.rest
        for i, layer in enumerate(layers)
    }


if __name__ == "__main__":
    sys.exit(main())
