"""Replace a file as a whole, so that a crash leaves the old one or the new one.

Left out: folders (``swap.py``).
"""

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from heterps_compile.errors import InputError
from heterps_compile.escape import printable

_NEW_MODE = 0o644


def check_writable(path: Path) -> None:
    """Check, before the long work, that :func:`write_whole` may make files where this one is to be.

    Raises:
        InputError: where it may not.
    """
    try:
        with tempfile.NamedTemporaryFile(prefix=".heterps-", dir=path.resolve().parent):
            pass
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error.strerror}") from error


def write_whole(path: Path, text: str, *, what: str = "") -> None:
    """Write a file of ASCII; one that is there keeps its mode, and a link leads to where it led.

    Args:
        path: The file.
        text: All of it.
        what: It is, for messages: ``"the plan "``.

    Raises:
        InputError: where it cannot be written.
    """
    replace_file(path, lambda aside: Path(aside).write_text(text, "ascii"), what=what)


def replace_file(path: Path, write: Callable[[str], object], *, what: str = "") -> None:
    """Have a file written aside, and put it in its place; mode and link as in :func:`write_whole`.

    Args:
        path: The file.
        write: Writes all of it to the path that it is given, which ends as this one does.
        what: It is, for messages: ``"the plan "``.

    Raises:
        InputError: where it cannot be written.
    """
    target = path.resolve()
    try:
        descriptor, aside = tempfile.mkstemp(prefix=".heterps-", suffix=path.suffix, dir=target.parent)
        os.close(descriptor)
        try:
            write(aside)
            os.chmod(aside, target.stat().st_mode & 0o777 if target.exists() else _NEW_MODE)
            os.replace(aside, target)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(aside)
    except OSError as error:
        raise InputError(f"cannot write {what}{printable(str(path))!r}: {error.strerror or error}") from error
