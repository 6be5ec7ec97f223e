"""The package of DEHB's authors, in an environment of its own: it is asked here, and told the losses.

Left out: the problems and the comparison (``bench_tune.py``).
"""

import json
import subprocess
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from heterps_compile.tuning.parameters import Choice, Integer
from heterps_compile.tuning.space import Config, Space

PACKAGE = "dehb==0.1.2"

_CHILD = """
import json, sys, warnings
warnings.filterwarnings("ignore")
import ConfigSpace, numpy as np
from dehb import DEHB
plain = lambda value: value.item() if isinstance(value, np.generic) else value
for line in sys.stdin:
    said = json.loads(line)
    if "space" in said:
        space = ConfigSpace.ConfigurationSpace.from_json(said["space"])
        space.seed(said["seed"])
        search = DEHB(f=lambda *a, **k: {}, cs=space, min_fidelity=said["least"], max_fidelity=said["most"],
                      eta=said["eta"], seed=said["seed"], n_workers=1, output_path=said["folder"], log_level="ERROR",
                      save_freq="end")
    else:
        search.tell(asked, {"fitness": said["loss"], "cost": float(asked["fidelity"])})
    asked = search.ask()
    print(json.dumps({"config": {k: plain(v) for k, v in dict(asked["config"]).items()},
                      "fidelity": float(asked["fidelity"])}), flush=True)
"""


class Package:
    """The package in an interpreter of its own: it is asked here, and told the losses of this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "runs"
        self._child = subprocess.Popen(
            [environment(folder), "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def search(self, problem: Any, seed: int) -> Iterator[tuple[Config, float]]:
        folder = self._folder / f"{problem.name}-{seed}".replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "space.json").write_text(json.dumps(configspace_json(problem.space)))
        job = {"space": str(folder / "space.json"), "seed": seed, "folder": str(folder / "out")}
        of = problem.fidelity
        asked = self._say(job | {"least": of.least, "most": of.most, "eta": of.eta})
        while True:
            loss = yield asked["config"], asked["fidelity"]
            asked = self._say({"loss": loss})

    def _say(self, said: dict) -> dict:
        if self._child.stdin is None or self._child.stdout is None:
            raise RuntimeError("the child has no pipes")
        self._child.stdin.write(json.dumps(said) + "\n")
        self._child.stdin.flush()
        return json.loads(self._child.stdout.readline())

    def close(self) -> None:
        self._child.kill()
        self._child.communicate()


def configspace_json(space: Space) -> dict:
    """Return an unconditional space as ConfigSpace 1.2 reads it."""
    found = []
    for each in space.parameters:
        default = each.choices[0] if isinstance(each, Choice) else each.at(0.5)
        about: dict[str, object] = {"name": each.name, "meta": None, "default_value": default}
        if isinstance(each, Choice):
            ordered = not {*each.choices} <= {0, 1} and all(type(choice) in (int, float) for choice in each.choices)
            values = {"sequence": each.choices} if ordered else {"choices": each.choices, "weights": None}
            found.append({"type": "ordinal" if ordered else "categorical", **about, **values})
        else:
            kind = "uniform_int" if isinstance(each, Integer) else "uniform_float"
            found.append({"type": kind, **about, "lower": each.low, "upper": each.high, "log": each.log})
    of = {"name": None, "conditions": [], "forbiddens": [], "python_module_version": "1.2.0", "format_version": 0.4}
    return {**of, "hyperparameters": found}


def environment(folder: Path) -> Path:
    """Return the interpreter of an environment that has the package, made where it is not there."""
    python = folder / "bin/python"
    if not python.is_file():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", PACKAGE, "numpy<2"], check=True)
    return python
