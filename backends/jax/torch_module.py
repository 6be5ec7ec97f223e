"""A jax stage as a module of PyTorch: whatever runs, trains and saves modules does so with it.

Parameters and buffers are tensors under the model's names, whose memory jax reads. Residuals of a forward that are
values or parameters themselves are that memory too, so it must not change before the backward: PyTorch's check of
saved tensors sees to that, and an optimiser steps after the last backward. What jax makes has memory of its own, to
which PyTorch may write; jax is waited for before PyTorch goes on.

Masks of dropout come from a key that PyTorch's generator draws: who seeds that one repeats them.

Left out: gradients of gradients; parameters in a GPU's memory: they lie in the CPU's, from where jax takes them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import torch
from jax import numpy as jnp
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.dlpack import from_dlpack

from heterps_compile.backends.torch.holder import Slot, hold_tensor
from heterps_compile.errors import BackendError
from heterps_compile.escape import printable

from .pull_back import Forward, Residuals, pull_back
from .stage import JaxStage, as_array, is_nothing_drawn, naming_inputs

_WORD = 2**32  # a key of jax has two of these


class JaxModule(nn.Module):
    """A jax stage that trains; ``state_dict`` has the names that the torch stage of the same nodes has.

    Attributes:
        inputs: Names of the values ``forward`` takes, in order.
        outputs: Names of the values it gives, in order; always a tuple.
        tied_as: Of its tensors that go by several names in the model: the one the plan has, by its name here.
        momentum: Of every running average that a forward moves, by name.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tied_as: Mapping[str, str]
    momentum: Mapping[str, float]
    _device: torch.device
    _stage: JaxStage
    _slots: dict[str, Slot]
    _shared: dict[str, tuple[int, Any]]
    _compiled: "dict[Any, _Compiled]"

    def __init__(self, stage: JaxStage, device: torch.device) -> None:
        """Copy the parameters of a stage into tensors; the stage itself stays as it is.

        Args:
            stage: Built or read.
            device: Where its outputs are put.
        """
        super().__init__()
        # straight into the instance, which goes before a submodule or parameter of the same name
        self.__dict__.update(
            inputs=stage.inputs,
            outputs=stage.outputs,
            tied_as=stage.tied_as,
            momentum={name: momentum for name, momentum in stage.updated.items() if momentum is not None},
            _device=device,
            _stage=replace(stage, arrays={}, program=None),
            _slots=_hold(self, stage),
            _shared={},
            _compiled={},
        )

    def forward(self, *values: Any) -> tuple[Any, ...]:
        """Run the stage on tensors and numbers in the order of its inputs; running statistics change in place.

        Raises:
            BackendError: naming the inputs or the node that cannot run on them.
        """
        return self._outputs(values, recomputes=False)

    def recomputing(self, *values: Any) -> tuple[Any, ...]:
        """Run the stage as :meth:`forward` does, leaving nothing for the backward but what enters it.

        The backward computes the rest again, in a function of its own: gradients may differ by rounding.
        """
        return self._outputs(values, recomputes=True)

    def _outputs(self, values: Sequence[Any], *, recomputes: bool) -> tuple[Any, ...]:
        known_names = self._stage.known_inputs
        known = {i: self._known(i, v) for i, v in enumerate(values) if self.inputs[i] in known_names}
        given = [_tensor_of(value) for i, value in enumerate(values) if i not in known]
        tensors = [*given, *(table[last] for table, last in self._slots.values())]
        moving = tuple(torch.is_grad_enabled() and tensor.requires_grad for tensor in tensors)
        key = (
            np.asarray(torch.randint(_WORD, (2,)), np.uint32) if self._stage.draws and not is_nothing_drawn() else None
        )
        with naming_inputs(self.inputs, values):
            compiled = self._compiled_for(known, moving, recomputes=recomputes)
            outputs: tuple[Tensor, ...] = (
                _Differentiable.apply(self, compiled, key, *tensors)  # type: ignore[no-untyped-call]  # of torch
                if any(moving)
                else self._run(compiled, tensors, key)[0]
            )
        return tuple(output.to(self._device) for output in outputs)

    def _known(self, place: int, value: Any) -> Any:
        """Return a value that shapes depend on as an array.

        Raises:
            BackendError: where its gradient is wanted, which jax does not compute of what it must know before.
        """
        if torch.is_grad_enabled() and isinstance(value, Tensor) and value.requires_grad:
            raise BackendError(
                f"jax must know the elements of {printable(self.inputs[place])!r} before the stage runs, since shapes "
                f"depend on them, and what is known has no gradient there; take the backend torch, or choose by "
                f"torch.where in place of the elements' positions"
            )
        return np.asarray(as_array(value))

    def _compiled_for(self, known: Mapping[int, Any], moving: tuple[bool, ...], *, recomputes: bool) -> "_Compiled":
        key = (recomputes, moving, *((i, a.dtype.str, a.shape, a.tobytes()) for i, a in known.items()))
        if key not in self._compiled:
            self._compiled[key] = _Compiled(Forward(self._stage, tuple(self._slots), known, moving, recomputes))
        return self._compiled[key]

    def _run(
        self, compiled: "_Compiled", tensors: Sequence[Tensor], key: Any
    ) -> tuple[tuple[Tensor, ...], Residuals, list[Any]]:
        """Run; give the outputs, the residuals, and the tensors as arrays."""
        names = [None] * (len(tensors) - len(self._slots)) + list(self._slots)
        with jax.enable_x64(True):
            arrays = [self._array(name, tensor) for name, tensor in zip(names, tensors, strict=True)]
            outputs, updates, residuals = jax.block_until_ready(compiled.run(arrays, key))
        with torch.no_grad():
            for name, new in updates.items():
                table, last = self._slots[name]
                table[last].copy_(_as_tensor(new))
        return tuple(map(_as_tensor, outputs)), residuals, arrays

    def _array(self, name: str | None, tensor: Tensor) -> Any:
        """Return a tensor as an array; that of a parameter is kept as long as both are the same memory."""
        address, array = self._shared.get(name or "", (0, None))
        if array is not None and address == tensor.data_ptr():
            return array
        array = _from_tensor(tensor)
        if name and tensor.numel() and _is_shared(array, tensor):
            self._shared[name] = (tensor.data_ptr(), array)
        return array


