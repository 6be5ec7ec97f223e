"""Ordinary library models at the first try: `python tools/library_table.py [--write]`.

Each model is given as its users call it, compiled in two stages where it has two layers, verified, saved, loaded in a
fresh process that imports nothing of the library, and run there; results are held against the model's own. With
`--write` their cells in docs/models.md are written anew, ten models at a time.
"""

import argparse
import logging
import re
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
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
_NOTHING = 1e-9
_IN_ONE_PROCESS = 10
_UNTRIED = "not tried"
_WORKS = re.compile(r"[^ ]+(?: verified| in float64)?, \d+ stages?, [\d.]+ s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write these cells of the table in docs/models.md anew")
    parser.add_argument("--models", help="names, with / between them; all where left out")
    parser.add_argument("--backends", default=",".join(BACKENDS))
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of libraries that we only try
    logging.disable(logging.WARNING)
    backends = options.backends.split(",")
    names = options.models.split("/") if options.models else list(LIBRARY_MODELS)
    print(f"{len(names)} models on {', '.join(backends)}; {versions()}", flush=True)
    table: dict[str, dict[str, str]] = read_table(PAGE.read_text("utf-8")) if options.write else {}
    with tempfile.TemporaryDirectory() as folder:
        for begin in range(0, len(names), _IN_ONE_PROCESS):
            some = names[begin : begin + _IN_ONE_PROCESS]
            for backend in backends:
                for name, text in try_all(some, backend, Path(folder) / f"{begin}_{backend}").items():
                    table.setdefault(name, {})[backend] = text
            if options.write:
                PAGE.write_text(with_table(PAGE.read_text("utf-8"), table), "utf-8")
    print("\n".join(share(table, backend) for backend in backends))


def versions() -> str:
    """Name what is tried, with the versions that are installed."""
    return ", ".join(f"{name} {version(name)}" for name in ("torch", "onnxruntime", "jax", "transformers"))


def share(table: Mapping[str, Mapping[str, str]], backend: str) -> str:
    """Say how many of the models that were tried work at the first try."""
    cells = [row[backend] for row in table.values() if backend in row]
    works = sum(_WORKS.fullmatch(cell) is not None for cell in cells)
    return f"- `{backend}`: {works} of {len(cells)}, {100 * works / max(len(cells), 1):.0f} %"


def read_table(page: str) -> dict[str, dict[str, str]]:
    """Return the cells of a page by model and backend."""
    inside = page[page.index(BEGIN) + len(BEGIN) : page.index(END)]
    header, _, *rows = [line[2:-2].split(" | ") for line in inside.splitlines() if line.startswith("|")]
    cells = {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows}
    return {name: {b: text for b, text in row.items() if text != _UNTRIED} for name, row in cells.items()}


def with_table(page: str, table: Mapping[str, Mapping[str, str]]) -> str:
    """Return a page with a table in the place of its own."""
    lines = [f"| model | {' | '.join(BACKENDS)} |", "|---" * (len(BACKENDS) + 1) + "|"]
    rows = [(name, [table[name].get(b, _UNTRIED) for b in BACKENDS]) for name in LIBRARY_MODELS if name in table]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows]
    lines += ["", f"With {versions()}:", "", *(share(table, backend) for backend in BACKENDS)]
    before, after = page[: page.index(BEGIN) + len(BEGIN)], page[page.index(END) :]
    return before + "\n" + "\n".join(lines) + "\n" + after


def try_all(names: Sequence[str], backend: str, folder: Path) -> dict[str, str]:
    """Compile and save every model, then load all folders in one fresh process; give the cell of each."""
    cells: dict[str, str] = {}
    waiting: list[tuple[str, Path, Seen, str]] = []
    for index, name in enumerate(names):
        made = folder / str(index)
        made.mkdir(parents=True)
        found = compile_one(LIBRARY_MODELS[name](), backend, made)
        if isinstance(found, str):
            cells[name] = found
        else:
            waiting.append((name, made, *found))
    answers = run_fresh([made for _, made, _, _ in waiting]) if waiting else []
    for (name, _, wanted, text), saw in zip(waiting, answers, strict=True):
        fault = f"in a fresh process: {saw.message}" if isinstance(saw, Fault) else differs(saw[0], wanted)
        cells[name] = shown(fault) if fault else text
    for name in names:
        print(f"{backend}: {name}: {cells[name]}", flush=True)
    shutil.rmtree(folder)
    return cells


def compile_one(model: RealModel, backend: str, folder: Path) -> str | tuple[Seen, str]:
    """Compile, verify, save; give the results of the model itself and its cell, or what is wrong."""
    began = time.perf_counter()
    keywords = dict(model.keywords or {})
    try:
        compiled = _compiled(model, backend)
        seconds = time.perf_counter() - began
        compiled.save(folder / "out")
    except HeterpsError as error:
        return shown(str(error))
    except Exception as error:  # noqa: BLE001 - a fault of ours, told in the table
        return shown(f"**{type(error).__name__}**: {error}")
    with torch.no_grad():
        result = compiled.run(*model.inputs, **keywords)
    paths = [path for path, leaf in taken_apart(result) if leaf is not None]
    write_job(folder, [(model.inputs, keywords)], "none", paths)
    verified = compiled.plan.verification
    error_text = f"{verified.max_rel:.0e}" if verified else "not verified"
    text = f"{error_text}, {len(compiled.stages)} stages, {seconds:.1f} s"
    if any(note.startswith("verified in float64") for note in compiled.plan.notes):
        # near-ties: what is loaded is held against what was saved
        return observe(compiled.run, model.inputs, keywords), text.replace(",", " in float64,", 1)
    # with gradients on: kernels for evaluation alone give other numbers at padded positions
    wanted = observe(model.model, model.inputs, keywords, level="parameters")
    if all(
        np.abs(value).max(initial=0) < _NOTHING for value in wanted.results.values() if isinstance(value, np.ndarray)
    ):
        return "its results are 0, so that nothing is compared"
    return wanted, text


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
    """Return a message as a cell of a table takes it."""
    return message.replace("|", "/").replace("\n", " ").replace("<", "&lt;")[:300]


if __name__ == "__main__":
    main()
