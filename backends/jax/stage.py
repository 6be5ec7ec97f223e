"""A stage that runs: a pure function, its parameters, and how arrays of any kind are handed to it.

The pure function follows jax's own setting of 64 bits, off by default: int64 is int32 then, and float64 float32. A
*call* of the stage enables 64 bits for itself alone, so that dtypes are the graph's; nothing global changes.

Left out: devices (jax's default one).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from heterps_compile.errors import BackendError, HeterpsError
from heterps_compile.escape import printable, shorten

from .program import Program

_REASON_SHOWN = 400

Function = Callable[..., tuple[Any, ...]]


@dataclass(eq=False)
class JaxStage:
    """One runnable stage.

    Attributes:
        inputs: Names of the values it takes, in order.
        outputs: Names of the values it gives, in order.
        function: ``function(params, *inputs)``, pure: for ``jax.jit``, ``jax.grad`` and ``jax.vmap``.
        arrays: Its parameters by name, as numpy arrays.
        weights: Names of the parameters that are trained.
        known_inputs: Names of inputs that must be known before it runs (static under ``jax.jit``).
        program: What it was built from, or None where it was read from a file.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    function: Function
    arrays: Mapping[str, Any] = field(repr=False)
    weights: frozenset[str] = field(default=frozenset(), repr=False)
    known_inputs: frozenset[str] = frozenset()
    program: Program | None = field(default=None, repr=False)
    _params: dict[str, Any] | None = field(default=None, init=False, repr=False)
    _compiled: dict[tuple[Any, ...], Any] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, program: Program) -> "JaxStage":
        """Give the stage that runs a program."""
        return cls(
            program.inputs, program.outputs, program, program.parameters, program.weights, program.known_inputs, program
        )

    @property
    def params(self) -> dict[str, Any]:
        """Give the parameters as a pytree: jax arrays by their names in the model."""
        if self._params is None:
            with jax.enable_x64(True):
                self._params = {name: jnp.asarray(array) for name, array in self.arrays.items()}
        return self._params

    @property
    def trained(self) -> dict[str, Any]:
        """Give those of the parameters that are trained; the others are buffers and constants, whole numbers too."""
        return {name: array for name, array in self.params.items() if name in self.weights}

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """Run, compiled, on arrays or tensors in the order of ``inputs``; give jax arrays in that of ``outputs``.

        Raises:
            BackendError: naming the node that cannot run on such inputs, or, of a stage that was read, the inputs.
        """
        given = [as_array(value) for value in values]
        known = {
            i: np.asarray(value)
            for i, (name, value) in enumerate(zip(self.inputs, given, strict=True))
            if name in self.known_inputs
        }
        with jax.enable_x64(True):
            compiled = self.compiled(known)
            try:
                results: tuple[Any, ...] = compiled(self.params, *(v for i, v in enumerate(given) if i not in known))
            except HeterpsError:
                raise
            except Exception as error:
                shapes = ", ".join(
                    f"{printable(n)!r} {list(np.shape(v))}" for n, v in zip(self.inputs, given, strict=True)
                )
                reason = printable(shorten(" ".join(str(error).split()), _REASON_SHOWN))
                raise BackendError(f"the jax stage cannot run on {shapes}: {reason}") from error
        return results

    def compiled(self, known: Mapping[int, Any]) -> Any:
        """Give the function compiled for the known inputs, which are constants of it."""
        key = tuple((i, a.dtype.str, a.shape, a.tobytes()) for i, a in known.items())
        if key not in self._compiled:

            def run(params: Mapping[str, Any], *rest: Any) -> tuple[Any, ...]:
                remaining = iter(rest)
                values = (known[i] if i in known else next(remaining) for i in range(len(self.inputs)))
                return self.function(params, *values)

            self._compiled[key] = jax.jit(run)
        return self._compiled[key]


def as_array(value: Any) -> Any:
    """Give a jax or numpy array for an array, a number, or a tensor of PyTorch.

    Raises:
        BackendError: for strings.
    """
    if hasattr(value, "detach"):
        tensor = value.detach().cpu()
        # numpy has no bfloat16 of its own; jax reads the tensor's memory
        return jax.dlpack.from_dlpack(tensor.contiguous()) if str(tensor.dtype) == "torch.bfloat16" else tensor.numpy()
    if getattr(getattr(value, "dtype", None), "kind", "") in ("O", "U", "S"):
        raise BackendError("a jax stage cannot take strings")
    return value
