"""Solve workloads for the least largest load: `python tools/bench_max_load.py [FILE|FOLDER ...]`.

Without arguments: the published workloads beside the checkout, where they are there, and generated larger ones of
their family. The table gives the value, the proven bound, the gap, the seconds, and the ratio to the best value known
from elsewhere.
"""

import argparse
import time
from pathlib import Path

from workload_family import inception, transformer

from heterps_compile.cost.workload import Workload
from heterps_compile.passes.max_load.blocks import Flow, contract
from heterps_compile.passes.max_load.contiguous import MAX_DOWN_SETS
from heterps_compile.passes.max_load.solve import solve_max_load
from heterps_compile.passes.partial_orders import enumerate_down_sets
from heterps_compile.problem_file.workload_file import read_workload

DATA = Path(__file__).parents[1] / "../shared/data/dnn-partitioning"

# The authors' own programs' results: proven.
KNOWN = {
    "LayerGraphs/bert24_inference": 17.7899,
    "LayerGraphs/bert24_training": 41.7458,
    "LayerGraphs/resnet50_inference": 33.7747,
    "LayerGraphs/gnmt_inference": 32.9107,
    "OperatorGraphs/bert_l-3_inference": 27.9186,
    "OperatorGraphs/bert_l-6_inference": 29.5795,
}


def files(paths: list[Path]) -> list[Path]:
    return [file for path in paths for file in (sorted(path.rglob("*.json")) if path.is_dir() else [path])]


def generated() -> list[Workload]:
    return [
        transformer(12, reshapes=4),
        transformer(45, reshapes=4),
        transformer(38, reshapes=7),
        transformer(30, reshapes=4, training=True),
        inception(11, branches=(3, 6, 6, 9)),
        inception(12, branches=(6, 9, 12, 2)),
        inception(60, branches=(3, 6, 9, 12)),
    ]


def down_sets(workload: Workload) -> str:
    counts = []
    for flow in Flow:
        family = enumerate_down_sets(contract(workload, flow), MAX_DOWN_SETS)
        counts.append(MAX_DOWN_SETS + 1 if family is None else len(family))
    return f"{max(counts):,}" if max(counts) <= MAX_DOWN_SETS else f">{MAX_DOWN_SETS:,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", nargs="*", type=Path, help="workload files, or folders of them")
    parser.add_argument("--time-limit", type=float, metavar="SECONDS", help="for each search")
    arguments = parser.parse_args()

    found = [("/".join(path.parts[-2:]).removesuffix(".json"), path) for path in files(arguments.path or [DATA])]
    cases = [(name, read_workload(path)) for name, path in found]
    if not arguments.path:
        cases += [(workload.name, workload) for workload in generated()]
    print(f"{'workload':38}{'nodes':>7}{'down-sets':>10}", end="")
    print(f"{'value':>11}{'bound':>11}{'gap %':>8}{'seconds':>9}{'x known':>9}")
    for name, workload in cases:
        start_s = time.perf_counter()
        result = solve_max_load(workload, time_limit_s=arguments.time_limit)
        took_s = time.perf_counter() - start_s
        ratio = f"{result.value_ms / KNOWN[name]:9.5f}" if name in KNOWN else f"{'-':>9}"
        print(f"{name:38}{len(workload.nodes):7,}{down_sets(workload):>10}", end="")
        print(f"{result.value_ms:11.4f}{result.bound_ms:11.4f}{100 * result.gap:8.3f}{took_s:9.2f}{ratio}", flush=True)


if __name__ == "__main__":
    main()
