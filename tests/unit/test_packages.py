"""The extras are those of pyproject.toml, and what is missing is told in one sentence that says what to type."""

import re
import sys
import tomllib
from functools import partial
from pathlib import Path

import pytest

import heterps_compile
from heterps_compile.backends.find import BACKENDS, find_backend, training_backends
from heterps_compile.errors import MissingPackageError
from heterps_compile.examples import EXAMPLES
from heterps_compile.packages import EXTRAS, INCLUDES, command, need, need_all, not_installed

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
DECLARED = PROJECT["optional-dependencies"]
OWN = re.compile(r"heterps-compile\[(.*)\]")


@pytest.fixture
def without(monkeypatch):
    """Return what hides packages from imports."""

    def hide(*modules: str) -> None:
        for module in modules:
            monkeypatch.setitem(sys.modules, module, None)

    return hide


def brought(extra: str) -> set[str]:
    """Return the other extras that come with one."""
    direct = {name for line in DECLARED[extra] for found in OWN.findall(line) for name in found.split(",")}
    return direct.union(*map(brought, direct))


def distributions(lines: list[str]) -> set[str]:
    return {re.split(r"[<>=\[]", line)[0] for line in lines} - {"heterps-compile"}


def test_the_extras_are_those_of_pyproject():
    assert {name: set(packages) for name, packages in EXTRAS.items()} == {
        name: found for name, lines in DECLARED.items() if name != "dev" and (found := distributions(lines))
    }
    assert {name: set(INCLUDES.get(name, ())) for name in EXTRAS} == {name: brought(name) for name in EXTRAS}


def test_all_is_all_and_the_core_is_none_of_it():
    assert {"all", *EXTRAS} == {"all", *brought("all")}
    assert distributions(PROJECT["dependencies"]) & {name for names in EXTRAS.values() for name in names} == set()


def test_what_is_missing_is_told_with_what_to_type(without):
    without("onnxruntime")
    with pytest.raises(MissingPackageError) as told:
        need("reading an ONNX model", "onnx")
    assert re.search(r"ONNX.*\bonnxruntime\b.*'heterps-compile\[onnx\]'", str(told.value))


def test_several_refusals_become_one_command(without):
    without("onnx", "onnx_ir", "torch")
    with pytest.raises(MissingPackageError) as told:
        need_all([partial(find_backend, name) for name in ("onnxruntime", "torch")])
    assert re.search(
        r"'onnxruntime'.*\bonnx\b.*\bonnx-ir\b.*'torch'.*\btorch\b.*'heterps-compile\[onnx,torch\]'$", str(told.value)
    )


def test_the_command_names_no_extra_that_comes_with_another():
    assert command(["search", "onnx"]) == "pip install 'heterps-compile[onnx]'"
    assert command(["torch", "jax", "search", "onnx"]) == "pip install 'heterps-compile[jax,torch]'"


def test_compiling_tells_at_once_all_that_it_needs(without):
    without("onnx", "torch", "jax")
    with pytest.raises(
        MissingPackageError,
        match=r"ONNX.*'rl'.*unlike 'best'.*'jax'.*'heterps-compile\[jax,torch\]'",
    ):
        heterps_compile.compile("m.onnx", method="rl", backend="jax")
    with pytest.raises(MissingPackageError, match=r"^(?!.*PyTorch).*ONNX"):
        heterps_compile.compile("m.onnx")
    with pytest.raises(MissingPackageError, match="compiling"):
        heterps_compile.compile("m.onnx", mode="training", method="exact")
    with pytest.raises(MissingPackageError, match="PyTorch"):
        heterps_compile.compile(object(), method="exact")


def test_running_needs_torch_and_says_so(without, tmp_path):
    without("torch")
    with pytest.raises(MissingPackageError, match="stages"):
        heterps_compile.run(tmp_path)
    with pytest.raises(MissingPackageError, match="'ctrdnn'"):
        EXAMPLES["ctrdnn"]()


@pytest.mark.parametrize("name", BACKENDS)
def test_what_a_backend_can_do_is_known_where_it_is_not_installed(name, without):
    without(*(package.replace("-", "_") for package in EXTRAS[BACKENDS[name].extra]))
    with pytest.raises(MissingPackageError, match=f"'{name}'"):
        find_backend(name)
    assert training_backends() == ("torch", "jax")


def test_an_import_that_nobody_asked_for_first_is_told_as_well(without):
    without("torch")
    told = not_installed(ModuleNotFoundError("no", name="torch.nn"))
    assert str(told) == ("what was asked for needs torch, which is not installed: pip install 'heterps-compile[torch]'")
    assert not_installed(ModuleNotFoundError("no", name="heterps_compile.gone")) is None
    assert not_installed(ModuleNotFoundError("no", name="onnx.gone")) is None  # it is installed: a bug of ours
