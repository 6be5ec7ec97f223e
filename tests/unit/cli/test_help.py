"""The help of every command: what it must have, that its examples can be typed, and its manual page."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from heterps_compile.cli.main import command, run
from heterps_compile.cli.man import contexts, help_text, manual_page, page_name

PROJECT = Path(__file__).parents[3]
ROOT = click.Context(command, info_name="heterps-compile", **command.context_settings)
CONTEXTS = {page_name(context): context for context in contexts(ROOT)}
SECTIONS = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES", "SEE ALSO"]


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def options(context: click.Context) -> list[click.Option]:
    return [param for param in context.command.get_params(context) if isinstance(param, click.Option)]


def test_the_help_says_what_the_command_does_and_gives_examples():
    texts = {name: help_text(context.command) for name, context in CONTEXTS.items()}
    assert [name for name, text in texts.items() if not text.paragraphs[0].endswith(".")] == []
    assert [name for name, text in texts.items() if not text.blocks["Examples"]] == []


def test_the_help_says_what_every_exit_code_means():
    codes = {name: set(help_text(context.command).exit_codes) for name, context in CONTEXTS.items()}
    assert {name: said for name, said in codes.items() if said != {0, 1, 2, 130}} == {}


def test_every_option_is_explained_with_the_kind_of_its_value():
    every = [(name, option) for name, context in CONTEXTS.items() for option in options(context)]
    assert [(name, option.name) for name, option in every if not option.help] == []
    valued = [(name, option) for name, option in every if not option.is_flag and not option.count]
    bare = [(name, o.name) for name, o in valued if o.metavar is None and not isinstance(o.type, click.Choice)]
    assert bare == []


def test_every_argument_is_spoken_of():
    unsaid = []
    for name, context in CONTEXTS.items():
        prose = " ".join(help_text(context.command).paragraphs)
        arguments = [param for param in context.command.params if isinstance(param, click.Argument)]
        words = {word for one in arguments for word in re.findall(r"[A-Z][A-Z]+(?:\.[a-z]+)?", one.metavar or "")}
        unsaid += [(name, word) for word in words if word not in prose]
    assert unsaid == []


def examples() -> list[str]:
    """Return the commands that are shown; one that is broken by a backslash is one."""
    shown = ["\n".join(help_text(context.command).blocks.get("Examples", ())) for context in CONTEXTS.values()]
    return [line for text in shown for line in re.sub(r" *\\\n *", " ", text).split("\n") if line]


def words_of(example: str) -> list[str]:
    """Return the words that the command gets: from its name up to a pipe, a redirection or a closing bracket."""
    inside = re.sub(r'^eval "\$\((.*)\)"$', r"\1", example)
    inside = re.sub(r"^torchrun .* -m -- heterps_compile ", "heterps-compile ", inside)
    words = shlex.split(re.split(r" [|>] ", inside)[0])
    assert words[0] == "heterps-compile", example
    return words[1:]


def written_down() -> list[str]:
    """Return the commands in the code blocks of README and docs, without what a comment says of them."""
    pages = (PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md")))
    blocks = (
        block for page in pages for block in re.findall(r"```[a-z]*\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    )
    lines = (line.removeprefix("$ ") for block in blocks for line in block.replace("\\\n", " ").splitlines())
    return [line.partition("  #")[0].strip() for line in lines if re.match(r'(eval "\$\()?heterps-compile ', line)]


@pytest.mark.usefixtures("here")
def test_every_example_can_be_typed():
    """It parses; nothing runs, since no file of the examples is here."""
    wrong = {}
    for example in dict.fromkeys([*examples(), *written_down()]):
        try:
            parse(example)
        except click.UsageError as error:
            wrong[example] = error.message
    assert wrong == {}


def parse(example: str) -> None:
    """Parse a command; raise where it cannot be typed."""
    context, words = ROOT, words_of(example)
    while isinstance(context.command, click.Group):
        if context is ROOT and words[0] not in command.commands:
            words = ["compile", *words]
        if not words:  # a group that does something by itself
            assert context.command.invoke_without_command
            return
        inner = context.command.commands[words[0]]
        words = words[1:]
        if not isinstance(inner, click.Group):
            inner.make_context(inner.name, words, parent=context)
            return
        context = click.Context(inner, info_name=inner.name, parent=context)


def test_the_manual_page_has_the_sections_in_the_order_of_manual_pages():
    for name, context in CONTEXTS.items():
        found = re.findall(r"^\.SH (.+)$", manual_page(context), re.MULTILINE)
        assert [section for section in found if section in SECTIONS] == SECTIONS, name


@pytest.mark.skipif(shutil.which("man") is None or shutil.which("groff") is None, reason="man is not installed")
def test_man_reads_every_page_without_a_warning_and_shows_every_option(tmp_path):
    for name, context in CONTEXTS.items():
        page = tmp_path / f"{name}.1"
        page.write_text(manual_page(context), "utf-8")
        done = subprocess.run(
            ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-P", "cat", str(page)],
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANWIDTH": "100"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == "", name
        shown = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout)
        assert [option.opts[0] for option in options(context) if option.opts[0] not in shown] == [], name


def test_pages_of_all_commands_are_written(tmp_path, capsys):
    assert run(["man", "-o", str(tmp_path / "man1")]) == 0
    assert {file.stem for file in Path(tmp_path, "man1").iterdir()} == set(CONTEXTS)
    assert run(["man", "clusters", "show"]) == 0
    assert capsys.readouterr().out == Path(tmp_path, "man1", "heterps-compile-clusters-show.1").read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["man", "dif"], 1, "unknown command 'dif'; did you mean 'diff'?"),
        (["man", "diff", "-o", "pages"], 2, "-o writes the pages of all commands; name none."),
        (["man", "-o", "file"], 1, "cannot write the pages to 'file'"),
    ],
)
def test_what_is_no_page_is_an_error(words, code, said, here, capsys):
    (here / "file").write_text("")
    assert run(words) == code
    assert said in capsys.readouterr().err
