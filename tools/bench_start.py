"""Time the start of a run: 20 steps of a toy model, beside a plain PyTorch script that imports and steps as much.

    python tools/bench_start.py [--ranks 3] [--rounds 5] [--other TREE ...]

Prints, in the middle of all rounds, the seconds and processor seconds of each as multiples of the script's. ``--other``
names other trees of this repository, of other commits for one, whose command runs the same folder in turn.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

TRAIN = """
import torch

def loss(outputs, batch):
    return outputs.square().mean()

def optimizer(parameters):
    return torch.optim.Adam([parameter for _, parameter in parameters])
"""

PLAIN = """
import torch
from torch import nn

model = nn.Sequential(*[layer for _ in range({ranks}) for layer in (nn.Linear(32, 32), nn.ReLU())])
optimizer = torch.optim.Adam(model.parameters())
for _ in range(20):
    optimizer.zero_grad()
    model(torch.randn(32, 32)).square().mean().backward()
    optimizer.step()
"""

COMPILE = """
import sys
import torch
from torch import nn
from heterps_compile import compile

model = nn.Sequential(*[layer for _ in range({ranks}) for layer in (nn.Linear(32, 32), nn.ReLU())])
made = compile(model, (torch.randn(32, 32),), mode="training", min_stages={ranks}, max_stages={ranks})
made.save(sys.argv[1])
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--other", type=Path, action="append", default=[])
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "train.py").write_text(TRAIN)
        (folder / "plain.py").write_text(PLAIN.format(ranks=asked.ranks))
        (folder / "compile.py").write_text(COMPILE.format(ranks=asked.ranks))
        rows = {"plain PyTorch, one process": (ROOT, [str(folder / "plain.py")])}
        for tree in (ROOT, *(other.resolve() for other in asked.other)):
            model = str(folder / tree.name)
            run(tree, [str(folder / "compile.py"), model])
            words = ["-P", "-m", "heterps_compile", "run", model, "--train", str(folder / "train.py"), "-q"]
            words += ["--data", "random", "--steps", "20", "--replicas", ",".join(["1"] * asked.ranks)]
            rows[f"run, {asked.ranks} ranks" + ("" if tree == ROOT else f", {tree.name}")] = (tree, words)
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in rows}
        for _ in range(asked.rounds):
            for name, (tree, command) in rows.items():
                taken[name].append(run(tree, command))
    wall_s, processor_s = ([statistics.median(t[k] for t in each) for each in taken.values()] for k in (0, 1))
    print(f"{'':40} {'time':>8} {'':>6} {'processor time':>16}")
    for name, wall, processor in zip(taken, wall_s, processor_s, strict=True):
        print(
            f"{name:40} {wall:6.2f} s {wall / wall_s[0]:5.2f} x {processor:12.2f} s {processor / processor_s[0]:5.2f} x"
        )


def run(tree: Path, words: list[str]) -> tuple[float, float]:
    """Run Python with a tree's package; return the seconds and processor seconds that it took."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, env=environment, stdout=subprocess.DEVNULL)
    took_s, after = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
