"""What tracing a module changes in it beside parameters and buffers, found and put back.

``self.calls += 1`` and ``self.last = hidden`` are run by the trace and are part of no graph: stages keep what such an
attribute was when the model was traced. A tensor that is an attribute and no buffer is a constant of the graph, which
stages change as the model does; only its elements are put back here.

Left out: what is deeper than one list or dict inside an attribute, objects that change inside, and PyTorch's own
modules.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from heterps_compile.packages import PYTORCH

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_HOOKS = tuple(name for name in _OF_EVERY_MODULE if "_hooks" in name)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


@dataclass(frozen=True, slots=True)
class _Kept:
    """One attribute before the trace: its value, and its contents if those can change."""

    value: Any
    contents: Any


@contextmanager
def attributes_put_back(model: nn.Module) -> Iterator[list[str]]:
    """Yield a list that gets the names of attributes that a call of the model inside changes; put them back on leaving.

    torch.export puts some of them back itself, so that they are looked at when the model returns.
    """
    kept = {
        (path, key): _Kept(value, _contents(value))
        for path, module in _own_modules(model)
        for key, value in vars(module).items()
        if key not in _OF_EVERY_MODULE
    }
    hooks = [
        (table, table.copy())
        for module in model.modules()
        for key in _HOOKS
        if isinstance(table := vars(module).get(key), dict)
    ]
    changed: list[str] = []

    def look(module: nn.Module, *_: object) -> None:
        if module is model:
            changed.extend(name for name in _changed(model, kept) if name not in changed)

    hook = register_module_forward_hook(look)
    try:
        yield changed
    finally:
        hook.remove()
        _put_back(model, kept)
        for table, before in hooks:  # a model that puts on hooks when first called remembers that in an attribute
            table.clear()
            table.update(before)


def _own_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that are not PyTorch's: those have state in buffers alone, and keep lists of their weights."""
    for path, module in model.named_modules():
        if type(module).__module__.partition(".")[0] != PYTORCH:
            yield path, module


def _contents(value: Any) -> Any:
    if type(value) in (list, dict, set):
        return value.copy()
    is_plain_tensor = isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_meta
    return (value._version, value.detach().clone()) if is_plain_tensor and not value.is_inference() else None


def _changed(model: nn.Module, kept: dict[tuple[str, str], _Kept]) -> Iterator[str]:
    for path, module in _own_modules(model):
        for key in (k for k in vars(module) if k not in _OF_EVERY_MODULE):
            before = kept.get((path, key))
            if before is None or not _is_same(vars(module)[key], before.value) or _has_other_contents(before):
                yield f"{path}.{key}".removeprefix(".")


def _is_same(now: Any, before: Any) -> bool:
    return now is before or (type(now) is type(before) and isinstance(now, _PLAIN) and bool(now == before))


def _has_other_contents(before: _Kept) -> bool:
    """Say whether a list, dict or set holds something else; a tensor's new elements are the graph's own doing."""
    if before.contents is None or isinstance(before.value, torch.Tensor):
        return False
    now, old = ([*part.items()] if isinstance(part, dict) else [*part] for part in (before.value, before.contents))
    return len(now) != len(old) or not all(map(_is_same_entry, now, old))


def _is_same_entry(now: Any, before: Any) -> bool:
    if isinstance(now, tuple) and isinstance(before, tuple) and len(now) == len(before):
        return all(map(_is_same, now, before))
    return _is_same(now, before)


def _put_back(model: nn.Module, kept: dict[tuple[str, str], _Kept]) -> None:
    for path, module in _own_modules(model):
        held = vars(module)
        for key in [k for k in held if k not in _OF_EVERY_MODULE and (path, k) not in kept]:
            del held[key]
        for key, before in ((k, v) for (at, k), v in kept.items() if at == path):
            held[key] = before.value
            if isinstance(before.value, torch.Tensor):
                if before.contents is not None and before.value._version != before.contents[0]:
                    with torch.no_grad():
                        before.value.copy_(before.contents[1])
            elif _has_other_contents(before):
                before.value.clear()
                getattr(before.value, "extend" if isinstance(before.value, list) else "update")(before.contents)
