"""The HeterPS paper's comparison on its four kinds of model: `python tools/bench_paper.py [--floor SAMPLES/S]`.

Every method places CTRDNN, MATCHNET, 2EMB and NCE for training, on the pool `heterps-paper` with its prices and its
roofline estimates; the table gives the cost of a million samples over that of `rl`. The paper (arXiv 2111.10635)
reports at best 4.1 times lower cost than its worst baseline, on its own models, prices and measured profiles.
"""

import argparse
import math

from heterps_compile.compare import compare_methods
from heterps_compile.examples import EXAMPLES

METHODS = ("rl", "rl-rnn", "exact", "greedy", "genetic", "bayes", "cpu-only", "gpu-only", "heuristic")
BATCH = 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--floor", type=float, default=200_000.0, help="samples/s that every plan must reach")
    parser.add_argument("--mode", choices=("inference", "training"), default="training")
    options = parser.parse_args()
    print(f"{options.mode}, batch {BATCH}, floor {options.floor:,.0f} samples/s, pool heterps-paper")
    print(f"{'model':<10}{'rl, USD':>10}" + "".join(f"{name:>11}" for name in METHODS[1:]) + "   cost over that of rl")
    for name, build in EXAMPLES.items():
        model, inputs = build(batch=BATCH)
        found = compare_methods(
            model, inputs, mode=options.mode, min_throughput=options.floor, methods=METHODS, time_limit=20.0
        )
        values = {row.method: row.value for row in found.results}
        ratios = [values[method] / values["rl"] for method in METHODS[1:]]
        cells = "".join(f"{ratio:>11.3f}" if math.isfinite(ratio) else f"{'no plan':>11}" for ratio in ratios)
        print(f"{name:<10}{values['rl']:>10.3g}{cells}", flush=True)


if __name__ == "__main__":
    main()
