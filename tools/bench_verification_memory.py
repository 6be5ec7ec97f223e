"""What verification takes in memory: `python tools/bench_verification_memory.py [--size 512MiB] [--backend NAME ...]`.

An ONNX model whose weights lie in external data is compiled into stages and verified, in a process of its own for each
backend. Shown is the largest resident memory above that of the process with all libraries loaded (it has compiled a
small model of the same ops before), over the bytes of the weights. Pages of mapped files count. Target: 1.3.
"""

import argparse
import ctypes
import gc
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from large_onnx import DATA, FORMS, PAGE, write_large_model  # noqa: E402 - after the path

from heterps_compile.errors import HeterpsError  # noqa: E402
from heterps_compile.units import format_bytes, parse_quantity  # noqa: E402

TARGET = 1.3
SMALL_BYTES = 2**20
BACKENDS = ("onnxruntime", "torch", "jax")


def measure(path: Path, small: Path, backend: str, mode: str, save_to: Path | None) -> dict[str, Any]:
    """Compile a small model, then the large one; give bytes before its stages are built, at the peak, and later."""
    import heterps_compile  # noqa: PLC0415 - in the process that measures alone

    found: dict[str, Any] = {}

    def begin(step: Any, _: Any) -> None:
        if step.name == "choose-schedule":  # the pass before the stages are built
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)  # what the search had
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            found["before"] = resident("VmRSS")

    for model in (small, path):
        made = heterps_compile.compile(
            model,
            batch=4,
            backend=backend,
            mode=mode,
            method="greedy",
            min_stages=3,
            max_stages=3,
            time_limit=10,
            observer=begin,
        )
    if made.plan.verification is None:
        raise SystemExit(f"not verified: {made.plan.notes}")
    found |= {"verified": resident("VmHWM"), "difference": made.plan.verification.max_rel, "after": resident("VmRSS")}
    if save_to is not None:
        made.save(save_to)
        found["saved"] = resident("VmHWM")
    return found


def resident(which: str) -> int:
    """Return the resident memory of this process, now (VmRSS) or at its peak (VmHWM), in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{which}:"))


def in_own_process(backends: Sequence[str], mode: str, folder: Path, *, saves: bool = False) -> list[dict[str, Any]]:
    """Measure the models in a folder on backends, one after the other in one process."""
    words = [word for backend in backends for word in ("--backend", backend)]
    words += ["--mode", mode, "--folder", str(folder), "--child", *(["--save"] if saves else [])]
    done = subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def write_models(folder: Path, weight_bytes: int, form: str = "plain", alignment: int = PAGE) -> int:
    """Write the large model and the small one; give the bytes of the large one's weights."""
    path = write_large_model(folder, weight_bytes, form=form, alignment=alignment)
    (folder / "small").mkdir()
    write_large_model(folder / "small", SMALL_BYTES, form=form, alignment=alignment)
    return path.with_name(DATA).stat().st_size


def over_weights(found: dict[str, Any], weight_bytes: int, key: str = "verified") -> float:
    """Return what was measured beyond the memory before, over the bytes of the weights."""
    return float((found[key] - found["before"]) / weight_bytes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=size_bytes, default="512MiB", help="of the weights")
    parser.add_argument("--backend", action="append", choices=BACKENDS)
    parser.add_argument("--mode", default="inference", choices=("inference", "training"))
    parser.add_argument("--alignment", type=int, default=PAGE, help="bytes, of the weights in their file")
    parser.add_argument("--form", default="plain", choices=tuple(FORMS), help="in which the weights are stored")
    parser.add_argument("--save", action="store_true", help="write the compiled folder as well")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    backends = given.backend or list(BACKENDS)
    if given.child:
        small = given.folder / "small" / "model.onnx"
        save_to = given.folder / "saved" if given.save else None
        for backend in backends:
            print(json.dumps(measure(given.folder / "model.onnx", small, backend, given.mode, save_to)))
        return 0
    worst = 0.0
    with tempfile.TemporaryDirectory() as name:
        weights = write_models(Path(name), given.size, given.form, given.alignment)
        for backend in backends:
            (found,) = in_own_process([backend], given.mode, Path(name), saves=given.save)
            ratio = over_weights(found, weights)
            worst = max(worst, ratio)
            saved = f", {over_weights(found, weights, 'saved'):.2f} with saving" if given.save else ""
            print(
                f"{backend:12} {format_bytes(weights)} of weights: {format_bytes(found['verified'] - found['before'])} "
                f"above {format_bytes(found['before'])}, {ratio:.2f} of the weights{saved}; "
                f"{over_weights(found, weights, 'after'):.2f} stay; difference {found['difference']:.1e}"
            )
    return int(worst > TARGET)


def size_bytes(text: str) -> int:
    """Read a size with its unit.

    Raises:
        argparse.ArgumentTypeError: where it is none.
    """
    try:
        return int(parse_quantity(text, "bytes"))
    except HeterpsError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
