"""The HeterPS paper's comparison on its four kinds of model: `python tools/bench_paper.py [--floor SAMPLES/S]`.

Every method places CTRDNN, MATCHNET, 2EMB and NCE, with embedding tables of millions of rows, for training on the pool
`heterps-paper` with its prices and its roofline estimates. Two tables: the cost of a million samples at a throughput
floor over that of `rl`, and the throughput of `rl` under a budget per hour over theirs. The paper
(arXiv 2111.10635) reports at best 4.1 times lower cost and 14.5 times higher throughput than a baseline, on its own
models, prices and measured profiles. Tables are looked up with sparse gradients, as HeterPS' are; with ``--gradients
whole`` as PyTorch's embeddings by default are, whose gradients every micro-batch makes as large as the table.

Models are built without storage: nothing here needs the memory that their tables would take.
"""

import argparse
import math

import torch

from heterps_compile.bench.compare_methods import compare_methods
from heterps_compile.examples import EXAMPLES

METHODS = ("rl", "rl-rnn", "exact", "greedy", "genetic", "bayes", "cpu-only", "gpu-only", "heuristic")
BATCH = 4096
SIZES = {
    "ctrdnn": {"rows": 10_000_000},  # 26 tables of 640 MB
    "matchnet": {"users": 8_000_000, "items": 4_000_000},
    "2emb": {"rows": 8_000_000},
    "nce": {"rows": 8_000_000},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--floor", type=float, default=200_000.0, help="samples/s that every plan must reach")
    parser.add_argument("--budget", type=float, default=20.0, help="USD an hour that no plan may exceed")
    parser.add_argument("--mode", choices=("inference", "training"), default="training")
    parser.add_argument("--small", action="store_true", help="the examples with the tables they have by default")
    parser.add_argument("--gradients", choices=("sparse", "whole"), default="sparse", help="of tables")
    options = parser.parse_args()
    print(f"{options.mode}, batch {BATCH}, {options.gradients} gradients of tables, pool heterps-paper")
    for objective, limit in (
        ("cost", f"at {options.floor:,.0f} samples/s"),
        ("throughput", f"for {options.budget} USD/h"),
    ):
        print(f"\n{objective} {limit}: that of rl, and how many times worse the others are")
        print(f"{'model':<10}{'rl':>14}" + "".join(f"{name:>11}" for name in METHODS[1:]))
        for name, build in EXAMPLES.items():
            with torch.device("meta"):
                model, inputs = build(batch=BATCH, **({} if options.small else SIZES[name]))
            for module in model.modules():
                if isinstance(module, torch.nn.Embedding):
                    module.sparse = options.gradients == "sparse"
            found = compare_methods(
                model,
                inputs,
                mode=options.mode,
                objective=objective,
                min_throughput=options.floor if objective == "cost" else 0.0,
                budget=options.budget if objective == "throughput" else None,
                methods=METHODS,
                time_limit=20.0,
            )
            values = {row.method: row.value for row in found.results}
            best = values["rl"]
            shown = f"{best:.3g} USD" if objective == "cost" else f"{BATCH / best:,.0f}/s"
            ratios = [values[method] / best for method in METHODS[1:]]
            cells = "".join(f"{ratio:>11.3f}" if math.isfinite(ratio) else f"{'no plan':>11}" for ratio in ratios)
            print(f"{name:<10}{shown:>14}{cells}", flush=True)


if __name__ == "__main__":
    main()
