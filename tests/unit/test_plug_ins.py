"""A plug-in that does not import, or has the wrong shape, is named as the fault: never a traceback, never ours."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from light_models import path

from heterps_compile.backends.contract import Backend, Capabilities
from heterps_compile.backends.find import BACKEND_MEMBERS, BACKENDS, find_backend
from heterps_compile.backends.jax import table as jax_table
from heterps_compile.backends.torch.onnx_ops import table as torch_table
from heterps_compile.cli.main import run
from heterps_compile.errors import InputError, PlugInError
from heterps_compile.passes.placement.methods import METHODS, find_method

SOURCE = """
from dataclasses import replace
from heterps_compile.passes.placement.baselines.greedy import Greedy

NOTHING = None

def a_function():
    return 7

class Fails:
    def __init__(self):
        raise RuntimeError("no licence")

class Nameless:
    def __call__(self, problem, *, seed=0, time_limit_s=None, warm_start=None): ...

class Deaf:
    name = "deaf"
    def __call__(self, problem): ...

class Works:
    name = "mine"
    def __call__(self, problem, *, seed=0, time_limit_s=None, warm_start=None):
        return Greedy()(problem, seed=seed)

class Breaks(Works):
    def __call__(self, problem, *, seed=0, time_limit_s=None, warm_start=None):
        return 1 / 0

class GivesNothing(Works):
    def __call__(self, problem, *, seed=0, time_limit_s=None, warm_start=None):
        return None

class Lies(Works):
    def __call__(self, problem, *, seed=0, time_limit_s=None, warm_start=None):
        found = Greedy()(problem)
        return replace(found, value=found.value / 2)

class Dreams(Works):
    def __call__(self, problem, *, seed=0, time_limit_s=None, warm_start=None):
        found = Greedy()(problem)
        return replace(found, bound=found.value * 2)

class Plain:  # keeps the contract of backends without inheriting it
    name, families, stages_are_data = "plain", ("onnx",), True
    def tolerance(self, family): return 0.0
    def build(self, graph, partition): return ("a stage",)
    def reference(self, graph): ...
    def reproducible(self, graph, seed): ...
    def example_inputs(self, graph, seed): return {}
    def write(self, graph, stages, cuts, directory): return []
    def read(self, directory, files, cuts): return ()

class Placed(Plain):
    def on(self, stages):
        made = Placed()
        made.notes = ("runs on paper",)
        return made
"""
GROUPS = {
    "heterps_compile.methods": "heterps_compile.passes.placement.methods",
    "heterps_compile.backends": "heterps_compile.backends.find",
    "heterps_compile.torch_ops": "heterps_compile.backends.torch.onnx_ops.table",
    "heterps_compile.jax_ops": "heterps_compile.backends.jax.table",
}


@pytest.fixture
def plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Install an entry point ``mine`` into a group."""
    (tmp_path / "their_package.py").write_text(SOURCE)
    (tmp_path / "their_broken.py").write_text("import a_library_that_is_not_here\n")
    (tmp_path / "their_exit.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for module in (jax_table, torch_table):
        module.declared_ops()  # what is imported once registers itself once
    tables = {module: dict(module._TABLE) for module in (jax_table, torch_table)}

    def install(group: str, value: str) -> None:
        entry = EntryPoint("mine", value, group)
        monkeypatch.setattr(f"{GROUPS[group]}.entry_points", lambda group: [entry])
        jax_table._load.cache_clear()
        torch_table._load.cache_clear()

    yield install
    for module, before in tables.items():
        module._TABLE.clear()
        module._TABLE.update(before)
        module._load.cache_clear()
    for name in ("their_package", "their_broken", "their_exit"):
        sys.modules.pop(name, None)


def use(group: str) -> None:
    if group.endswith("methods"):
        find_method("mine")
    elif group.endswith("backends"):
        find_backend("mine")
    elif group.endswith("torch_ops"):
        torch_table.find_op("", "Relu", 18)
    else:
        jax_table.find_op("", "Relu", 18)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("their_broken", "ModuleNotFoundError: No module named 'a_library_that_is_not_here'"),
        ("their_broken:Thing", "ModuleNotFoundError"),
        ("not_installed_at_all", "ModuleNotFoundError: No module named 'not_installed_at_all'"),
        ("their_exit", "SystemExit: 3"),
        ("their_package:Missing", "AttributeError"),
        ("their_package:NOTHING", "is a NoneType, and must be a"),
    ],
)
def test_one_that_does_not_load_is_named(group, value, said, plug_in):
    plug_in(group, value)
    with pytest.raises(PlugInError) as raised:
        use(group)
    text = str(raised.value)
    assert f"the plug-in 'mine' ({value}, of an unknown package, group {group})" in text
    assert said in text
    assert "mend or uninstall it" in text


