"""The help of every command: what it must have, that its examples can be typed, and that it fits a screen."""

import re
import shlex
from pathlib import Path

import click
import pytest

from heterps_compile.cli.help_text import contexts, help_text
from heterps_compile.cli.main import EVERYDAY, OTHERS, command, run

PROJECT = Path(__file__).parents[3]
ROOT = click.Context(command, info_name="heterps-compile", **command.context_settings)
CONTEXTS = {context.command_path: context for context in contexts(ROOT)}


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def options(context: click.Context) -> list[click.Option]:
    return [param for param in context.command.get_params(context) if isinstance(param, click.Option)]


def test_the_help_says_what_the_command_does_and_gives_examples():
    texts = {name: help_text(context.command) for name, context in CONTEXTS.items()}
    assert [name for name, text in texts.items() if not text.paragraphs[0].endswith(".")] == []
    assert [name for name, text in texts.items() if name != ROOT.command_path and not text.blocks["Examples"]] == []


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
    inside = re.sub(r"^(torchrun .* -m -- heterps_compile|srun .*? heterps-compile) ", "heterps-compile ", inside)
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


def printed(capsys, *words: str) -> str:
    assert run(words) == 0
    return capsys.readouterr().out


def test_the_first_help_is_one_screen_and_names_every_command(capsys):
    screen = printed(capsys, "--help")
    assert run([]) == 2
    assert capsys.readouterr().err == screen
    assert len(screen.splitlines()) <= 24
    assert max(map(len, screen.splitlines())) <= 80
    assert sorted((*EVERYDAY, *(name for names in OTHERS.values() for name in names))) == sorted(command.commands)
    assert [name for name in command.commands if name not in screen] == []


def test_the_short_help_of_compile_leaves_out_rare_options_alone(capsys):
    words = [word for option in options(CONTEXTS["heterps-compile compile"]) for word in option.opts]
    short, long = printed(capsys, "compile", "--help"), printed(capsys, "compile", "--help-all")
    assert [word for word in words if word not in long] == []
    assert {word for word in words if f"{word} " not in short} >= {"--print-after", "--reading", "--cpus"}


def test_every_command_can_be_quiet(capsys):
    commands = [context for context in CONTEXTS.values() if not isinstance(context.command, click.Group)]
    assert [c.command_path for c in commands if not any("-q" in option.opts for option in options(c))] == []
    assert run(["clusters", "show", "-q", "heterps-paper"]) == 0
    assert run(["ops", "-q"]) == 0
    assert capsys.readouterr().out == ""
    assert run(["clusters", "show", "-q", "no-pool"]) == 1
    assert "no-pool" in capsys.readouterr().err
