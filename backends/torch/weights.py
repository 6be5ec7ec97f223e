"""The tensors of a stage as a safetensors file: each tied tensor once, nothing pickled.

Left out: layouts other than strided, and dtypes that safetensors does not know.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from heterps_compile.errors import BackendError
from heterps_compile.escape import printable
from heterps_compile.frontends.torch_program import storage_key

from .literals import literal


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """A tensor that a stage holds.

    Attributes:
        tensor: The tensor.
        kind: ``"weight"``, ``"frozen weight"``, ``"buffer"`` or ``"constant"`` (not in ``state_dict``).
        saved_as: The name it is saved under: its own, or that of the name it is tied to.
    """

    tensor: torch.Tensor
    kind: str
    saved_as: str

    @property
    def described(self) -> str:
        """Return kind, dtype and shape as Python source."""
        shape = tuple(self.tensor.shape)
        return f"({self.kind!a}, {literal(self.tensor.dtype, str)}, {literal(shape, str)})"


def held_tensors(stage: nn.Module, index: int) -> dict[str, HeldTensor]:
    """Return every tensor a stage holds, by name, in order.

    Raises:
        BackendError: for weights that overlap in memory without being one tensor.
    """
    persistent = set(stage.state_dict(keep_vars=True))
    tensors = list(_named_tensors(stage, ""))
    weights = [(name, tensor) for name, tensor in tensors if isinstance(tensor, nn.Parameter)]
    buffers = [(name, tensor) for name, tensor in tensors if not isinstance(tensor, nn.Parameter)]
    held: dict[str, HeldTensor] = {}
    first: dict[tuple[object, ...], str] = {}
    for name, tensor in (*weights, *buffers):
        is_weight = isinstance(tensor, nn.Parameter)
        kind = "buffer" if name in persistent else "constant"
        if is_weight:
            kind = "weight" if tensor.requires_grad else "frozen weight"
        saved_as = first.setdefault(storage_key(name, tensor), name)
        if not _is_same(tensor, held[saved_as].tensor if saved_as in held else tensor):
            if is_weight:
                raise BackendError(
                    f"stage {index} cannot be written: {printable(name)!r} shares the memory of "
                    f"{printable(saved_as)!r} in another shape; give them memory of their own"
                )
            saved_as = name
        held[name] = HeldTensor(tensor, kind, saved_as)
    return held


def _named_tensors(module: nn.Module, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a module's tensors by the names ``state_dict`` has: ``named_parameters`` drops dots a name begins with."""
    for table in (module._parameters, module._buffers):
        yield from ((prefix + name, tensor) for name, tensor in table.items() if tensor is not None)
    for name, child in module._modules.items():
        if child is not None:
            yield from _named_tensors(child, f"{prefix}{name}.")


def save_weights(held: dict[str, HeldTensor], path: Path, index: int) -> None:
    """Save every tensor once.

    Raises:
        BackendError: naming the stage, and the tensor where one is at fault.
    """
    saved: dict[str, torch.Tensor] = {}
    for name, entry in held.items():
        tensor = entry.tensor.detach()
        if tensor.device.type == "meta" or tensor.layout is not torch.strided:
            raise BackendError(
                f"stage {index} cannot be written: tensor {printable(name)!r} has no plain memory "
                f"({tensor.layout}, device {tensor.device})"
            )
        if entry.saved_as == name:
            saved[name] = _own_memory(tensor, saved.values())
    try:
        save_file(saved, path)
    except (SafetensorError, RuntimeError, ValueError, KeyError) as error:
        raise BackendError(f"the weights of stage {index} cannot be saved: {printable(str(error))}") from error


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one is other or (one.shape == other.shape and one.stride() == other.stride())


def _own_memory(tensor: torch.Tensor, saved: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the tensor if it alone owns its memory, in plain order, else a copy."""
    is_whole = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
    is_shared = any(tensor.data_ptr() == other.data_ptr() for other in saved) and tensor.numel() > 0
    return tensor if is_whole and not is_shared else tensor.clone(memory_format=torch.contiguous_format)