@pytest.mark.parametrize(
    ("group", "value", "said"),
    [
        ("heterps_compile.methods", "their_package:a_function", "gives a int without name"),
        ("heterps_compile.methods", "their_package:Fails", "cannot be made: RuntimeError: no licence"),
        ("heterps_compile.methods", "their_package:Nameless", "gives a Nameless without name"),
        ("heterps_compile.methods", "their_package:Deaf", "does not take (problem, seed=, time_limit_s=, warm_start=)"),
        ("heterps_compile.backends", "their_package:a_function", f"gives a int without {', '.join(BACKEND_MEMBERS)}"),
        ("heterps_compile.backends", "their_package:Works", "gives a Works without build, example_inputs, families"),
        ("heterps_compile.torch_ops", "their_package:Works", "is a type, and must be a module that registers ops"),
        ("heterps_compile.jax_ops", "their_package:a_function", "is a function, and must be a module that registers"),
    ],
)
def test_one_of_the_wrong_shape_is_told_what_is_missing(group, value, said, plug_in):
    plug_in(group, value)
    with pytest.raises(PlugInError) as raised:
        use(group)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("Breaks", "the plug-in method 'mine' fails: ZeroDivisionError: division by zero"),
        ("GivesNothing", "gave a NoneType, and must give a SearchResult"),
        ("Lies", "gave the value"),
        ("Dreams", "gave the bound"),
    ],
)
def test_a_method_that_gives_no_result_is_the_fault(value, said, plug_in, capsys):
    plug_in("heterps_compile.methods", f"their_package:{value}")
    assert run([str(path("squeezenet")), "--method", "mine", "--no-verify", "-q", "-o", "out"]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert run(["bench", str(path("squeezenet")), "--methods", "mine,greedy"]) == 0
    assert said.split(" fails")[0].split("gave")[0] in capsys.readouterr().out


def test_a_method_that_works_is_taken(plug_in, capsys):
    plug_in("heterps_compile.methods", "their_package:Works")
    assert run([str(path("squeezenet")), "--method", "mine", "--no-verify", "-q", "-o", "out"]) == 0
    assert capsys.readouterr().out == "out\n"


def test_a_backend_that_inherits_nothing_has_the_defaults_of_the_contract(plug_in):
    plug_in("heterps_compile.backends", "their_package:Plain")
    backend = find_backend("mine")
    assert backend.capabilities == Capabilities(stages_are_data=True)
    assert backend.on(()).notes == ()
    assert backend.of_stages(2) == (backend, backend)
    assert backend.build_in_float64(None, None) == ("a stage",)
    assert backend.as_module("a stage", "cpu") == "a stage"
    assert backend.declared_ops() is None
    assert (backend.unsupported(None), backend.cannot_open(None), backend.unwritable(None)) == ([], "", "")
    with pytest.raises(InputError, match="'plain'"):
        backend.exporting("stablehlo")
    with pytest.raises(AttributeError):
        backend.no_such_member  # noqa: B018 - reading it is the test
    with backend.threads(1), backend.buffers_put_back(), backend.lean(None):
        pass


def test_what_such_a_backend_has_of_its_own_is_asked(plug_in):
    plug_in("heterps_compile.backends", "their_package:Placed")
    assert find_backend("mine").on(()).notes == ("runs on paper",)
    assert find_backend("mine").on(()).unwritable(None) == ""


def test_what_ships_with_the_package_keeps_its_own_contract():
    assert {find_method(name).name for name in METHODS} == set(METHODS)
    for name in BACKENDS:
        assert isinstance(find_backend(name), Backend)
