"""Open files that a user names, and refuse what is no regular file before it can block.

To open a pipe without a writer waits without end, and to read a device need not end. What the shell has opened already,
``/dev/stdin`` and the ``/dev/fd/63`` of a process substitution, may be a pipe.

Not covered: files that this package writes for itself.
"""

import errno
import os
import re
import stat
from collections.abc import Callable
from io import BufferedReader

_OPENED_BY_THE_SHELL = re.compile(r"/dev/stdin|/dev/fd/\d+|/proc/self/fd/\d+")
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_plain(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file for reading bytes.

    Raises:
        OSError: the file cannot be opened, or is a folder, a pipe, a device or a socket; ``strerror`` says which.
        ValueError: the path has a NUL.
    """
    refuse_special(path, os.stat(path).st_mode)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # another file may have its place by now
    try:
        refuse_special(path, os.fstat(descriptor).st_mode)
        os.set_blocking(descriptor, True)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_plain(path: str | os.PathLike[str]) -> bytes:
    """Read a regular file; errors are those of :func:`open_plain`."""
    with open_plain(path) as file:
        return file.read()


def refuse_special(path: str | os.PathLike[str], mode: int) -> None:
    """Refuse a file that is no regular one.

    Args:
        path: The file.
        mode: ``st_mode`` of it.

    Raises:
        OSError: ``strerror`` says what it is.
    """
    if stat.S_ISREG(mode) or (stat.S_ISFIFO(mode) and _OPENED_BY_THE_SHELL.fullmatch(os.fspath(path))):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "a special file")
    raise OSError(
        errno.EINVAL, f"it is {kind}; expected a regular file. Fix: copy its content into one", os.fspath(path)
    )
