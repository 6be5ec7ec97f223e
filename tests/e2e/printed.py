"""What a command prints, run in this process."""

from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

from heterps_compile.cli.main import run


def printed(words: str) -> list[int | str]:
    """Return exit code, stdout and stderr."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        code = run(words.split())
    return [code, out.getvalue(), err.getvalue()]
