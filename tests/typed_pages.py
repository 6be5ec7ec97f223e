"""Pages of the documentation whose commands are run in order in an empty folder.

What is compared is the text as it stands, but for four rules: times that a command itself took read ``(time)``,
hashes ``(hash)``, spaces at the end of a line do not count, and losses and metrics of a training may be a hundredth
off: a CPU of another kind rounds its products otherwise, and a thousand steps carry that on. ``pytest
--update-golden`` writes the page's outputs anew.
"""

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

FILE = re.compile(r"```python\n# (\S+)\n(.*?)```\n", re.DOTALL)
BLOCK = re.compile(r"```console\n(.*?)```\n", re.DOTALL)
TIMES = (
    (re.compile(r"^(time spent +).*", re.MULTILINE), r"\1(time)"),
    (re.compile(r"\bin [\d.]+ (us|ms|s)$", re.M), "in (time)"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "(hash)"),
)
TRAINED = re.compile(r"\b((?:loss|auc|accuracy|AUC with ONNX Runtime) )(\d+\.\d+)")
OFF_MOST = 0.01
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


def as_trained_here(text: str, found: str) -> str:
    """Return the page with the numbers of trainings that were found, where each is near the one that it shows."""
    shown, made = TRAINED.findall(text), iter(TRAINED.findall(found))
    if len(shown) != len(TRAINED.findall(found)):
        return text

    def fill(number: re.Match[str]) -> str:
        what, value = next(made)
        is_near = what == number[1] and abs(float(value) - float(number[2])) <= OFF_MOST * float(number[2])
        return what + value if is_near else number[0]

    return TRAINED.sub(fill, text)


def check_page(page: Path, folder: Path, *, update: bool) -> str:
    """Write the files that a page shows, run its commands, and compare what they print; give the page as typed here."""
    text = page.read_text("utf-8")
    for name, content in FILE.findall(text):
        (folder / name).write_text(content, "utf-8")
    found = filled(text, printed(commands(text), folder))
    if update:
        page.write_text(found, "utf-8")
    text = as_trained_here(text, found)
    lines = difflib.unified_diff(text.splitlines(), found.splitlines(), "the page", "what was printed", lineterm="")
    assert found == text, "\n".join(lines)
    return found
