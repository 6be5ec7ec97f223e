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
every_command = pytest.mark.parametrize("name", CONTEXTS)
SECTIONS = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES", "SEE ALSO"]


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def options(context: click.Context) -> list[click.Option]:
    return [param for param in context.command.get_params(context) if isinstance(param, click.Option)]


@every_command
def test_the_help_says_what_the_command_does_and_gives_examples(name):
    text = help_text(CONTEXTS[name].command)
    assert text.paragraphs[0].endswith(".")
    assert len(text.blocks["Examples"]) >= 1


@every_command
def test_the_help_says_what_every_exit_code_means(name):
    assert set(help_text(CONTEXTS[name].command).exit_codes) == {0, 1, 2, 130}


@every_command
def test_every_option_is_explained(name):
    assert [option.name for option in options(CONTEXTS[name]) if not option.help] == []


@every_command
def test_every_option_that_takes_a_value_says_of_what_kind(name):
    valued = [option for option in options(CONTEXTS[name]) if not option.is_flag and not option.count]
    assert [o.name for o in valued if o.metavar is None and not isinstance(o.type, click.Choice)] == []


@every_command
def test_every_argument_is_spoken_of(name):
    command = CONTEXTS[name].command
    prose = " ".join(help_text(command).paragraphs)
    arguments = [param for param in command.params if isinstance(param, click.Argument)]
    words = {word for argument in arguments for word in re.findall(r"[A-Z][A-Z]+(?:\.[a-z]+)?", argument.metavar or "")}
    assert {word for word in words if word not in prose} == set()


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


@pytest.mark.parametrize("example", dict.fromkeys([*examples(), *written_down()]))
@pytest.mark.usefixtures("here")
def test_an_example_can_be_typed(example):
    """It parses; nothing runs, since no file of the examples is here."""
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
            inner.make_context(inner.name, words, parent=context)  # raises on wrong usage
            return
        context = click.Context(inner, info_name=inner.name, parent=context)


@every_command
def test_the_manual_page_has_the_sections_in_the_order_of_manual_pages(name):
    found = re.findall(r"^\.SH (.+)$", manual_page(CONTEXTS[name]), re.MULTILINE)
    assert [section for section in found if section in SECTIONS] == SECTIONS


@pytest.mark.skipif(shutil.which("man") is None or shutil.which("groff") is None, reason="man is not installed")
@every_command
def test_man_reads_the_page_without_a_warning_and_shows_every_option(name, tmp_path):
    page = tmp_path / f"{name}.1"
    page.write_text(manual_page(CONTEXTS[name]), "utf-8")
    done = subprocess.run(
        ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-P", "cat", str(page)],
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANWIDTH": "100"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    shown = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout)
    assert [option.opts[0] for option in options(CONTEXTS[name]) if option.opts[0] not in shown] == []


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
