"""Print how many of ONNX's own node tests a backend's op table passes, of all there are.

    tools/onnx_conformance.py --backend torch [--failed] [--op Resize]

A test counts as passed where the results agree within the tolerance that the test itself names; a test with an op
that the table does not have counts as not passed, as does one of a sequence, a string or a control-flow op.
"""

import argparse
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from onnx_node_cases import fault, node_cases  # noqa: E402 - the tests judge the same way


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="torch", choices=("torch", "jax"))
    parser.add_argument("--failed", action="store_true", help="print every test of declared ops that fails, and why")
    parser.add_argument("--op", help="only tests with this op")
    options = parser.parse_args()
    runner = import_module(f"heterps_compile.backends.{options.backend}.run_onnx")
    declared = runner.declared_ops()
    counts: Counter[str] = Counter()
    for case in node_cases():
        if options.op and options.op not in {name for _, name in case.ops}:
            continue
        counts["all"] += 1
        if not case.ops <= declared.keys():
            counts["with an op that is not declared"] += 1
            continue
        try:
            wrong = fault(case, runner)
        except Exception as error:  # noqa: BLE001 - whatever it raises, the test is not passed
            wrong = f"{type(error).__name__}: {error}"
        counts["failed" if wrong else "passed"] += 1
        if wrong and options.failed:
            print(f"{case.name}: {wrong[:300]}")
    print(f"ops declared: {len(declared)}")
    for what in ("passed", "failed", "with an op that is not declared"):
        share = counts[what] / max(counts["all"], 1)
        print(f"{what}: {counts[what]} of {counts['all']} node tests ({share:.1%})")


if __name__ == "__main__":
    main()
