"""The tutorial: its commands are run in order in an empty folder, and what they print is what the page says.

What is compared is the text as it stands, but for three rules: times that a command itself took read ``(time)``,
hashes ``(hash)``, and spaces at the end of a line do not count. ``pytest --update-golden`` writes the page's outputs
anew.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
FILE = re.compile(r"```python\n# (\S+)\n(.*?)```\n", re.DOTALL)
BLOCK = re.compile(r"```console\n(.*?)```\n", re.DOTALL)
TIMES = (
    (re.compile(r"^(time spent +).*", re.MULTILINE), r"\1(time)"),
    (re.compile(r"\bin [\d.]+ (us|ms|s)$", re.M), "in (time)"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "(hash)"),
)
END = "\x01"


def without_times(text: str) -> str:
    text = "\n".join(line.rstrip() for line in text.splitlines())
    for pattern, instead in TIMES:
        text = pattern.sub(instead, text)
    return text


def commands(page: str) -> list[str]:
    return [line[2:] for block in BLOCK.findall(page) for line in block.splitlines() if line.startswith("$ ")]


def printed(lines: list[str], folder: Path) -> list[str]:
    """Run commands in one shell; give what each prints on either stream."""
    script = "".join(f"{line}\nstatus=$?; printf '\\001'; (exit $status)\n" for line in lines)
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("GIT_", "GITHUB_", "COLUMNS"))},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        **{f"GIT_{who}_{what}": "reader@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout.split(END)[:-1]


def filled(page: str, outputs: list[str]) -> str:
    """Return the page with the outputs below their commands."""
    rest = iter(outputs)

    def fill(block: re.Match[str]) -> str:
        lines = [line for line in block[1].splitlines() if line.startswith("$ ")]
        shown = (f"{line}\n{without_times(next(rest))}".rstrip() for line in lines)
        return "```console\n" + "\n".join(shown) + "\n```\n"

    return BLOCK.sub(fill, page)


@pytest.mark.slow  # a tutorial, line by line
def test_the_tutorial_prints_what_it_says(tmp_path, pytestconfig):
    page = PAGE.read_text("utf-8")
    for name, text in FILE.findall(page):
        (tmp_path / name).write_text(text, "utf-8")
    found = filled(page, printed(commands(page), tmp_path))
    if pytestconfig.getoption("--update-golden"):
        PAGE.write_text(found, "utf-8")
    assert found == page


def test_the_rule_for_times_spares_every_other_number():
    said = "method     exact, placements tried 4, in 17.9 ms\ntime spent  1.11 s   \nstep 280 us, in 3 stages\n"
    assert without_times(said) == (
        "method     exact, placements tried 4, in (time)\ntime spent  (time)\nstep 280 us, in 3 stages"
    )


def test_the_tutorial_shows_every_command_of_a_reviewer():
    used = {line.split()[1] for line in commands(PAGE.read_text("utf-8")) if line.startswith("heterps-compile ")}
    assert {"click.onnx", "clusters", "show", "explain", "diff", "check", "simulate"} <= used
