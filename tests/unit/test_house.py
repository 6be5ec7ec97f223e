"""The house keeps its own rules: which way imports run, what is packed, how long a file is, what the outside sees."""

import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from messages import messages_of
from wording import wording

import heterps_compile
from heterps_compile.backends.find import BACKENDS
from heterps_compile.passes.placement.methods import METHODS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "heterps_compile"

# From the ground up. A module imports its own folder and rows below its own, never up and never sideways.
ROWS = (
    ("errors", "escape", "fit_lines"),
    ("logger", "packages", "progress"),
    (
        "examples",
        "units",
        "plain_file",
        "host_memory",
        "notebook",
        "process_state",
        "console",
        "conflict_markers",
        "source_module",
    ),
    ("options", "plug_ins", "columns", "strict_json"),
    ("ir",),
    ("cluster",),
    ("sync_rules",),
    ("cost", "offers", "transient"),
    ("frontends",),
    ("schedule",),
    ("plan",),
    ("problem_file",),
    ("passes", "backends"),
    ("runtime", "plan_diff", "simulation", "prediction"),
    ("profiling",),
    ("make_plan", "compiled_model", "verification"),
    ("scoring",),
    ("api",),
    ("advice", "bench", "machines", "review", "tuning"),
    ("report", "rule_comparison"),
    ("cli",),
    ("__init__", "__main__"),
)
ROW = {name: row for row, names in enumerate(ROWS) for name in names}

# Runs below that are not allowed all the same.
NEVER = {("runtime", "passes")}

HEAVY = ("torch", "onnx", "onnx_ir", "onnxruntime", "jax", "networkx", "transformers")


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def modules() -> Iterator[tuple[str, Path]]:
    """Yield every module of the package, the linked folders too, by its dotted name inside the package."""
    for folder, package in ((PACKAGE, ""), (ROOT / "passes", "passes."), (ROOT / "backends", "backends.")):
        for path in sorted(folder.rglob("*.py")):
            inside = path.relative_to(folder)
            if folder != PACKAGE or inside.parts[0] not in ("passes", "backends"):
                yield package + ".".join(inside.with_suffix("").parts), path


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file, which is parsed once for all tests."""
    return tuple(ast.walk(ast.parse(path.read_bytes(), str(path))))


@pytest.fixture(scope="module", autouse=True)
def _forget_nodes() -> Iterator[None]:
    yield
    nodes_of.cache_clear()  # a million nodes


def imported(module: str, path: Path) -> Iterator[str]:
    """Yield what a module imports from the package, lazy imports included, as dotted names inside the package."""
    here = module.split(".")[:-1]
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            above = ["heterps_compile", *here[: len(here) - node.level + 1]]
            names = [".".join([*above, *filter(None, [node.module]), alias.name]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "heterps_compile":
                yield name.removeprefix("heterps_compile").removeprefix(".")


def home_of(name: str, known: Collection[str]) -> str:
    """Find the module that a dotted name is, or is in."""
    while name not in known and f"{name}.__init__" not in known and name:
        name = name.rpartition(".")[0]
    return name if name in known else f"{name}.__init__".removeprefix(".")


def imports_of(paths: Mapping[str, Path]) -> dict[str, set[str]]:
    """Map every module to the others that it imports, lazily or for type checkers too."""
    return {
        module: {home_of(name, paths) for name in imported(module, path)} - {module} for module, path in paths.items()
    }


@cache
def imports_of_the_house() -> dict[str, set[str]]:
    return imports_of(dict(modules()))


def circle_among(imports: Mapping[str, Collection[str]]) -> list[str]:
    """Find modules each of which imports the one before it, the first again at the end; none without a circle."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_every_module_has_a_row():
    assert {name.split(".")[0] for name, _ in modules()} <= set(ROW)


def test_imports_run_down():
    climbs = [
        f"{module} imports {name}"
        for module, names in imports_of_the_house().items()
        for name in names
        for here, there in [(module.split(".")[0], name.split(".")[0])]
        if here != there and (ROW[there] >= ROW[here] or (here, there) in NEVER)
    ]
    assert climbs == []


def test_no_modules_import_each_other_in_a_circle():
    assert circle_among(imports_of_the_house()) == []


def test_what_stands_above_is_loaded_by_name_in_one_place():
    """Pictures of values that stand below them."""
    above = re.compile(r'"heterps_compile\.(api|bench|review|report|cli)\b')
    assert {module for module, path in modules() if above.search(path.read_text("utf-8"))} == {"notebook"}


def test_lazy_and_relative_imports_are_seen(tmp_path):
    module = tmp_path / "m.py"
    module.write_text("from . import a\nfrom ..b import c\ndef f():\n    import heterps_compile.cli.main\n")
    assert list(imported("passes.placement.m", module)) == ["passes.placement.a", "passes.b.c", "cli.main"]


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def package_folders() -> dict[str, Path]:
    """Return every folder of the package by the name it is imported by."""
    folders = {module.rpartition(".")[0]: path.parent for module, path in modules()}
    return {".".join(filter(None, ["heterps_compile", name])): folder for name, folder in folders.items()}


