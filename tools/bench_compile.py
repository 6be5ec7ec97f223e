"""Time whole processes, from start to end: `python tools/bench_compile.py [--rounds N] [CASE ...]`.

Rounds go through all cases in turn, so that a machine whose speed drifts slows all of them alike. Beside the best
time of each case stands its ratio to the reference, a bare `import torch, onnx`, which drifts with the machine too.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import onnx
from chain_model import chain_model

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from light_models import randomized  # noqa: E402 - the tests' models with their seeded weights

HEAVY = ("torch", "onnx", "jax", "networkx")
COMMAND = [sys.executable, "-m", "heterps_compile"]
REFERENCE = "import torch, onnx"

# Runs the help in a process that then tells which of the heavy modules it has loaded.
HELP = f"""
import json, sys
from heterps_compile.cli.main import run
run(["--help"])
print(json.dumps([m for m in {HEAVY} if m in sys.modules]), file=sys.stderr)
"""

# Reads, groups, annotates and checks.
CHAIN = """
import sys
from heterps_compile.cluster.load import load_cluster
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.ir.laws import verify_graph
from heterps_compile.ir.layers import verify_layers
from heterps_compile.passes.drafts import Annotated, Draft
from heterps_compile.passes.pipeline import run_to
from heterps_compile.plan.request import DEFAULT_CLUSTER, Request
graph = import_onnx(sys.argv[1], batch=8)
verify_graph(graph)
draft = run_to(Draft(graph=graph, cluster=load_cluster(DEFAULT_CLUSTER), request=Request()), Annotated)
verify_layers(draft.layers)
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A process to time, and the seconds it is allowed."""

    name: str
    command: list[str]
    target_s: float | None = None


def cases(folder: Path) -> list[Case]:
    """Write the models and give every case."""
    found = [
        Case("python -c pass", [sys.executable, "-c", "pass"]),
        Case(REFERENCE, [sys.executable, "-c", REFERENCE]),
        Case("heterps-compile --help", [*COMMAND, "--help"], 0.4),
    ]
    for name, target_s in (("squeezenet", 10.0), ("resnet50", 20.0)):
        path = folder / f"{name}.onnx"
        onnx.save(randomized(name, 0), path)
        found.append(Case(name, [*COMMAND, str(path), "-q", "--force", "-o", str(folder / f"{name}-out")], target_s))
    for nodes, chain_target_s in ((20_000, 10.0), (40_000, None)):
        path = folder / f"chain{nodes}.onnx"
        onnx.save(chain_model(nodes), path)
        found.append(Case(f"chain of {nodes:,} nodes", [sys.executable, "-c", CHAIN, str(path)], chain_target_s))
    return found


@dataclass(frozen=True, slots=True)
class Run:
    """The seconds of one run by the clock on the wall and by the processor, and the last line of its stderr."""

    wall_s: float
    processor_s: float
    told: str


def run(command: list[str]) -> Run:
    """Run a process to its end; a failing one ends the benchmark."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    processor_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Run(wall_s, processor_s, (done.stderr.splitlines() or [""])[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="*", help="part of a case's name; without any, all are run")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wanted = [
            case
            for case in cases(Path(folder))
            if not arguments.case or case.name == REFERENCE or any(part in case.name for part in arguments.case)
        ]
        runs: dict[str, list[Run]] = {case.name: [] for case in wanted}
        for _ in range(arguments.rounds):
            for case in wanted:
                runs[case.name].append(run(case.command))

    print(f"{arguments.rounds} rounds, {os.cpu_count()} cores, whole process")
    print(f"{'case':28}{'best s':>9}{'median s':>10}{'processor s':>13}{'x reference':>13}{'target s':>10}")
    reference_s = min(done.wall_s for done in runs[REFERENCE])
    for case in wanted:
        best_s = min(done.wall_s for done in runs[case.name])
        median_s = statistics.median(done.wall_s for done in runs[case.name])
        processor_s = min(done.processor_s for done in runs[case.name])
        target = f"{case.target_s:g}" if case.target_s else ""
        times = f"{best_s:9.2f}{median_s:10.2f}{processor_s:13.2f}"
        print(f"{case.name:28}{times}{best_s / reference_s:13.2f}{target:>10}")
    chains = [runs[case.name] for case in wanted if case.name.startswith("chain")]
    if len(chains) == 2:
        wall = min(r.wall_s for r in chains[1]) / min(r.wall_s for r in chains[0])
        processor = min(r.processor_s for r in chains[1]) / min(r.processor_s for r in chains[0])
        print(f"twice the nodes take {wall:.2f} times as long (target 2.3), {processor:.2f} times the processor's time")
    if "heterps-compile --help" in runs:
        loaded = json.loads(run([sys.executable, "-c", HELP]).told)
        print(f"heavy modules that --help imports: {', '.join(loaded) or 'none'}")


if __name__ == "__main__":
    main()
