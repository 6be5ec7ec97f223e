"""Buffers that a forward replaces: ``self.average = 0.9 * self.average + 0.1 * step`` in a submodule.

torch.export keeps such an assignment of the outermost module and drops one of its submodules. While a model is traced,
what its submodules have in the place of a buffer when the forward ends is written into the buffer instead, which every
graph holds.

Left out: buffers of the outermost module.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from heterps_compile.errors import InputError
from heterps_compile.escape import printable


@contextmanager
def replaced_buffers_written(model: nn.Module) -> Iterator[None]:
    """Let a module's forward write into the buffers of submodules what it puts in their place.

    Calling the module raises inside:
        InputError: naming a buffer that is replaced by a tensor of another shape or dtype.
    """
    had_own, forward = "forward" in vars(model), model.forward

    @functools.wraps(forward)
    def writing(*args: Any, **kwargs: Any) -> Any:
        before = {
            (path, name): buffer
            for path, module in model.named_modules()
            for name, buffer in module._buffers.items()
            if path and buffer is not None
        }
        result = forward(*args, **kwargs)
        for (path, name), buffer in before.items():
            table = model.get_submodule(path)._buffers
            now = table.get(name)
            if now is not buffer:
                result = pytree.tree_map(lambda leaf, old=buffer: leaf.clone() if leaf is old else leaf, result)
                _write(f"{path}.{name}", buffer, now)
                table[name] = buffer
        return result

    try:
        vars(model)["forward"] = writing
        yield
    finally:
        if had_own:
            vars(model)["forward"] = forward
        else:
            del vars(model)["forward"]


def _write(name: str, buffer: torch.Tensor, now: Any) -> None:
    if not isinstance(now, torch.Tensor) or (now.shape, now.dtype) != (buffer.shape, buffer.dtype):
        given = f"{now.dtype}{list(now.shape)}" if isinstance(now, torch.Tensor) else type(now).__name__
        raise InputError(
            f"the forward replaces the buffer {printable(name)!r}, {buffer.dtype}{list(buffer.shape)}, by "
            f"{printable(given)}: stages keep a buffer of one shape and dtype; keep to that, or return it instead"
        )
    with torch.no_grad():
        buffer.copy_(now.detach())
