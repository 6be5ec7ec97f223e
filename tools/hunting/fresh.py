"""A fresh process that loads folders and calls what is in them: ``python -m hunting.fresh JOBS``.

It knows nothing of the modules; inputs and results are arrays in files.
"""

import json
import subprocess
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .observe import Seen, observe, stage_gradients

PARTS = ("results", "gradients", "inputs", "scored")


@dataclass(frozen=True)
class Fault:
    """What was raised instead."""

    kind: str
    message: str
    ours: bool
    trace: str = ""


def write_job(
    folder: Path,
    calls: Sequence[tuple[Sequence[Any], Mapping[str, Any]]],
    level: str,
    paths: Any,
    *,
    scores: bool = False,
) -> None:
    """Write beside the folder ``out`` what it is to be called with, and whether it is to score besides."""
    described = []
    for number, (args, named) in enumerate(calls):
        values = [*args, *named.values()]
        arrays: dict[str, Any] = {f"v{i}": v.numpy() for i, v in enumerate(values) if isinstance(v, torch.Tensor)}
        np.savez(folder / f"call_{number}.npz", **arrays)
        numbers = {str(i): v for i, v in enumerate(values) if not isinstance(v, torch.Tensor)}
        described.append({"positional": len(args), "named": list(named), "numbers": numbers, "count": len(values)})
    job = {"calls": described, "level": level, "paths": paths, "scores": scores}
    (folder / "job.json").write_text(json.dumps(job))


def run_fresh(folders: Sequence[Path]) -> list[list[Seen] | Fault]:
    """Load and call every folder in one fresh process; give what it saw of each."""
    tools = Path(__file__).parents[1]
    command = [sys.executable, "-m", "hunting.fresh", *map(str, folders)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tools)
    found: list[list[Seen] | Fault] = []
    for folder in folders:
        answer = folder / "answer.json"
        if not answer.exists():
            found.append(
                Fault("process", f"the fresh process ended with {done.returncode}", False, done.stderr[-2000:])
            )
            continue
        told = json.loads(answer.read_text())
        found.append(
            Fault(**told["fault"]) if "fault" in told else [_read(folder, n, told) for n in range(told["calls"])]
        )
    return found


def _read(folder: Path, number: int, told: Any) -> Seen:
    seen = Seen()
    plain = told["plain"][number]
    with np.load(folder / f"seen_{number}.npz") as arrays:
        for part in PARTS:
            for name, place in told["places"][number][part].items():
                getattr(seen, part)[name] = plain[place] if place in plain else arrays[place]
    return seen


def _one(folder: Path) -> None:
    job = json.loads((folder / "job.json").read_text())
    try:
        answer = _answer(folder, job)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other process judges it
        from heterps_compile.errors import HeterpsError  # noqa: PLC0415 - beside what raised it

        ours = isinstance(error, HeterpsError)
        fault = Fault(type(error).__name__, str(error), ours, "" if ours else traceback.format_exc()[-2500:])
        answer = {"fault": fault.__dict__}
    (folder / "answer.json").write_text(json.dumps(answer))


def _answer(folder: Path, job: Any) -> dict[str, Any]:
    import heterps_compile  # noqa: PLC0415 - what is tried

    compiled = heterps_compile.load(folder / "out")
    # loaded by itself: what it has of the state is that of the model it is made from, which a score may move
    scoring = heterps_compile.load(folder / "out").eval().run if job["scores"] else None
    call, gradients = differentiable(compiled) if job["level"] != "none" else (compiled.run, dict)
    paths = [tuple(map(tuple, path)) for path in job["paths"]]
    places: list[Any] = []
    plain: list[Any] = []
    for number, described in enumerate(job["calls"]):
        with np.load(folder / f"call_{number}.npz") as arrays:
            values = [
                torch.from_numpy(arrays[f"v{i}"]) if f"v{i}" in arrays else described["numbers"][str(i)]
                for i in range(described["count"])
            ]
        named = dict(zip(described["named"], values[described["positional"] :], strict=True))
        args = values[: described["positional"]]
        # once, on the state that was saved
        scored = observe(scoring, args, named, seed=1, paths=paths) if scoring is not None and number == 0 else Seen()
        seen = observe(call, args, named, level=job["level"], seed=number + 1, parameters=gradients, paths=paths)
        seen.scored = scored.results
        kept: dict[str, Any] = {}
        where: dict[str, dict[str, str]] = {}
        simple: dict[str, Any] = {}
        for part in PARTS:
            where[part] = {}
            for name, value in getattr(seen, part).items():
                place = f"{part}_{len(where[part])}"
                where[part][name] = place
                (kept if isinstance(value, np.ndarray) else simple)[place] = value
        np.savez(folder / f"seen_{number}.npz", **kept)
        places.append(where)
        plain.append(simple)
    return {"calls": len(job["calls"]), "places": places, "plain": plain}


def differentiable(compiled: Any) -> tuple[Any, Any]:
    """Return a call through which gradients flow, and what gives them afterwards."""
    from heterps_compile.compiled_model import backend_of  # noqa: PLC0415
    from heterps_compile.runtime.in_process import run_stages  # noqa: PLC0415

    backend = backend_of(compiled.plan)
    if backend.capabilities.is_module or not backend.capabilities.trains:
        return compiled.run, lambda: stage_gradients(compiled.stages)
    modules = [backend.as_module(stage, torch.device("cpu")) for stage in compiled.stages]

    def call(*args: Any, **named: Any) -> Any:
        values = compiled.signature.bind(args, named)
        return compiled.signature.assemble(
            run_stages(compiled.plan.stages, modules, values, compiled.plan.graph_outputs)
        )

    return call, lambda: stage_gradients(modules)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        _one(Path(name))