def test_pyproject_lists_every_package():
    assert sorted(project()["tool"]["setuptools"]["packages"]) == sorted(package_folders())


def test_every_package_has_an_init():
    assert [name for name, folder in package_folders().items() if not (folder / "__init__.py").is_file()] == []


def test_the_linked_folders_are_type_checked():
    included = set(project()["tool"]["pyright"]["include"])
    assert included == {"heterps_compile", "heterps_compile/passes", "heterps_compile/backends", "examples"}


def test_passes_and_backends_are_links_to_the_top():
    assert (PACKAGE / "passes").readlink() == Path("../passes")
    assert (PACKAGE / "backends").readlink() == Path("../backends")


def test_an_editable_installation_adds_a_folder_with_nothing_but_the_package():
    assert project()["tool"]["setuptools"]["package-dir"] == {"": "src"}
    there = {path.name for path in (ROOT / "src").iterdir() if path.suffix != ".egg-info"}  # pip leaves its notes there
    assert there == {"heterps_compile"}
    assert (ROOT / "src/heterps_compile").readlink() == Path("../heterps_compile")


def test_a_wheel_has_every_file_of_every_package(tmp_path):
    tree = tmp_path / "tree"
    skipped = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "demo-out", "tests")
    shutil.copytree(ROOT, tree, symlinks=True, ignore=skipped)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(tree)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        f"{name.replace('.', '/')}/{path.name}"
        for name, folder in package_folders().items()
        for path in folder.iterdir()
        if path.is_file() and path.suffix != ".pyc"
    }
    assert wanted - packed == set()
    assert {name.split("/")[0] for name in packed if "dist-info" not in name} == {"heterps_compile"}


def test_no_file_is_longer_than_500_lines():
    files = [path for _, path in modules()] + sources("tests", "tools", "examples")
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert {name: lines for name, lines in lengths.items() if lines > 500} == {}


def test_no_file_is_a_drawer_for_anything():
    drawers = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base"}
    assert [name for name, _ in modules() if name.split(".")[-1] in drawers] == []


