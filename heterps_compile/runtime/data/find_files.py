"""The files with samples at a place that a person names: a file, or a folder of them in the order of their names."""

import os
from pathlib import Path

from heterps_compile.errors import InputError
from heterps_compile.escape import printable

from .data_file import DataFile, local_file

FOLDER_SUFFIXES = (".parquet", ".csv")
"""Of files that a folder may hold."""


def find_files(where: str, suffix: str) -> list[DataFile]:
    """Return the file at a place, or the files of the folder there that end in ``suffix``, as they are now.

    Raises:
        InputError: where there is none, or one cannot be read.
    """
    path = Path(where)
    if not path.is_dir():
        return [local_file(path)]
    files = [path / name for name in _names_in(path) if name.endswith(suffix)]
    if not files:
        raise InputError(f"the folder {printable(where)!r} has no files that end in {suffix}")
    return [local_file(file) for file in files]


def suffix_at(where: str) -> str:
    """Return how the file at a place ends, or the files of the folder there.

    Raises:
        InputError: where a folder has files with samples of two kinds, or none.
    """
    path = Path(where)
    if not path.is_dir():
        return path.suffix
    there = {Path(name).suffix for name in _names_in(path)}
    found = [suffix for suffix in FOLDER_SUFFIXES if suffix in there]
    if len(found) != 1:
        held = f"files of {len(found)} kinds ({', '.join(found)})" if found else "no files that end in .parquet or .csv"
        raise InputError(f"the folder {printable(where)!r} has {held}; one folder holds files of one kind")
    return found[0]


def _names_in(path: Path) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError as error:
        raise InputError(f"cannot read the folder {printable(os.fspath(path))!r}: {error.strerror}") from error
