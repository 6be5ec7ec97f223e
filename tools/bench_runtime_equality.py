"""Pipelines beside one process: `python tools/bench_runtime_equality.py [MODEL ...]`, `--help` for its options.

Five training steps of every model on every layout of replicas under every schedule, one process a replica; the largest
difference of a loss, a weight and a buffer from the model in one piece, relative to the scale of each: in float32
and in float64. Target: 1e-6.

Beside it stands what one process alone makes of a disturbance of its weights by one rounding: where that is large, the
training is chaotic, and ranks that add up gradients in another order than one process end up elsewhere. ResNet-50 is
so: its batch norms see a few samples each. It is thin here, 1/8 of its channels; --full adds the whole one, and takes
minutes.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import torch  # noqa: E402 - after the path, as all that follows
from staged_training import Case, Folders, differences, stage_count, train_staged, train_whole  # noqa: E402

WIDTHS = ((2, 1), (1, 2), (3, 1), (1, 2, 1), (2, 2))
SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b")
MODELS = ("ctrdnn", "gpt2", "skip", "resnet50-thin")
KINDS = {"float32": torch.float32, "float64": torch.float64}
TARGET = 1e-6


def measure(name: str, kind: str, schedules: Sequence[str], folders: Folders) -> bool:
    """Print the rows of a model; say whether every difference is within the target."""
    dtype = KINDS[kind]
    whole = train_whole(name, dtype=dtype)
    disturbed = differences(train_whole(name, dtype=dtype, disturbed=torch.finfo(dtype).eps), whole)
    print(f"{name:14} {kind:10} {'one process, disturbed':27} {_columns(disturbed)}", flush=True)
    cases = [
        Case(
            name,
            folders(name, stage_count(widths, schedule), dtype),
            widths,
            schedule,
            dtype=dtype,
        )
        for widths, schedule in product(WIDTHS, schedules)
    ]
    worst = 0.0
    for case, run in zip(cases, train_staged(cases, timeout_s=1800), strict=True):
        found = differences(run, whole)
        worst = max(worst, *found)
        layout = f"{list(case.widths)} {case.schedule}"
        print(f"{name:14} {kind:10} {layout:27} {_columns(found)}", flush=True)
    return worst <= TARGET


def _columns(found: tuple[float, float, float]) -> str:
    return " ".join(f"{difference:9.1e}" for difference in found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="ResNet-50 with all of its channels too")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this one; may be given again")
    parser.add_argument("--schedule", action="append", choices=SCHEDULES, help="only this one; may be given again")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join((*MODELS, 'resnet50'))}")
    options = parser.parse_args()
    kinds, schedules = options.kind or list(KINDS), options.schedule or SCHEDULES
    names = options.models or [*MODELS, *(["resnet50"] if options.full else [])]
    print(f"{'model':14} {'kind':10} {'replicas, schedule':27} {'loss':>9} {'weights':>9} {'buffers':>9}")
    within: dict[tuple[str, str], bool] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folders = Folders(Path(temporary))
        for name, kind in product(names, kinds):
            within[name, kind] = measure(name, kind, schedules, folders)
    for name in names:
        print(f"{name}: within {TARGET:g} in {', '.join(kind for kind in kinds if within[name, kind]) or 'none'}")
    return 0 if all(within[name, kind] for name in names for kind in kinds if kind != "float32") else 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
