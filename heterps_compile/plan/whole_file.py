"""Replace a text file as a whole, so that a crash leaves the old one or the new one.

Left out: folders (``swap.py``).
"""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from heterps_compile.errors import InputError

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
    target = path.resolve()
    try:
        descriptor, name = tempfile.mkstemp(prefix=".heterps-", dir=target.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(text)
            os.chmod(name, target.stat().st_mode & 0o777 if target.exists() else _NEW_MODE)
            os.replace(name, target)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name)
    except OSError as error:
        raise InputError(f"cannot write {what}{str(path)!r}: {error.strerror}") from error
