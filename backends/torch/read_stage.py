"""Read a written stage back: its source as a module of its own, its weights from safetensors.

Reading runs the source, as importing any Python file does: the caller has checked the file's hash before.

Left out: that check.
"""

import types
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn

from heterps_compile.errors import BackendError
from heterps_compile.escape import printable

_COUNT = count()


class _SourceOnly(SourceFileLoader):
    """Compiles the source it is given: byte code lying beside it is neither read nor written."""

    def get_code(self, fullname: str) -> types.CodeType:
        """Give the code of the source itself."""
        path = self.get_filename(fullname)
        code: types.CodeType = self.source_to_code(self.get_data(path), path)
        return code


def read_stage(source: Path, weights: Path, index: int) -> nn.Module:
    """Read one stage.

    Raises:
        BackendError: naming stage and file.
    """
    module = _import(source, index)
    load: Any = getattr(module, "load", None)
    if not callable(load):
        raise BackendError(f"stage {index}: {str(source)!r} has no load(); compile the model again")
    try:
        stage = load(weights)
    except (OSError, SafetensorError, ValueError, RuntimeError) as error:
        raise BackendError(
            f"stage {index}: the weights in {str(weights)!r} do not fit {source.name}: {printable(str(error))}; "
            f"compile the model again"
        ) from error
    if not isinstance(stage, nn.Module):
        raise BackendError(f"stage {index}: load() in {str(source)!r} gives a {type(stage).__name__}, no nn.Module")
    return stage


def _import(source: Path, index: int) -> types.ModuleType:
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
