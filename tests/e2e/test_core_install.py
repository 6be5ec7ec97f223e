"""Plans are reviewed with the core alone: without PyTorch, ONNX, ONNX Runtime, jax and the solvers.

Every command that reads plan files says the same to the letter as with all of them; what needs one is refused with what
to type. Here imports are hidden; the slow test installs the wheel into an environment that has the core alone.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from plan_changes import drawn
from printed import printed

from heterps_compile.packages import EXTRAS
from heterps_compile.plan.file import to_json

ROOT = Path(__file__).parents[2]
MODULES = sorted({package.replace("-", "_") for packages in EXTRAS.values() for package in packages})

PRINTED = (
    "--help",
    "--version",
    "man diff",
    "completion bash",
    "clusters list",
    "clusters show heterps-paper",
    "offers --gpu a100",
    "show new.json",
    "show new.json -v",
    "show new.json --json",
    "show --schema",
    "diff old.json new.json",
    "diff old.json new.json --format json",
    "diff old.json new.json --format markdown",
    "diff old.json new.json --format github",
    "diff old.json new.json --fail-on price>5%,placement",
    "diff old.json new.json --report page.html",
    "simulate new.json",
    "simulate new.json --json",
    "simulate new.json --schedule 1f1b --micro-batches 8 --trace step.json",
    "explain b --plan new.json",
    "explain b --plan new.json --json",
    "show torn.json",
    "check --against new.json",
    "check --against new.json --format json",
    "check --against new.json --format github",
    "check --against torn.json",
)
"""What prints the same, and leaves the same files."""

ONNX = "reading an ONNX model needs onnx, onnx-ir and onnxruntime"
SEARCHES_ONNX = (
    f"{ONNX}; the placement method 'best' needs highspy, networkx and numba; these are not installed: "
    "pip install 'heterps-compile[onnx]'"
)
READS_ONNX = f"{ONNX}, which are not installed: pip install 'heterps-compile[onnx]'"
REFUSED = {
    "m.onnx": SEARCHES_ONNX,
    "m.onnx --method exact": f"{ONNX}; the placement method 'exact' needs highspy, networkx and numba; these are not "
    "installed: pip install 'heterps-compile[onnx]'",
    "check m.onnx --against new.json --cluster edge": SEARCHES_ONNX,
    "explain a --model m.onnx --plan new.json --cluster edge": READS_ONNX,
    "bench m.onnx": READS_ONNX,
    "advise m.onnx --gpu v100 --speed-up 2": READS_ONNX,
    "profile m.onnx": "measuring layers needs safetensors and torch, which are not installed: "
    "pip install 'heterps-compile[torch]'",
    "run folder --data random": "running stages needs safetensors and torch, which are not installed: "
    "pip install 'heterps-compile[torch]'",
    "launch folder": "running stages needs safetensors and torch, which are not installed: "
    "pip install 'heterps-compile[torch]'",
    "tune space.toml --model m.py --train t.py --metric loss -o s": "running trials needs safetensors and torch, which "
    "are not installed: pip install 'heterps-compile[torch]'",
    "ops --backend jax": "the backend 'jax' needs jax and safetensors, which are not installed: "
    "pip install 'heterps-compile[jax]'",
}
"""What needs a package, and what it says."""

CODES = {"check": 2}  # it could not be judged

WITHOUT = f"""
import json, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
sys.modules.update(dict.fromkeys({MODULES!r}))
from printed import printed
json.dump([printed(words) for words in json.load(sys.stdin)], sys.stdout)
"""


@pytest.fixture
def folder(tmp_path):
    """Make a folder with two plans, one with conflict markers, and a model nobody can read."""
    old, new = drawn("2 cpu: a b | 1 v100: c"), drawn("3 cpu: a | 1 v100: b c")
    for name, plan in (("old", old), ("new", new)):
        (tmp_path / f"{name}.json").write_text(to_json(replace(plan, hashes={})), "ascii")
    (tmp_path / "torn.json").write_text(
        '{\n<<<<<<< HEAD\n"version": 1,\n=======\n"version": 2,\n>>>>>>> b\n}\n', "ascii"
    )
    (tmp_path / "m.onnx").write_bytes(b"")
    return tmp_path


def files(folder: Path) -> dict[str, bytes]:
    """Take the files that a command has written."""
    found = {path.name: path.read_bytes() for path in (folder / "page.html", folder / "step.json") if path.exists()}
    for name in found:
        (folder / name).unlink()
    return found


def test_plans_are_reviewed_without_the_packages_that_models_need(folder, monkeypatch):
    """A process with imports hidden says what this one says, and ends as it does."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        input=json.dumps([*PRINTED, *REFUSED]),
        cwd=folder,
        env=dict(os.environ),  # and not what C code set beside it: readline sets COLUMNS
        capture_output=True,
        text=True,
        check=True,
    )
    said, written = dict(zip([*PRINTED, *REFUSED], json.loads(done.stdout), strict=True)), files(folder)
    monkeypatch.chdir(folder)
    assert {words: said[words] for words in PRINTED} == {words: printed(words) for words in PRINTED}
    assert written == files(folder)
    assert set(written) == {"page.html", "step.json"}
    assert {words: said[words] for words in REFUSED} == {
        words: [CODES.get(words.split()[0], 1), "", f"Error: {refusal}\n"] for words, refusal in REFUSED.items()
    }


@pytest.mark.slow  # pip builds a wheel and installs it
def test_the_core_installs_by_itself_and_reviews_plans(folder, tmp_path_factory, monkeypatch):
    """The wheel in an environment of its own: no heavy package comes with it, and everything printed is the same."""
    place = tmp_path_factory.mktemp("core")
    tree, python = place / "tree", place / "venv" / "bin" / "python"
    skipped = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "demo-out", "tests")
    shutil.copytree(ROOT, tree, symlinks=True, ignore=skipped)
    pip = ["-m", "pip", "--disable-pip-version-check"]
    build = [sys.executable, *pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(place), str(tree)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = place.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(place / "venv")], check=True)
    install = [str(python), *pip, "install", "-c", str(ROOT / "constraints.txt"), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    listed = subprocess.run([str(python), *pip, "list", "--format", "json"], check=True, capture_output=True, text=True)
    names = {row["name"].lower().replace("_", "-") for row in json.loads(listed.stdout)}
    assert names & {package for packages in EXTRAS.values() for package in packages} == set()
    monkeypatch.chdir(folder)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for words in (*PRINTED, *REFUSED):
        core = subprocess.run(
            [str(python), "-m", "heterps_compile", *words.split()],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        written = files(folder)
        if words in REFUSED:
            assert (core.returncode, core.stderr) == (CODES.get(words.split()[0], 1), f"Error: {REFUSED[words]}\n")
            continue
        assert [core.returncode, core.stdout, core.stderr] == printed(words), words
        assert written == files(folder), words
