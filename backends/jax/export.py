"""A stage as StableHLO, by ``jax.export``: a portable program that runs without the model's code.

The bytes hold the program alone; its parameters stay an argument, the same dict that the stage has.

Left out: symbolic dimensions (the program is for the shapes it is exported with), and stages that keep state.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.export
import numpy as np

from heterps_compile.errors import BackendError
from heterps_compile.escape import printable, shorten

from .stage import JaxStage, as_array

_NAMES_SHOWN, _NAME_SHOWN = 3, 80


def export_stablehlo(stage: JaxStage, example_inputs: Sequence[Any]) -> bytes:
    """Return a stage as serialised StableHLO, for inputs of the dtypes and shapes of the given ones.

    ``jax.export.deserialize(data).call(stage.params, *inputs)`` runs it. Inputs that must be known before the stage
    runs are constants of the program, and no arguments of it. 64-bit dtypes are the graph's, whatever jax is set to.

    Raises:
        BackendError: where the stage drops at random, or changes buffers.
    """
    if stage.updated:
        raise BackendError(
            f"the stage that gives {', '.join(map(printable, stage.outputs[:3]))} changes {_some(stage.updated)} when "
            f"it runs, which its StableHLO cannot hold: put the model in evaluation mode (model.eval())"
        )
    if stage.draws:
        raise BackendError(
            f"the stage that gives {', '.join(map(printable, stage.outputs[:3]))} drops at random, which its StableHLO "
            f"cannot: put the model in evaluation mode (model.eval())"
        )
    given = [as_array(value) for value in example_inputs]
    known = {i: np.asarray(v) for i, v in enumerate(given) if stage.inputs[i] in stage.known_inputs}
    with jax.enable_x64(True):
        rest = [jax.ShapeDtypeStruct(np.shape(v), np.asarray(v).dtype) for i, v in enumerate(given) if i not in known]
        params = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in stage.arrays.items()}
        compiled = stage.compiled(known)
        exported = jax.export.export(jax.jit(lambda params, *rest: compiled(params, *rest)[0]))(params, *rest)
        return bytes(exported.serialize())


def _some(names: Iterable[str]) -> str:
    shown = [repr(printable(shorten(name, _NAME_SHOWN))) for name in names]
    return ", ".join(shown[:_NAMES_SHOWN]) + (f" and {len(shown) - _NAMES_SHOWN} more" * (len(shown) > _NAMES_SHOWN))
