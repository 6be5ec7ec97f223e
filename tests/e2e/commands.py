"""Run the command as a user does: a process of its own, in a folder of its own."""

import atexit
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from warm import WarmPopen, be_in, open_standard_files, warm_processes

from heterps_compile.__main__ import main


def heterps(*words: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``heterps-compile``; the result has its stdout, stderr and exit code.

    The process is forked with its imports done, and so are its ranks; :func:`cold_heterps` has each do them.
    """
    arguments = [str(word) for word in words]
    with tempfile.TemporaryDirectory() as folder:
        said = (Path(folder, "out"), Path(folder, "err"))
        process = warm_processes().Process(
            target=_be_the_command, args=(arguments, str(cwd), {**os.environ, **environment}, said)
        )
        process.start()
        process.join()
        code = process.exitcode
        assert code is not None
        return subprocess.CompletedProcess(arguments, code, *(path.read_text("utf-8") for path in said))


def cold_heterps(*words: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m heterps_compile``, from the first moment of its process on."""
    return subprocess.run(
        [sys.executable, "-m", "heterps_compile", *map(str, words)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def _be_the_command(words: list[str], folder: str, environment: Mapping[str, str], said: tuple[Path, Path]) -> None:
    """Do what the interpreter does around the command, in a process that was forked."""
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, said[0], os.O_WRONLY | os.O_CREAT),
        (2, said[1], os.O_WRONLY | os.O_CREAT),
    ):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    be_in(environment)
    open_standard_files()
    subprocess.Popen = WarmPopen  # type: ignore[misc] # for the ranks that it starts
    os.chdir(folder)
    sys.path.insert(0, "")
    sys.argv = ["heterps-compile", *words]
    try:
        main()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        with suppress(OSError):
            sys.stdout.flush()


def everything_in(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file in a folder by its path there; hidden ones too."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"" for p in sorted(folder.rglob("*"))}
