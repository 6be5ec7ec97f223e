"""Read a written stage back: its source as a module of its own, its parameters from safetensors.

Reading runs the source, as importing any Python file does: the caller has checked the file's hash before.

Left out: that check.
"""

from pathlib import Path
from typing import Any

import jax
from safetensors import SafetensorError

from heterps_compile.backends.read_source import import_source
from heterps_compile.errors import BackendError
from heterps_compile.escape import printable

from .stage import JaxStage

_NEEDED = ("INPUTS", "OUTPUTS", "KNOWN_INPUTS", "WEIGHTS", "UPDATED", "DRAWS", "TIED_AS", "stage", "load")


def read_stage(source: Path, parameters: Path, index: int) -> JaxStage:
    """Read one stage.

    Raises:
        BackendError: naming stage and file.
    """
    module: Any = import_source(source, index)
    missing = [name for name in _NEEDED if name not in vars(module)]
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
        frozenset(module.KNOWN_INPUTS), tied_as=module.TIED_AS, updated=module.UPDATED, draws=module.DRAWS,
        stepping=getattr(module, "step", None),
    )  # fmt: skip
