"""What is measured of the runtime, one section after the other: `python tools/bench_runtime.py [SECTION...]`.

equality   five training steps on every layout and schedule against one process
clock      predicted stage times and throughput against measured ones
peer       throughput beside torch.distributed.pipelining, and what the pipeline itself costs
servers    rows pulled per second; a table four times its memory beside one that fits
data       readers, and how much of reading hides behind the compute
telemetry  what a record costs
soak       two minutes of killed workers and resumed runs

Each section is a script of its own, with options of its own: `python tools/bench_runtime_clock.py --help`.
"""

import subprocess
import sys
from pathlib import Path

_NAMES = ("equality", "clock", "peer", "servers", "data", "telemetry", "soak")
SECTIONS = {name: f"bench_runtime_{name}.py" for name in _NAMES}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        print(f"there is no section {unknown[0]!r}; known are {', '.join(SECTIONS)}", file=sys.stderr)
        return 2
    failed = []
    for name in names or SECTIONS:
        print(f"\n== {name} ==", flush=True)
        if subprocess.run([sys.executable, Path(__file__).with_name(SECTIONS[name])], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