def unsafe(path: Path) -> Iterator[str]:
    """Yield the uses of what would run or unpickle data: a model file is hostile input."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            yield from (f"import {n}" for n in names if n.split(".")[0] in ("pickle", "shelve", "marshal", "dill"))
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("eval", "exec", "__import__", "os.system", "torch.load", "torch.save", "torch.jit.load"):
                yield called
            yield from (
                k.arg for k in node.keywords if k.arg in ("allow_pickle", "shell") and ast.unparse(k.value) != "False"
            )


def test_what_torch_distributed_does_not_declare_is_used_in_one_file():
    words = re.compile(r"_distributed_c10d|distributed_c10d\._")
    files = [path for _, path in modules() if words.search(path.read_text("utf-8"))]
    assert [path.name for path in files] == ["c10d.py"]


def test_nothing_runs_or_unpickles_data():
    assert {module: uses for module, path in modules() if (uses := list(unsafe(path)))} == {}


def test_what_runs_data_is_found(tmp_path):
    module = tmp_path / "m.py"
    module.write_text("import pickle\neval('1')\nnp.load(f, allow_pickle=True)\nre.compile('x')\n")
    assert list(unsafe(module)) == ["import pickle", "eval", "allow_pickle"]


def imported_names(path: Path) -> set[str]:
    names = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module.split(".")[0])
    return names


def test_the_passes_read_one_clock():
    """A time limit bounds everything only where all of it is measured by the clock that ``deadline.py`` reads."""
    clocks = {"time", "datetime", "timeit"}
    readers = {module for module, path in modules() if module.startswith("passes.") and imported_names(path) & clocks}
    assert readers == {"passes.deadline"}


def test_solvers_are_started_in_one_place():
    """What a solver gets of the time, and whether it is begun at all, is decided in ``solver.py`` alone."""
    assert [module for module, path in modules() if imported_names(path) & {"scipy", "ortools", "pulp"}] == []
    started = {
        module
        for module, path in modules()
        if module.startswith("passes.") and ("highspy" in imported_names(path) or module == "passes.solver")
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and node.attr in ("run", "startSolve", "minimize", "maximize", "solve")
        if not ast.unparse(node).startswith("_Model(")
    }
    assert started == {"passes.solver"}


NAMED = {
    "backends/find.py": "the registry",
    "ir/graph.py": "the families of models",
    "packages.py": "packages of others",
    "plan/request.py": "defaults",
    "plan/schema.py": "an error of an estimate is exact",
    "plan/schema_types.py": "a class of rules, a provisioner",
    "cost/provisioners.py": "a provisioner",
    "cli/export.py": "the best checkpoint",
    "cli/output.py": "the best plan so far",
    "cli/pictures.py": "the methods of the paper's pictures",
    "bench/compare_methods.py": "a provisioner",
    "runtime/export/export_options.py": "the best checkpoint",
    "runtime/sync/top_k.py": "a selection of values",
    "runtime/telemetry/events.py": "the best validation",
    "sync_rules/rule.py": "a class of rules",
    "sync_rules/topk.py": "a selection of values",
    "tuning/search_request.py": "packages of others",
}
"""Who may say the name of a backend or method, and what it is there."""


def names_said(path: Path, names: set[str]) -> list[str]:
    constants = (node.value for node in nodes_of(path) if isinstance(node, ast.Constant))
    return sorted({value for value in constants if isinstance(value, str) and value in names})


def test_nobody_asks_for_a_backend_or_a_method_by_name():
    """What one can do is a capability; its name is for its own folder, for the registry, and for whoever typed it."""
    own = {f"backends/{name}/" for name in BACKENDS} | {"passes/placement/"}
    names = {*BACKENDS, *METHODS}
    found = {
        where: said
        for module, path in modules()
        for where in [module.replace(".", "/") + ".py"]
        if not where.startswith(tuple(own)) and (said := names_said(path, names))
    }
    assert {where: said for where, said in found.items() if where not in NAMED} == {}, "ask for a capability"
    assert sorted(NAMED) == sorted(found)


def test_the_public_face_is_fifteen_names_at_most():
    assert len(heterps_compile.__all__) <= 15
    assert {"compile", "load", "Plan", "HeterpsError"} <= set(heterps_compile.__all__)
    assert [name for name in heterps_compile.__all__ if not hasattr(heterps_compile, name)] == []


def test_importing_the_package_is_light():
    script = f"import heterps_compile, json, sys; print(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert json.loads(loaded) == []


def test_the_pins_satisfy_the_lower_bounds():
    requirement = pytest.importorskip("packaging.requirements").Requirement
    pinned = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    version = dict(line.lower().split("==") for line in pinned)
    extras = project()["project"]["optional-dependencies"]
    needed = [*project()["project"]["dependencies"], *(text for texts in extras.values() for text in texts)]
    ours = [parsed for parsed in map(requirement, needed) if parsed.name != "heterps-compile"]
    assert [str(r) for r in ours if r.name not in version or not r.specifier.contains(version[r.name])] == []


def test_a_slow_test_says_why():
    silent = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources("tests")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"pytest\.mark\.slow$", line) or re.search(r"^pytestmark = .*pytest\.mark\.slow\]?$", line)
    ]
    assert silent == []


# Modules where two functions raise one message. The set may only shrink.
REPEATING = {
    "backends.jax.ops.control",
    "backends.jax.print_stage",
    "backends.torch.onnx_ops.control",
    "backends.torch.onnx_ops.dtypes",
    "offers.csv_rows",
    "plan.source",
    "runtime.launch.run_report",
    "runtime.servers.protocol",
}


def test_messages_are_in_one_list(golden):
    messages = messages_of({name: nodes_of(path) for name, path in modules()}, "HeterpsError")
    golden("messages.txt", "".join(f"{line}\n" for line in dict.fromkeys(map(str, messages))))
    assert [message for message in messages if not message.template] == []
    functions: dict[str, set[str]] = {}
    for message in messages:
        if re.search("[a-z]{2}", re.sub(r"\{.*?\}|<.*?>", "", message.template)):
            functions.setdefault(str(message), set()).add(message.function)
    assert {line.partition(":")[0] for line, found in functions.items() if len(found) > 1} == REPEATING


def test_no_test_pins_the_wording_of_an_error():
    assert wording(ROOT / "tests") == []


def test_wording_is_found_in_place_and_in_a_table(tmp_path):
    (tmp_path / "test_seen.py").write_text(
        "@pytest.mark.parametrize(('x', 'said'), [(1, 'must be at most 3'), (2, '--batch.*64')])\n"
        "def test(x, said):\n"
        "    with pytest.raises(E, match=said):\n        f(x)\n"
        "    with pytest.raises(E, match=r\"'a b c d'.*No space left on device\"):\n        f(x)\n"
        "    with pytest.raises(E, match=f'{x} is no power of two'):\n        f(x)\n"
    )
    assert wording(tmp_path) == ["test_seen.py:7:  is no power of two", "test_seen.py:1: must be at most 3"]


def marked(marker: str) -> list[tuple[str, bool]]:
    """Return the names that tests are marked with, and whether each of these tests is slow."""
    word, found = f"pytest.mark.{marker}(", []
    for path in sources("tests"):
        text = path.read_text()
        if word not in text or path == Path(__file__):
            continue
        tree = ast.parse(text)
        of_file = " ".join(ast.unparse(n) for n in tree.body if ast.unparse(n).startswith("pytestmark"))
        for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
            marks = " ".join([of_file, *map(ast.unparse, function.decorator_list)])
            found += [
                (name, "pytest.mark.slow" in marks)
                for name in re.findall(rf"pytest\.mark\.{marker}\('([^']+)'\)", marks)
            ]
    return sorted(found)


def test_every_eighth_has_each_component_and_six_kills():
    assert marked("component") == [(name, True) for name in ("Ray", "Slurm", "browser", "torchrun")]
    kills = ("a rank", "a rank, between resizes", "a rank, stopped", "a server of tables")
    assert marked("kill") == [(name, True) for name in (*kills, "the launcher", "the launcher, asked to end")]
