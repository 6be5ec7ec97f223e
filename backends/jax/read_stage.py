"""Read a written stage back: its source as a module of its own, its parameters from safetensors.

Reading runs the source, as importing any Python file does: the caller has checked the file's hash before.

Left out: that check.
"""

import types
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path
from typing import Any

import jax
from safetensors import SafetensorError

from heterps_compile.errors import BackendError
from heterps_compile.escape import printable

from .stage import JaxStage

_COUNT = count()


class _SourceOnly(SourceFileLoader):
    """Compiles the source it is given: byte code lying beside it is neither read nor written."""

    def get_code(self, fullname: str) -> types.CodeType:
        """Give the code of the source itself."""
        path = self.get_filename(fullname)
        code: types.CodeType = self.source_to_code(self.get_data(path), path)
        return code


def read_stage(source: Path, parameters: Path, index: int) -> JaxStage:
    """Read one stage.

    Raises:
        BackendError: naming stage and file.
    """
    module: Any = _import(source, index)
    missing = [
        name for name in ("INPUTS", "OUTPUTS", "KNOWN_INPUTS", "WEIGHTS", "stage", "load") if name not in vars(module)
    ]
    if missing:
        raise BackendError(f"stage {index}: {str(source)!r} has no {missing[0]}; compile the model again")
    try:
        with jax.enable_x64(True):
            arrays = module.load(parameters)
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        raise BackendError(
            f"stage {index}: the parameters in {str(parameters)!r} do not fit {source.name}: {printable(str(error))}; "
            f"compile the model again"
        ) from error
    return JaxStage(
        tuple(module.INPUTS), tuple(module.OUTPUTS), module.stage, arrays, frozenset(module.WEIGHTS),
        frozenset(module.KNOWN_INPUTS),
    )  # fmt: skip


def _import(source: Path, index: int) -> types.ModuleType:
    name = f"heterps_compile_jax_stage_{next(_COUNT)}"
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
