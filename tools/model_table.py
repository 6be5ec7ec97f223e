"""Every real model through every backend, in at least three stages: `python tools/model_table.py [--write]`.

The stages are compared with the whole model, run by the runtime of the model's own family; then they are written,
loaded back and run again. Models are small, with random weights; see `tests/real_models.py`. With `--write` the table
in docs/backends.md is written anew.
"""

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import heterps_compile
from heterps_compile.errors import HeterpsError

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from real_models import REAL_MODELS, RealModel  # noqa: E402 - beside the tests, which share them

BACKENDS = ("torch", "onnxruntime", "jax")
PAGE = ROOT / "docs" / "backends.md"
BEGIN, END = "<!-- begin of the table -->", "<!-- end of the table -->"


@dataclass(frozen=True)
class Cell:
    """What one backend made of one model."""

    stages: int
    error: float
    seconds: float
    fault: str = ""

    def __str__(self) -> str:
        if self.fault:
            return self.fault.replace("|", "/").replace("\n", " ")
        return f"{self.error:.1e}, {self.stages} stages, {self.seconds:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table into docs/backends.md")
    parser.add_argument("--models", help="names, with commas between them; all where left out")
    parser.add_argument("--backends", default=",".join(BACKENDS))
    options = parser.parse_args()
    backends = options.backends.split(",")
    names = options.models.split(",") if options.models else list(REAL_MODELS)
    lines = [f"| model | {' | '.join(backends)} |", "|---" * (len(backends) + 1) + "|"]
    print("\n".join(lines), flush=True)
    failed = 0
    for name in names:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of packages that models come from
            model = REAL_MODELS[name]()
        if isinstance(model.model, torch.nn.Module):
            model.model.eval()
        cells = [try_one(model, backend) for backend in backends]
        failed += sum(bool(cell.fault) for cell in cells)
        lines.append(f"| {name} | {' | '.join(map(str, cells))} |")
        print(lines[-1], flush=True)
    print(f"{len(names) * len(backends) - failed} of {len(names) * len(backends)} work")
    if options.write:
        page = PAGE.read_text("utf-8")
        before, after = page[: page.index(BEGIN) + len(BEGIN)], page[page.index(END) :]
        PAGE.write_text(before + "\n" + "\n".join(lines) + "\n" + after, "utf-8")


def try_one(model: RealModel, backend: str) -> Cell:
    """Compile, verify, write, load and run; any failure is told in the cell."""
    began = time.perf_counter()
    warnings.filterwarnings("ignore", "The tensor attribute")  # torch.export on what a model remembers of a call
    try:
        compiled = heterps_compile.compile(
            model.model,
            model.inputs,
            example_kwargs=model.keywords,
            backend=backend,
            min_stages=3,
            method="greedy",
            time_limit=5.0,
        )
        seconds = time.perf_counter() - began
        with tempfile.TemporaryDirectory() as folder:
            compiled.save(Path(folder) / "out")
            reloaded = heterps_compile.load(Path(folder) / "out")
            inputs, keywords = inputs_of(compiled, model)
            difference(reloaded.run(*inputs, **keywords), compiled.run(*inputs, **keywords))
    except HeterpsError as error:
        return Cell(0, 0.0, 0.0, str(error))
    verification = compiled.plan.verification
    return Cell(len(compiled.stages), verification.max_rel if verification else float("nan"), seconds)


def inputs_of(compiled: Any, model: RealModel) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return what to call it with: the example, or for an ONNX model what its backend generates."""
    if model.inputs or model.keywords:
        return model.inputs, model.keywords or {}
    from heterps_compile.backends.find import find_backend  # noqa: PLC0415

    return (), find_backend("onnxruntime").example_inputs(compiled.graph, 0)


def difference(loaded: Any, built: Any) -> None:
    """Stop where what was loaded does not give what was built, to within rounding."""
    for ours, theirs in zip(flat(loaded), flat(built), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def flat(value: Any) -> list[Any]:
    """Return the arrays in a nested result."""
    if isinstance(value, Mapping):
        return [leaf for item in value.values() for leaf in flat(item)]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in flat(item)]
    if isinstance(value, torch.Tensor):
        return [value.detach().numpy()]
    return [] if value is None or isinstance(value, (bool, int, float, str)) else [np.asarray(value)]


if __name__ == "__main__":
    main()
