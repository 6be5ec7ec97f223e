"""Import the source of a written stage as a module of its own.

Importing runs the source, as importing any Python file does: the caller has checked the file's hash before.

Left out: that check; weights and parameters (each backend's ``read_stage.py``).
"""

import types
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path

from heterps_compile.errors import BackendError
from heterps_compile.escape import printable

_COUNT = count()


class _SourceOnly(SourceFileLoader):
    """Compiles the source it is given: byte code lying beside it is neither read nor written."""

    def get_code(self, fullname: str) -> types.CodeType:
        """Return the code of the source itself."""
        path = self.get_filename(fullname)
        code: types.CodeType = self.source_to_code(self.get_data(path), path)
        return code


def import_source(source: Path, index: int) -> types.ModuleType:
    """Import one stage's source.

    Raises:
        BackendError: naming stage and file.
    """
    name = f"heterps_compile_stage_{next(_COUNT)}"
    spec = spec_from_file_location(name, source, loader=_SourceOnly(name, str(source)))
    if spec is None or spec.loader is None:
        raise BackendError(f"stage {index}: {str(source)!r} is no Python file")
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise BackendError(
            f"stage {index}: {str(source)!r} cannot be imported: {type(error).__name__}: {printable(str(error))}; "
            f"compile the model again"
        ) from error
    return module
