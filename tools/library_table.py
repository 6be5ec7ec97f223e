"""Ordinary library models at the first try: `python tools/library_table.py [--write]`.

Each model is given as its users call it, compiled in two stages where it has two layers, verified, saved, loaded in a
fresh process that imports nothing of the library, and run there; results are held against the model's own. With
`--write` the page docs/models.md is written anew.
"""

import argparse
import logging
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

from hunting.fresh import Fault, run_fresh, write_job
from hunting.observe import Seen, observe, taken_apart
from library_models import LIBRARY_MODELS
from real_models import RealModel

import heterps_compile
from heterps_compile.errors import HeterpsError, InfeasibleError

BACKENDS = ("torch", "onnxruntime", "jax")
PAGE = Path(__file__).parents[1] / "docs" / "models.md"
BEGIN, END = "<!-- begin of the table -->", "<!-- end of the table -->"
_TOLERANCE = 1e-3
_IN_ONE_PROCESS = 10


@dataclass(frozen=True)
class Cell:
    """What one backend made of one model at the first try."""

    works: bool
    text: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table into docs/models.md")
    parser.add_argument("--models", help="names, with commas between them; all where left out")
    parser.add_argument("--backends", default=",".join(BACKENDS))
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of libraries that we only try
    logging.disable(logging.WARNING)
    backends = options.backends.split(",")
    names = options.models.split(",") if options.models else list(LIBRARY_MODELS)
    cells: dict[str, dict[str, Cell]] = {name: {} for name in names}
    with tempfile.TemporaryDirectory() as folder:
        for begin in range(0, len(names), _IN_ONE_PROCESS):
            for backend in backends:
                some = names[begin : begin + _IN_ONE_PROCESS]
                for name, cell in try_all(some, backend, Path(folder) / f"{begin}_{backend}").items():
                    cells[name][backend] = cell
    for backend in backends:
        print(share(cells, backend), flush=True)
    lines = [f"| model | {' | '.join(backends)} |", "|---" * (len(backends) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(cells[name][b].text for b in backends)} |" for name in names]
    lines += ["", *(share(cells, backend) for backend in backends)]
    if options.write:
        page = PAGE.read_text("utf-8")
        before, after = page[: page.index(BEGIN) + len(BEGIN)], page[page.index(END) :]
        PAGE.write_text(before + "\n" + "\n".join(lines) + "\n" + after, "utf-8")


def share(cells: Mapping[str, Mapping[str, Cell]], backend: str) -> str:
    """Say how many work at the first try."""
    works = sum(row[backend].works for row in cells.values())
    return f"- `{backend}`: {works} of {len(cells)}, {100 * works / len(cells):.0f} %"


def try_all(names: Sequence[str], backend: str, folder: Path) -> dict[str, Cell]:
    """Compile and save every model, then load all folders in one fresh process."""
    cells: dict[str, Cell] = {}
    waiting: list[tuple[str, Path, Seen, str]] = []
    for index, name in enumerate(names):
        made = folder / str(index)
        made.mkdir(parents=True)
        found = compile_one(LIBRARY_MODELS[name](), backend, made)
        if isinstance(found, Cell):
            cells[name] = found
            print(f"{backend}: {name}: {found.text}", flush=True)
        else:
            waiting.append((name, made, *found))
            print(f"{backend}: {name}: compiled, {found[1]}", flush=True)
    if waiting:
        cells.update(load_all(waiting, backend))
    shutil.rmtree(folder)
    return cells


def load_all(waiting: Sequence[tuple[str, Path, Seen, str]], backend: str) -> dict[str, Cell]:
    """Load the folders in one fresh process, and hold what they give there against the models."""
    cells: dict[str, Cell] = {}
    answers = run_fresh([made for _, made, _, _ in waiting])
    for (name, _, wanted, text), saw in zip(waiting, answers, strict=True):
        fault = f"in a fresh process: {saw.message}" if isinstance(saw, Fault) else differs(saw[0], wanted)
        cells[name] = Cell(not fault, shown(fault) if fault else text)
        print(f"{backend}: {name}: {cells[name].text}", flush=True)
    return cells


def compile_one(model: RealModel, backend: str, folder: Path) -> Cell | tuple[Seen, str]:
    """Compile, verify, save; give the results of the model itself and what the table says, or what is wrong."""
    began = time.perf_counter()
    keywords = dict(model.keywords or {})
    try:
        compiled = _compiled(model, backend)
        seconds = time.perf_counter() - began
        compiled.save(folder / "out")
    except HeterpsError as error:
        return Cell(False, shown(str(error)))
    except Exception as error:  # noqa: BLE001 - a fault of ours, told in the table
        return Cell(False, shown(f"**{type(error).__name__}**: {error}"))
    with torch.no_grad():
        result = compiled.run(*model.inputs, **keywords)
    # with gradients on: kernels for evaluation alone give other numbers at padded positions
    wanted = observe(model.model, model.inputs, keywords, level="parameters")
    paths = [path for path, leaf in taken_apart(result) if leaf is not None]
    write_job(folder, [(model.inputs, keywords)], "none", paths)
    verified = compiled.plan.verification
    error_text = f"{verified.max_rel:.0e}" if verified else "not verified"
    return wanted, f"{error_text}, {len(compiled.stages)} stages, {seconds:.1f} s"


def _compiled(model: RealModel, backend: str) -> Any:
    for stages in (2, 1):
        try:
            return heterps_compile.compile(
                model.model,
                model.inputs,
                example_kwargs=model.keywords,
                backend=backend,
                min_stages=stages,
                method="greedy",
            )
        except InfeasibleError:
            if stages == 1:
                raise
    raise AssertionError


def differs(saw: Seen, wanted: Seen) -> str:
    """Say where a result is another than the model's own; "" for none."""
    for name, ours in saw.results.items():
        theirs = wanted.results.get(name)
        if not isinstance(theirs, np.ndarray) or theirs.size == 0:
            continue
        if ours.shape != theirs.shape:
            return f"in a fresh process {name} is {list(ours.shape)} instead of {list(theirs.shape)}"
        odd = ~np.isfinite(theirs)
        size = float(np.abs(np.where(odd, 0.0, ours - theirs.astype(np.float64))).max())
        if size > _TOLERANCE * max(float(np.abs(np.where(odd, 0.0, theirs)).max()), 1e-6):
            return f"in a fresh process {name} differs by {size:.2g}"
    return "" if saw.results else "in a fresh process nothing is returned"


def shown(message: str) -> str:
    """Give a message as a cell of a table takes it."""
    return message.replace("|", "/").replace("\n", " ").replace("<", "&lt;")[:300]


if __name__ == "__main__":
    main()
