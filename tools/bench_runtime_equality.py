"""Pipelines beside one process: `python tools/bench_runtime_equality.py [--full] [MODEL ...]`.

Five training steps of every model on every layout of replicas under every schedule, one process a replica; the largest
difference of a loss, a weight and a buffer from the model in one piece, relative to the scale of each, for float32 and
for float64. Target: 1e-6.

Beside it stands what one process alone makes of a disturbance of its weights by one rounding: where that is large, the
training is chaotic, and equality can be told in the wider type alone. ResNet-50 is so: its batch norms see a few
samples each. It is thin here, 1/8 of its channels; --full adds the whole one, and takes minutes.
"""

import argparse
import sys
import tempfile
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import torch  # noqa: E402 - after the path, as all that follows
from staged_training import Case, Folders, differences, stage_count, train_staged, train_whole  # noqa: E402

WIDTHS = ((2, 1), (1, 2), (3, 1), (1, 2, 1), (2, 2))
SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b")
MODELS = ("ctrdnn", "gpt2", "skip", "resnet50-thin")
DTYPES = (torch.float32, torch.float64)
TARGET = 1e-6


def measure(name: str, dtype: torch.dtype, folders: Folders) -> bool:
    """Print the rows of a model; say whether every difference is within the target."""
    shown = str(dtype).removeprefix("torch.")
    whole = train_whole(name, dtype=dtype)
    disturbed = differences(train_whole(name, dtype=dtype, disturbed=torch.finfo(dtype).eps), whole)
    print(f"{name:14} {shown:8} {'one process, disturbed':27} {_columns(disturbed)}", flush=True)
    cases = [
        Case(name, folders(name, stage_count(widths, schedule), dtype), widths, schedule, dtype=dtype)
        for widths, schedule in product(WIDTHS, SCHEDULES)
    ]
    worst = 0.0
    for case, run in zip(cases, train_staged(cases, timeout_s=1800), strict=True):
        found = differences(run, whole)
        worst = max(worst, *found)
        layout = f"{list(case.widths)} {case.schedule}"
        print(f"{name:14} {shown:8} {layout:27} {_columns(found)}", flush=True)
    return worst <= TARGET


def _columns(found: tuple[float, float, float]) -> str:
    return " ".join(f"{difference:9.1e}" for difference in found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="ResNet-50 with all of its channels too")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join((*MODELS, 'resnet50'))}")
    options = parser.parse_args()
    names = options.models or [*MODELS, *(["resnet50"] if options.full else [])]
    print(f"{'model':14} {'type':8} {'replicas, schedule':27} {'loss':>9} {'weights':>9} {'buffers':>9}")
    within: dict[tuple[str, torch.dtype], bool] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folders = Folders(Path(temporary))
        for name, dtype in product(names, DTYPES):
            within[name, dtype] = measure(name, dtype, folders)
    for name in names:
        types = [str(dtype).removeprefix("torch.") for dtype in DTYPES if within[name, dtype]]
        print(f"{name}: within {TARGET:g} in {' and '.join(types) or 'neither type'}")
    return 0 if all(within[name, torch.float64] for name in names) else 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
