"""Read values of a model's inputs from a file of arrays, without running what it holds.

Not covered: whether they fit the model (:mod:`.onnx_given`).
"""

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile, is_zipfile

import numpy as np
from numpy.typing import NDArray

from heterps_compile.errors import InputError
from heterps_compile.escape import one_line, printable
from heterps_compile.host_memory import available_bytes
from heterps_compile.units import format_bytes

Array = NDArray[Any]

_SHARE_OF_FREE = 4


def read_values(path: str | None, values: Mapping[str, Any]) -> dict[str, Any]:
    """Merge input values of a file with further ones, which win.

    Args:
        path: An ``.npz`` file as ``numpy.savez`` writes it, of arrays without Python objects; None for none.
        values: Further values by input.

    Raises:
        InputError: where the file cannot be read, or is larger than a quarter of the free memory.
    """
    return dict(values) if path is None else {**_read_npz(path), **values}


def _read_npz(path: str) -> dict[str, Array]:
    what, fix = f"the file of inputs {printable(path)!r}", "Fix: write it with numpy.savez(FILE, NAME=array)"
    if not Path(path).is_file():
        raise InputError(f"{what} is no regular file; expected an .npz file of arrays. {fix}")
    if not is_zipfile(path):
        raise InputError(f"{what} is no .npz file. {fix}")
    try:
        with ZipFile(path) as archive:
            size_bytes, most = sum(item.file_size for item in archive.infolist()), available_bytes() // _SHARE_OF_FREE
        if size_bytes > most:
            raise InputError(f"{what} holds {format_bytes(size_bytes)}; expected at most {format_bytes(most)}")
        with np.load(path, allow_pickle=False) as loaded:
            return {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError, EOFError, KeyError, NotImplementedError, BadZipFile, zlib.error, MemoryError) as e:
        raise InputError(f"{what} cannot be read: {one_line(str(e)) or type(e).__name__}. {fix}") from e
