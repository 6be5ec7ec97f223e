"""Completion: what the Tab key offers, asked of a real bash that has evaluated the script."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from heterps_compile.cli.main import run
from heterps_compile.cluster.load import builtin_names

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")

# What readline does: name the words typed and the one that is to be completed, call what the script has registered,
# and fall back on what it asked for with compopt where there is no reply.
ASK = """
compopt() { asked="$2"; }
eval "$SCRIPT"
registered=$(complete -p heterps-compile) && function=${registered##*-F } && function=${function%% *}
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
"$function" heterps-compile
if [ ${#COMPREPLY[@]} -gt 0 ]; then printf '%s\\n' "${COMPREPLY[@]}"; else printf '<%s>\\n' "$asked"; fi
"""


@pytest.fixture
def script(capsys) -> str:
    """Return what users give to their bash."""
    assert run(["completion", "bash"]) == 0
    return capsys.readouterr().out


def offered(script: str, *words: str) -> list[str]:
    """Return what bash offers for the last word; ``["<default>"]`` stands for its own completion of files."""
    done = subprocess.run(
        ["bash", "--norc", "--noprofile", "-c", ASK, "bash", "heterps-compile", *words],
        env={**os.environ, "SCRIPT": script, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@needs_bash
@pytest.mark.parametrize(
    ("words", "offers"),
    [
        (["di"], ["diff"]),
        (["model.onnx", "--cluster", "my-pool.t"], ["<default>"]),  # files
        (["-o", ""], ["<dirnames>"]),
        (["--backend", ""], ["onnxruntime", "torch", "jax"]),
    ],
)
def test_bash_offers(words, offers, script):
    assert offered(script, *words) == offers


@pytest.mark.parametrize(
    ("words", "offers"),
    [
        (["model"], ["<file>"]),
        (["--clu"], ["--cluster"]),
        (["model.onnx", "--cluster", "edg"], ["edge"]),
        (["model.onnx", "--cluster", "my-pool.t"], ["<file>"]),
        (["compile", "model.onnx", "--method", "gr"], ["greedy"]),
        (["--objective", "l"], ["latency"]),
        (["simulate", "model.heterps", "--schedule", ""], ["gpipe", "1f1b", "interleaved-1f1b", "zero-bubble"]),
        (["diff", ""], ["<file>"]),
        (["diff", "old.json", "new.json", "--format", "m"], ["markdown"]),
        (["diff", "old.json", "new.json", "--fail-on", "th"], ["throughput"]),
        (["clusters", "s"], ["show"]),
        (["advise", "model.onnx", "--gpu", "a100"], ["a100", "a100-80gb"]),
        (["offers", "--region", "eu-w"], ["eu-west-1"]),
        (["clusters", "show", ""], list(builtin_names())),
        (["completion", ""], ["bash", "zsh", "fish"]),
    ],
)
def test_the_script_is_answered(words, offers, monkeypatch, capsys):
    """Each line names a kind and a word, as the script of bash reads them."""
    monkeypatch.setenv("_HETERPS_COMPILE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", shlex.join(["heterps-compile", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    with pytest.raises(SystemExit):
        run([])
    lines = [line.split(",", 1) for line in capsys.readouterr().out.splitlines()]
    words = [word for kind, word in lines if kind == "plain"]
    assert (words or [f"<{kind}>" for kind, _ in lines]) == offers


def test_completing_imports_nothing_heavy():
    script = (
        "import os, sys; os.environ.update(_HETERPS_COMPILE_COMPLETE='bash_complete', COMP_CWORD='2',"
        "COMP_WORDS='heterps-compile\\n--method\\n')\n"
        "from heterps_compile.cli.main import run\n"
        "try:\n    run([])\n"
        "except SystemExit:\n    print(sorted({'torch', 'onnx', 'onnx_ir', 'onnxruntime', 'jax'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[:2] == ["plain,best", "plain,rl"]
    assert done.stdout.splitlines()[-1] == "[]"
