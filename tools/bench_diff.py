"""Time ``heterps-compile diff`` of two plans, in processes of their own, and what it imports for that.

python tools/bench_diff.py [LAYERS [STAGES]]
"""

import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from large_plan import large_findings
from plan_changes import fingerprint

from heterps_compile.plan.file import to_json
from heterps_compile.plan.plan import Plan

ROUNDS = 5
HEAVY = ("torch", "onnx", "onnx_ir", "onnxruntime", "numpy", "rich", "jinja2")
IMPORTED = (
    "import sys; from heterps_compile.cli.main import run; run(sys.argv[1:]); "
    f"print('imported:', [name for name in {HEAVY} if name in sys.modules] or 'nothing heavy')"
)


def renamed(plan: Plan) -> Plan:
    """Return the plan with another name for every layer, numbered in another order."""
    names = [name for stage in plan.stages for name in stage.layers]
    new = {name: f"node_{place * 7919 % len(names)}" for place, name in enumerate(names)}
    return replace(
        plan,
        stages=tuple(replace(stage, layers=tuple(new[name] for name in stage.layers)) for stage in plan.stages),
        fingerprints={new[name]: sign for name, sign in plan.fingerprints.items()},
    )


def moved(plan: Plan) -> Plan:
    """Return the plan with the last layer of the first stage in the second one."""
    first, second, *rest = plan.stages
    first, second = (
        replace(first, layers=first.layers[:-1]),
        replace(second, layers=(first.layers[-1], *second.layers)),
    )
    return replace(plan, stages=(first, second, *rest))


def timed(*words: str) -> tuple[float, float, str]:
    """Run Python with such words; give the seconds it took, those of the processor, and what it printed."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *words], check=False, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    of_processor_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, of_processor_s, done.stdout


def main(layers: int = 2000, stages: int = 16) -> None:
    plan = large_findings(layers, stages).plan
    plan = replace(plan, fingerprints={name: fingerprint(name) for stage in plan.stages for name in stage.layers})
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder, "old.json")
        old.write_text(to_json(plan), "ascii")
        for title, changed in (("every layer renamed", renamed(plan)), ("one layer moved", moved(plan))):
            new = Path(folder, "new.json")
            new.write_text(to_json(changed), "ascii")
            words = ["diff", str(old), str(new)]
            spent = [timed("-m", "heterps_compile", *words) for _ in range(ROUNDS)]
            spent.sort()
            least_s, most_s, of_processor_s = spent[0][0], spent[-1][0], min(s for _, s, _ in spent)
            print(
                f"{layers:,} layers, {title}: {least_s:.2f} to {most_s:.2f} s, of the processor {of_processor_s:.2f} s"
            )
            print(f"  {spent[0][2].splitlines()[0]}")
            print(f"  {timed('-c', IMPORTED, *words)[2].splitlines()[-1]}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
