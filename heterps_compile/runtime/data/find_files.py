"""The files with samples at a place that a person names: a file, a folder of them, or those that a pattern fits.

Many files are taken in the order of their names. A place is a path, or an address such as ``s3://bucket/days/``.
"""

import glob
import os
from pathlib import Path, PurePosixPath

from heterps_compile.errors import InputError
from heterps_compile.escape import printable

from .data_file import DataFile, local_file
from .remote_file import is_remote, remote_file, remote_names

FOLDER_SUFFIXES = (".parquet", ".csv")
"""Of files that a folder may hold."""


def find_files(where: str, suffix: str) -> list[DataFile]:
    """Return the files at a place that end in ``suffix``, as they are now.

    Raises:
        HeterpsError: where there is none, or one cannot be read.
    """
    names = [where] if _is_one(where) else [name for name in _names_at(where) if name.endswith(suffix)]
    if not names:
        raise InputError(f"{printable(where)!r} has no files that end in {suffix}")
    return [_remote(name) if is_remote(name) else local_file(Path(name)) for name in names]


def _remote(name: str) -> DataFile:
    from .block_cache import with_blocks_kept  # noqa: PLC0415 - few runs read remote files

    return with_blocks_kept(remote_file(name))


def suffix_at(where: str) -> str:
    """Return how the files at a place end.

    Raises:
        InputError: where a folder has files with samples of two kinds, or none.
    """
    if _is_one(where) or "*" in where:
        return PurePosixPath(where).suffix
    there = {PurePosixPath(name).suffix for name in _names_at(where)}
    found = [suffix for suffix in FOLDER_SUFFIXES if suffix in there]
    if len(found) != 1:
        held = f"files of {len(found)} kinds ({', '.join(found)})" if found else "no files that end in .parquet or .csv"
        raise InputError(f"the folder {printable(where)!r} has {held}; one folder holds files of one kind")
    return found[0]


def _is_one(where: str) -> bool:
    """Tell whether a place is one file; far away that is told by its name, which asks nobody."""
    if is_remote(where):
        return "*" not in where and not where.endswith("/") and PurePosixPath(where).suffix != ""
    return not os.path.isdir(where) and ("*" not in where or os.path.exists(where))


def _names_at(where: str) -> list[str]:
    """Return what is in a folder, or fits a pattern, by name."""
    if is_remote(where):
        return remote_names(where)
    if "*" in where and not os.path.isdir(where):
        return sorted(glob.glob(where))
    try:
        return sorted(os.path.join(where, name) for name in os.listdir(where))
    except OSError as error:
        raise InputError(f"cannot read the folder {printable(where)!r}: {error.strerror}") from error
