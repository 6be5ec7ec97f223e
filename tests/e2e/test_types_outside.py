"""A project of its own, beside an editable installation, sees the types of the package."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROJECT = """
import heterps_compile
from heterps_compile import CompiledModel, HeterpsError, compile, diff, load, load_cluster, run


def service(path: str) -> CompiledModel:
    try:
        return compile(path, batch=4, cluster=load_cluster("heterps-paper"), pins={"embedding": "cpu-core"})
    except HeterpsError as error:
        raise SystemExit(error.exit_code) from error


compiled = service("model.onnx")
reveal_type(compiled.plan)
reveal_type(compiled.plan.stages)
reveal_type(compiled.save("out"))
reveal_type(load("out").eval())
reveal_type(diff("old.json", "new.json"))
reveal_type(run("out", data="random", steps=3, replicas=(2, 1)))
reveal_type(heterps_compile.__version__)
"""

MISTAKES = """
import heterps_compile

heterps_compile.compile("model.onnx", batch="4")
heterps_compile.compile("model.onnx", bach=4)
heterps_compile.run("out", steps="3")
heterps_compile.run("out", step=3)
heterps_compile.load("out").plan.prise_per_hour
"""


def environment(folder: Path) -> Path:
    """Make an environment with this checkout installed as editable beside what this interpreter has."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin/python"
    own = sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)})
    Path(own, "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    tree = folder / "checkout"
    tree.mkdir()
    for path in ROOT.iterdir():
        if path.name not in (".git", "build") and not path.name.endswith(".egg-info"):
            (tree / path.name).symlink_to(path)
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", str(tree)]
    subprocess.run([python, *install], check=True, env=bare())
    return python


def bare() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def said(python: Path, folder: Path, *command: str) -> str:
    return subprocess.run(
        [python, "-m", *command], cwd=folder, env=bare(), capture_output=True, text=True, check=False
    ).stdout


@pytest.mark.slow  # two type checkers, each from nothing: half a minute
@pytest.mark.timeout(900)
def test_a_project_of_its_own_sees_the_types_of_an_editable_installation(tmp_path):
    python = environment(tmp_path / "venv")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "service.py").write_text(PROJECT)
    (folder / "mistakes.py").write_text(MISTAKES)
    types = ["Plan", "tuple[PlannedStage, ...]", "CompiledModel", "CompiledModel", "PlanDiff", "Result", "str"]

    found = said(python, folder, "mypy", "--strict", "--python-executable", str(python), "service.py")
    revealed = [re.sub(r"(\w+\.)+", "", told) for told in re.findall(r'Revealed type is "(.+)"', found)]
    assert revealed == types
    assert "Success" in found
    found = said(python, folder, "mypy", "--strict", "--python-executable", str(python), "mistakes.py")
    assert re.findall(r"^mistakes.py:(\d+): error", found, re.MULTILINE) == ["4", "5", "6", "7", "8"]

    found = said(python, folder, "pyright", "--pythonpath", str(python), "service.py")
    assert re.findall(r'Type of ".+" is "(.+)"', found) == types
    assert "0 errors" in found
    found = said(python, folder, "pyright", "--pythonpath", str(python), "mistakes.py")
    assert sorted(set(re.findall(r"mistakes.py:(\d+):\d+ - error", found))) == ["4", "5", "6", "7", "8"]
