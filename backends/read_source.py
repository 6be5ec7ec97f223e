"""Import the source of a written stage as a module of its own.

Importing runs the source, as importing any Python file does: the caller has checked the file's hash before.

Left out: that check; weights and parameters (each backend's ``read_stage.py``).
"""

import types
from itertools import count
from pathlib import Path

from heterps_compile.errors import BackendError
from heterps_compile.escape import printable
from heterps_compile.source_module import module_of, run_module

_COUNT = count()


def import_source(source: Path, index: int) -> types.ModuleType:
    """Import one stage's source.

    Raises:
        BackendError: naming stage and file.
    """
    module = module_of(source, f"heterps_compile_stage_{next(_COUNT)}")
    try:
        run_module(module)
    except Exception as error:
        raise BackendError(
            f"stage {index}: {str(source)!r} cannot be imported: {type(error).__name__}: {printable(str(error))}; "
            f"compile the model again"
        ) from error
    return module