class _Compiled:
    """A forward, compiled; and which gradients it has at all, found out when they are first asked for."""

    def __init__(self, forward: Forward) -> None:
        self.forward = forward
        self.run = jax.jit(forward)
        self.influences: tuple[frozenset[int], ...] | None = None


class _Differentiable(torch.autograd.Function):
    """The forward as PyTorch's autograd has it."""

    @staticmethod
    def forward(ctx: Any, module: JaxModule, compiled: _Compiled, key: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        outputs, ctx.residuals, ctx.arrays = module._run(compiled, tensors, key)
        ctx.compiled, ctx.key = compiled, key
        ctx.described = [(output.shape, output.dtype) for output in outputs]
        count = len(tensors) - len(module._slots)
        updated = module._stage.updated
        held = [t for t, name in zip(tensors[count:], module._slots, strict=True) if name not in updated]
        ctx.save_for_backward(*tensors[:count], *held)
        ctx.mark_non_differentiable(*(output for output in outputs if not _has_gradient(output.dtype)))
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator hides its signature
        ctx: Any, *gradients: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # which raises where one was changed in the meantime
        compiled: _Compiled = ctx.compiled
        given = {i for i, gradient in enumerate(gradients) if gradient is not None}
        with jax.enable_x64(True):
            if compiled.influences is None:
                compiled.influences = compiled.forward.influences(ctx.arrays, ctx.key)
            into = {
                i: _from_tensor(torch.zeros(shape, dtype=dtype) if gradient is None else gradient)
                for i, (gradient, (shape, dtype)) in enumerate(zip(gradients, ctx.described, strict=True))
                if _has_gradient(dtype)
            }
            found = jax.block_until_ready(pull_back(ctx.residuals, ctx.arrays, into))
        moved = iter(zip(found, compiled.influences, strict=True))
        results: list[Tensor | None] = [None, None, None]
        for moves in compiled.forward.moving:
            gradient, outputs = next(moved) if moves else (None, frozenset())
            results.append(None if given.isdisjoint(outputs) else _as_tensor(gradient))
        return tuple(results)


def _hold(module: nn.Module, stage: JaxStage) -> dict[str, Slot]:
    """Hold every array of a stage as a tensor; what is tied is one tensor under all of its names."""
    slots: dict[str, Slot] = {}
    tensors: dict[str, Tensor] = {}
    with jax.enable_x64(True):
        for name, array in stage.arrays.items():
            storage = stage.tied_as.get(name, name)
            if storage not in tensors or tensors[storage].shape != np.shape(array):
                tensor = _as_tensor(jnp.array(array))
                tensors[storage] = nn.Parameter(tensor) if name in stage.weights else tensor
            slots[name] = hold_tensor(module, name, tensors[storage], is_transient=False)
    for name, storage in stage.tied_as.items():
        if name not in slots:
            hold_tensor(module, name, tensors[storage], is_transient=False)
    return slots


def _tensor_of(value: Any) -> Tensor:
    return value.cpu() if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))


def _has_gradient(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _from_tensor(tensor: Tensor) -> Any:
    """Return a tensor as an array where jax computes: of the same memory, if that is the CPU's."""
    array = jax.dlpack.from_dlpack(tensor.detach().contiguous())
    return array if jax.default_backend() == "cpu" else jax.device_put(array, jax.devices()[0])


def _as_tensor(array: Any) -> Tensor:
    """Return an array as a tensor of the CPU, of the same memory if it lies there."""
    if jax.default_backend() != "cpu":
        array = jax.device_put(array, jax.devices("cpu")[0])
    return from_dlpack(array)


def _is_shared(array: Any, tensor: Tensor) -> bool:
    address: int = array.unsafe_buffer_pointer()
    return jax.default_backend() == "cpu" and address == tensor.data_ptr()
