"""SHA-256 of the files of a checkpoint: taken as they are written, checked before anything is loaded from them.

Who writes a file hashes it; ``state.json`` has the hashes of all files, and in its last line its own::

    weights-0.safetensors   <- hashed by the rank that writes it     \
    servers/table-0....npy  <- hashed by its server as it is written  >  state.json: "files", then "sha256" of itself
    optimizer-0.json        <- hashed by the rank that writes it     /

Whoever starts a run checks every file once, several at a time; a rank checks again those that it reads from. Hashing
takes about half a second for a gigabyte and core.

Left out: who can write a file of a checkpoint can write its hash. What such a person can do is put other numbers there;
the names of files never lead out of the folder, and nothing but files is read.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.units import format_bytes

_AT_ONCE = 4  # files; hashing leaves Python's lock alone
_SHOWN = 12  # digits of a hash
_OWN = b',\n  "sha256": "'
_OWN_END = b'"\n}\n'
_HASH = re.compile(r"[0-9a-f]{64}")


def hash_files(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of files by their names in a folder.

    Raises:
        OSError: where one cannot be read.
    """
    return {name: _sha256(folder / name) for name in names}


def is_hash(text: object) -> bool:
    """Tell whether something is a SHA-256 as it is written."""
    return isinstance(text, str) and _HASH.fullmatch(text) is not None


def is_name_inside(text: str) -> bool:
    """Tell whether a text names a file below a folder: relative, without ``..``, and a name that files can have.

    Raises:
        ValueError: where no file system has such names.
    """
    os.fsencode(text)
    path = PurePosixPath(text)
    return text == str(path) and "\0" not in text and not path.is_absolute() and not {".", ".."} & set(path.parts)


def read_whole(path: Path, most_bytes: int) -> bytes:
    """Read a file, where it is one: not a device or a pipe, which may never end.

    Raises:
        OSError: where it cannot be read.
        ValueError: where it is no file, or has more bytes.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        _refuse_no_file(os.fstat(file.fileno()))
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"it is larger than {format_bytes(most_bytes)}")
    return content


def read_json(written: bytes | str) -> Any:
    """Read JSON that somebody else may have written.

    Raises:
        ValueError: where it is none, or nested deeper than Python reads.
    """
    try:
        return json.loads(written)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _refuse_no_file(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is no file, but a folder, a device or a pipe")


def files_in(folder: Path) -> list[str]:
    """Return the names of all files below a folder, with slashes, in order."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def check_files(checkpoint: Path, files: Mapping[str, str], way_out: str) -> None:
    """Check all files of a checkpoint, several at a time.

    Args:
        checkpoint: Its folder.
        files: SHA-256 by name.
        way_out: What to do where one is not as it was written; ends the message.

    Raises:
        RunError: naming the first file that is missing or changed, with the beginnings of both hashes.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(lambda name: check_file(checkpoint, files, name, way_out), files):
            pass


def check_file(checkpoint: Path, files: Mapping[str, str], name: str, way_out: str) -> None:
    """Check one file of a checkpoint; arguments and errors as in :func:`check_files`."""
    path, expected = checkpoint / name, files.get(name)
    if expected is None:
        raise RunError(
            f"{printable(str(path))!r} is not among the files that the checkpoint was written with; {way_out}"
        )
    try:
        found = path.stat()
        _refuse_no_file(found)
        actual = _hash_of(path, found.st_size, found.st_mtime_ns, found.st_ino)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"{printable(str(path))!r} cannot be read ({reason}); {way_out}") from error
    if actual != expected:
        raise RunError(changed(path, actual, expected, way_out))


def changed(path: Path, found: str, expected: str, way_out: str) -> str:
    """Say that a file is another one than was written."""
    return (
        f"{printable(str(path))!r} is not the file that the checkpoint was written with (SHA-256 {found[:_SHOWN]}…, "
        f"expected {expected[:_SHOWN]}…); {way_out}"
    )


def sealed(text: str) -> bytes:
    """Return a JSON object, printed with an indent of two, with the hash of itself as its last entry."""
    content = text.encode("ascii").removesuffix(b"\n}")
    return content + _OWN + hashlib.sha256(content).hexdigest().encode() + _OWN_END


def check_seal(path: Path, content: bytes, way_out: str) -> bool:
    """Check what :func:`sealed` made; False where there is no such hash, as in files of earlier versions.

    Raises:
        RunError: where the content is another one, with both hashes.
    """
    body, mark, seal = content.rpartition(_OWN)
    if not mark:
        return False
    expected = seal.removesuffix(_OWN_END).decode("ascii", "backslashreplace")
    actual = hashlib.sha256(body).hexdigest()
    if actual != expected or not seal.endswith(_OWN_END):
        raise RunError(changed(path, actual, printable(expected), way_out))
    return True


@lru_cache(maxsize=4096)
def _hash_of(path: Path, size_bytes: int, changed_ns: int, inode: int) -> str:
    """Hash a file once, as long as it stays the same."""
    del size_bytes, changed_ns, inode
    return _sha256(path)


def _sha256(path: Path) -> str:
    with open(os.fspath(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
