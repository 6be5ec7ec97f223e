"""What the docs and the docstrings cite exists: files, folders, headings, modules and names of the package."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
from test_house import ROWS

from heterps_compile.cli.main import command

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "heterps_compile"
DOCS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = [
    path
    for folder in ("heterps_compile", "passes", "backends", "tests", "tools", "examples")
    for path in (ROOT / folder).rglob("*.py")
    if not path.is_relative_to(PACKAGE / "passes") and not path.is_relative_to(PACKAGE / "backends")
]

FOLDERS = {path.name for top in (ROOT, PACKAGE) for path in top.iterdir() if path.is_dir()}
PATH = re.compile(r"(?<![\w/.<~-])([\w-]+(?:/[\w.*-]+)+/?)(?!\w)")
"""Words with slashes; those that begin with a folder of this repository, or end as a source file, are its paths."""

FILE = re.compile(r"``([\w-]+\.(?:py|md|toml))``")
DOTTED = re.compile(r"\bheterps_compile(?:\.\w+)+")
ROLE = re.compile(r":(?:class|func|meth|data|attr|exc|mod):`~?\.?([\w.]+)`")
LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)(?:#([^)\s]*))?\)")
DEFINED = re.compile(r"^\s*(?:async def|def|class) (\w+)|^\s*(\w+)(?:: [^=\n]+)?(?: =|$)|^\s+(\w+): ", re.MULTILINE)
QUOTED = re.compile(r"``(?:\w+\.)*([A-Za-z_]\w*)(?:\(\))?``")
"""The last part of a name in a docstring; one of several words is a name of code."""

FOREIGN = {"ChunkedArray", "Conv_3", "Conv_4", "INPUT_AXIS", "gather_object", "name_as_tensor", "new_group", "output_1"}
FOREIGN |= {"register_autograd"}
"""Names of other packages that no code of ours uses, names that stand for any, and examples of names in models."""

TOGETHER = re.compile(r"^\s*(\w+(?:, \w+)+)(?:: [^=\n]+)? =", re.MULTILINE)

MADE = re.compile(
    r"(?:^|/)(?:stage_|step-|table-|weights-|optimizer-)|(?:^|/)(?:train|prepare|verb_object|utils)\.py$|(?:^|/)(?:pool|space)\.toml$|NAME|DIR/"
)
"""Files that the product writes, that a user has, or that stand for any."""


@cache
def text_of(path: Path) -> str:
    return path.read_text("utf-8")


@cache
def names_of(path: Path) -> frozenset[str]:
    """Return what a module defines, at any depth."""
    text = text_of(path)
    found = {name for names in DEFINED.findall(text) for name in names if name}
    return frozenset(found.union(*(names.split(", ") for names in TOGETHER.findall(text))))


@cache
def defined() -> frozenset[str]:
    return frozenset().union(*(names_of(path) for path in SOURCES))


@cache
def words_of_code() -> frozenset[str]:
    """Return every word of the sources that is neither in a docstring nor in a comment."""
    texts = (re.sub(r'"""(?:.|\n)*?"""|#.*', "", text_of(path)) for path in SOURCES)
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


def is_in_code(name: str) -> bool:
    """Whether a name of several words occurs in code, or is that of a module; one word alone may be any word."""
    if "_" not in name.strip("_") and not re.search(r"[a-z][A-Z]", name):
        return True
    return name in FOREIGN or name in words_of_code() or bool(files_named(f"{name}.py"))


@cache
def files_named(name: str) -> list[Path]:
    return [path for path in (*SOURCES, *DOCS, *PACKAGE.rglob("*.toml"), *ROOT.glob("*.*")) if path.name == name]


def is_one(name: str, source: Path) -> bool:
    """Whether a bare name of a file is clear: it lies beside who cites it, above, below, or nowhere else."""
    found = files_named(name)
    near = [one for one in found if source.is_relative_to(one.parent) or one.is_relative_to(source.parent)]
    return bool(near) or len(found) == 1 or MADE.search(name) is not None


def exists(path: str, beside: Path) -> bool:
    places = (
        ROOT,
        PACKAGE,
        beside.parent,
        beside.parent.parent,
        ROOT / "tests",
        ROOT / "tests" / "unit",
        ROOT / "tests" / "e2e",
    )
    return any(any(place.glob(path.rstrip("/"))) for place in places)


def cited_paths(text: str) -> Iterator[str]:
    for path in PATH.findall(text):
        whole = path.rstrip(".")
        is_source = whole.endswith((".py", ".md"))
        if (
            is_source or (whole.partition("/")[0] in FOLDERS and whole.endswith(("/", ".toml", ".json")))
        ) and not MADE.search(whole):
            yield whole


@cache
def groups() -> frozenset[str]:
    """Return the groups of entry points that the package asks for."""
    texts = "".join(text_of(path) for path in SOURCES if "tests" not in path.parts)
    return frozenset(re.findall(r'"(heterps_compile\.\w+)"', texts))


def symbol_exists(dotted: str) -> bool:
    """Whether a module of the package has that name; a public one may be loaded when it is first asked for."""
    if dotted in groups():
        return True
    words = dotted.split(".")[1:]
    for count in range(len(words), -1, -1):
        at = PACKAGE.joinpath(*words[:count])
        module = at.with_suffix(".py") if count and at.with_suffix(".py").is_file() else at / "__init__.py"
        if module.is_file() and (at.is_dir() or count):
            rest = words[count:]
            return all(name in names_of(module) or f'"{name}"' in text_of(module) for name in rest[:1])
    return False


def is_known(name: str) -> bool:
    """Whether the target of a role is a module, or a name of one."""
    if name.startswith("heterps_compile."):
        return symbol_exists(name)
    last = name.rpartition(".")[2]
    return last in defined() or bool(files_named(f"{last}.py"))


def docstrings(path: Path) -> str:
    """Return the texts between triple quotes, and the comments."""
    text = text_of(path)
    return "\n".join([*re.findall(r'r?"""(.*?)"""', text, re.DOTALL), *re.findall(r"#.*", text)])


@pytest.mark.parametrize("doc", DOCS, ids=lambda path: path.name)
def test_a_document_cites_what_exists(doc):
    text = text_of(doc)
    if doc.name != "CHANGELOG.md":  # which tells of what was
        assert [path for path in cited_paths(text) if not exists(path, doc)] == []
        assert [name for name in DOTTED.findall(text) if not symbol_exists(name)] == []
    for target, heading in LINK.findall(re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)):
        linked = doc.parent / target if target else doc
        assert linked.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.*)$", text_of(linked), re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in headings}, heading


def test_docstrings_and_comments_cite_what_exists():
    wrong = []
    for source in SOURCES:
        said = docstrings(source)
        shown = source.relative_to(ROOT)
        wrong += [f"{shown}: {path}" for path in cited_paths(said) if not exists(path, source)]
        wrong += [f"{shown}: {name}" for name in FILE.findall(said) if not is_one(name, source)]
        wrong += [
            f"{shown}: {name}" for name in DOTTED.findall(said) if not symbol_exists(name) and not MADE.search(name)
        ]
        wrong += [f"{shown}: {name}" for name in ROLE.findall(said) if not is_known(name)]
        wrong += [f"{shown}: {name}" for name in QUOTED.findall(said) if not is_in_code(name)]
    assert wrong == []


def test_architecture_has_every_part_of_the_package_and_the_order_in_which_they_are_built():
    text = text_of(ROOT / "ARCHITECTURE.md")
    drawing, _, rest = text.partition("## Direction of imports")
    parts = {path.name + "/" * path.is_dir() for path in PACKAGE.iterdir() if not path.name.startswith(("__", "."))}
    assert [
        part for part in sorted(parts - {"py.typed"}) if not re.search(rf"(?<![\w/]){re.escape(part)}", drawing)
    ] == []
    drawn = tuple(tuple(row.split(", ")) for row in re.split(r"\s*<-\s*", rest.split("```")[1].strip()))
    assert [set(row) for row in drawn] == [set(row) for row in ROWS[: len(drawn)]]
    assert [name for row in ROWS[len(drawn) :] for name in row] == ["__init__", "__main__"]


def options_of(group: click.Command) -> set[str]:
    """Return the words of every option of a command and of those below it."""
    below = group.commands.values() if isinstance(group, click.Group) else ()
    own = {word for param in group.params for word in (*param.opts, *param.secondary_opts) if word.startswith("--")}
    return own.union({"--help", "--version"}, *(options_of(inner) for inner in below))


LINE = re.compile(r"heterps-compile ((?:[^\s`|;#\\]+ ?)+)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
ELSEWHERE = re.compile(
    r"(?:torchrun|python|make|pip|tools/\w+\.py|pytest|sed|openssl|git|jq|apt\S*|docker|sbatch|srun|scancel|kubectl|sky|ray)\b[^`\n]*"
)
"""Lines of other programs, with options of their own."""


@pytest.mark.parametrize("doc", [doc for doc in DOCS if doc.name != "CHANGELOG.md"], ids=lambda path: path.name)
def test_a_document_names_options_that_commands_have(doc):
    text = text_of(doc)
    for line in LINE.findall(text):
        first = line.split()[0]
        one = command.commands.get(first, command.commands["compile"])
        assert set(OPTION.findall(line)) <= options_of(one), line
    tools = {
        word
        for path in SOURCES
        if path.is_relative_to(ROOT / "tools")
        for word in re.findall(r'"(--[a-z0-9-]+)"', text_of(path))
    }
    rest = set(OPTION.findall(ELSEWHERE.sub("", text)))
    assert rest - options_of(command) - tools == set()
