"""Run the command as a user does: a process of its own, in a folder of its own."""

import os
import subprocess
import sys
from pathlib import Path


def heterps(*words: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m heterps_compile``; the result has its stdout, stderr and exit code."""
    return subprocess.run(
        [sys.executable, "-m", "heterps_compile", *map(str, words)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def everything_in(folder: Path) -> dict[str, bytes]:
    """Give the bytes of every file in a folder by its path there; hidden ones too."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"" for p in sorted(folder.rglob("*"))}
