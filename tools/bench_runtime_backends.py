"""Steps of pipelines with stages of torch, of jax, or of both: `python tools/bench_runtime_backends.py [MODEL ...]`.

Two stages of one replica each, four micro-batches, 1F1B, one thread a process. The median of some training steps
after two that compile and warm up, and its ratio to that of torch alone.
"""

import argparse
import statistics
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import torch  # noqa: E402 - after the path, as all that follows
from ranks import run_ranks  # noqa: E402
from staged_training import Folders, batch_of, reader  # noqa: E402
from trained_models import TRAINED  # noqa: E402

from heterps_compile.plan.folder import read_folder  # noqa: E402
from heterps_compile.runtime.pipeline.engine import Engine  # noqa: E402
from heterps_compile.runtime.pipeline.layout import StepShape, make_layout  # noqa: E402
from heterps_compile.runtime.pipeline.rank_parts import RankParts, StepOptions  # noqa: E402
from heterps_compile.runtime.pipeline.read_stage import read_stage, read_tied  # noqa: E402

MIXES = tuple(product(("torch", "jax"), repeat=2))
MODELS = ("gpt2-wide", "ctrdnn")
MICRO_BATCHES, WARM, STEPS = 4, 2, 12


def steps_of(rank: int, name: str, folder: Path) -> list[float]:
    """Train on one rank; give the seconds of every step."""
    trained = TRAINED[name]
    plan, _ = read_folder(folder)
    samples = trained.micro_batch * MICRO_BATCHES
    layout = make_layout(
        plan,
        training=True,
        replicas=(1, 1),
        step=StepShape(schedule="1f1b", micro_batches=MICRO_BATCHES, batch=samples),
    )
    stages = {index: read_stage(folder, plan, index, torch.device("cpu")) for index in layout.stages_of(rank)}
    engine = Engine(RankParts(plan, layout, rank, stages, tied=read_tied(folder, plan)), StepOptions(loss=trained.loss))
    optimizer = trained.optimizer(list(engine.named_parameters().items()))
    columns = batch_of(name, 0, MICRO_BATCHES, torch.float32)
    seconds = []
    for step in range(WARM + STEPS):
        began_s = time.perf_counter()
        engine.train_step(step, reader(columns, trained.micro_batch))
        optimizer.step()
        seconds.append(time.perf_counter() - began_s)
    engine.finish()
    return seconds[WARM:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(TRAINED)}")
    print(f"{'model':14} {'stages':12} {'step':>9} {'over torch':>10}")
    with tempfile.TemporaryDirectory() as temporary:
        folders = Folders(Path(temporary))
        for name in parser.parse_args().models or MODELS:
            alone_s = 0.0
            for mix in MIXES:
                by_rank = run_ranks(steps_of, 2, name, folders(name, 2, mix=mix))
                step_s = statistics.median(by_rank[-1])
                alone_s = alone_s or step_s
                print(f"{name:14} {'|'.join(mix):12} {step_s * 1e3:6.1f} ms {step_s / alone_s:10.2f}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
