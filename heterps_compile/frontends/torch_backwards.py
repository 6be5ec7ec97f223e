"""What tracing drops of a model's backward: code of its owner that PyTorch's autograd calls.

``torch.export`` records what a forward computes; whoever differentiates that gets the derivatives of the recorded ops.
Dropped without a word are the backward of an ``autograd.Function``, hooks on tensors, hooks on backwards of modules and
hooks on saved tensors. Hooks that were registered before are found at the modules and parameters, all
others by standing in for the functions that make them while the model is traced, in the tracing thread alone.

What survives tracing and is not looked for: ``no_grad``, ``detach``, checkpoints that are not re-entrant, and custom
ops with ``register_autograd``.

Left out: hooks on nodes of the autograd graph (``tensor.grad_fn.register_hook``), which PyTorch lets nobody see;
verification compares gradients.
"""

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.autograd import graph as autograd_graph

from heterps_compile.errors import InputError
from heterps_compile.escape import printable, shorten

_SHOWN, _NAME_SHOWN = 3, 100
_TORCH = str(Path(torch.__file__).parent)
_PYTORCH, _INSIDE_PYTORCH = "torch.", "torch._"
_DERIVATIVES = frozenset({"BackwardHookFunction", "CrossMapLRN2d", "_NoopSaveInputs"})  # hooks are found at the module
_REENTRANT = "CheckpointFunction"
_patching = threading.RLock()

_SCALE = (
    "write it with plain ops: y.detach() + k * (x - x.detach()) has the value of y and gives x its gradient k times: "
    "k = -1 reverses it, k = 1 passes it straight through a y that has none"
)
_REMOVE = "remove it (handle.remove()), or " + _SCALE
_CHECKPOINT = "call torch.utils.checkpoint.checkpoint with use_reentrant=False"
_PACKING = "leave it out: stages save tensors as they are"
_AFTER = "remove it (handle.remove()): the optimiser steps after the last backward"


@dataclass(frozen=True, slots=True)
class LostBackward:
    """One thing of a model's backward that its stages would not have.

    Attributes:
        what: What it is and what it is called.
        module: Path of the module it belongs to, "" for the whole model or where not known.
        line: File and line of its owner's source, "" where not known.
        way_out: How to do without.
    """

    what: str
    module: str
    line: str
    way_out: str

    def __str__(self) -> str:
        """Say it in a few words."""
        module = f" in module {printable(shorten(self.module, _NAME_SHOWN))!r}" if self.module else ""
        line = f" ({printable(shorten(self.line, _NAME_SHOWN))})" if self.line else ""
        return f"{printable(shorten(self.what, _NAME_SHOWN))}{module}{line}"


def refuse_lost_backwards(name: str, lost: Iterable[LostBackward]) -> None:
    """Refuse to plan the training of a model whose stages would train with other gradients.

    Args:
        name: Of the model.
        lost: What its stages would not have.

    Raises:
        InputError: naming what is lost, with module, source line and the way out.
    """
    found = list(dict.fromkeys(lost))
    if not found:
        return
    shown = ", ".join(map(str, found[:_SHOWN]))
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    ways = "; or ".join(dict.fromkeys(one.way_out for one in found[:_SHOWN]))
    raise InputError(
        f"{printable(name)} cannot be trained in stages as it is: when PyTorch traces a model it drops {shown}{more}, "
        f"and the stages would train with other gradients; {ways}"
    )


def registered_hooks(model: nn.Module) -> list[LostBackward]:
    """Return the hooks on the backward of a model's modules and parameters that are registered already."""
    found = []
    for path, module in model.named_modules():
        for table in (module._backward_hooks, module._backward_pre_hooks):
            found += [_hook("the backward hook {}", hook, path) for hook in table.values()]
    for table in (torch.nn.modules.module._global_backward_hooks, torch.nn.modules.module._global_backward_pre_hooks):
        found += [_hook("the backward hook {} of all modules", hook, "") for hook in table.values()]
    return found + hooks_on_tensors(dict(model.named_parameters()))


def hooks_on_tensors(tensors: Mapping[str, torch.Tensor]) -> list[LostBackward]:
    """Return the hooks on tensors that take part in a backward, by their names."""
    found = []
    for name, tensor in tensors.items():
        if tensor.requires_grad:
            path, _, own = name.rpartition(".")
            hooks = (tensor._backward_hooks or {}).values()
            found += [_hook(f"the hook {{}} on {own!r}", hook, path) for hook in hooks]
            after = (tensor._post_accumulate_grad_hooks or {}).values()
            found += [_hook(f"the hook {{}} after the gradient of {own!r}", hook, path, _AFTER) for hook in after]
    return found


@contextmanager
def watch_backwards(model: nn.Module) -> Iterator[list[LostBackward]]:
    """Yield a list that fills with what is lost of a model's backward while this thread traces it.

    Other threads are let through unseen; two traces wait for each other. Inference mode is traced as ``no_grad``, which
    is what it is to gradients.
    """
    watch = _Watch(model)
    with _patching, ExitStack() as patches:
        for owner, attribute, stand_in in watch.stand_ins():
            patches.enter_context(_in_place_of(owner, attribute, stand_in))
        yield watch.found


@contextmanager
def _in_place_of(owner: Any, attribute: str, stand_in: Any) -> Iterator[None]:
    before = vars(owner).get(attribute)
    setattr(owner, attribute, stand_in)
    try:
        yield
    finally:
        if before is None:
            delattr(owner, attribute)
        else:
            setattr(owner, attribute, before)


class _Watch:
    """Stands in for the functions of PyTorch that put code of a model's owner into its backward."""

    def __init__(self, model: nn.Module) -> None:
        self.found: list[LostBackward] = []
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._thread = threading.get_ident()

    def stand_ins(self) -> Iterator[tuple[Any, str, Any]]:
        """Yield what to put in place of which attribute of which class or module."""
        functions: Any = torch.autograd.function._SingleLevelFunction  # whose apply Function.apply calls

        def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
            self._see_function(cls)
            of_pytorch: Any = super(functions, cls)
            return of_pytorch.apply(*args, **kwargs)

        yield functions, "apply", classmethod(applied)
        yield torch.Tensor, "register_hook", self._seeing(torch.Tensor.register_hook, "the tensor hook", _REMOVE)
        after = torch.Tensor.register_post_accumulate_grad_hook
        yield torch.Tensor, after.__name__, self._seeing(after, "the hook after a gradient", _AFTER)
        multi = autograd_graph.register_multi_grad_hook
        yield autograd_graph, multi.__name__, self._seeing(multi, "the hook on gradients", _REMOVE)
        packing = autograd_graph.saved_tensors_hooks
        yield packing, "__enter__", self._packing(packing.__enter__)
        inference = torch.autograd.grad_mode.inference_mode
        yield inference, "__enter__", self._inferring(inference.__enter__, torch.no_grad.__enter__)
        yield inference, "__exit__", self._inferring(inference.__exit__, torch.no_grad.__exit__)

    def _is_seen(self) -> bool:
        return threading.get_ident() == self._thread and torch.is_grad_enabled()

    def _see_function(self, function: Any) -> None:
        is_pytorch = function.__module__.startswith(_PYTORCH)
        survives = function.__module__.startswith(_INSIDE_PYTORCH) or (is_pytorch and function.__name__ in _DERIVATIVES)
        if not self._is_seen() or survives:
            return
        if is_pytorch and function.__name__ == _REENTRANT:
            self._see("a re-entrant checkpoint", _CHECKPOINT)
        else:
            self._see(f"the backward of the autograd.Function {function.__qualname__!r}", _SCALE)

    def _see(self, what: str, way_out: str) -> None:
        module, line = self._place()
        self.found.append(LostBackward(what, module, line, way_out))

    def _seeing(self, function: Callable[..., Any], what: str, way_out: str) -> Callable[..., Any]:
        """Return a function that takes down that the function, which takes a hook, was called, and calls it."""

        @functools.wraps(function)
        def stand_in(tensors: Any, hook: Any, *args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            if self._is_seen() and not _is_torch(frame):
                self._see(f"{what} {_name(hook)!r}", way_out)
            return function(tensors, hook, *args, **kwargs)

        return stand_in

    def _packing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def stand_in(context: Any) -> Any:
            # PyTorch's own, for checkpoints and to save tensors elsewhere, change no number
            is_harmless = type(context).__module__.startswith(_PYTORCH) and _is_derived(context)
            if self._is_seen() and not is_harmless:
                self._see("saved_tensors_hooks", _PACKING)
            return function(context)

        return stand_in

    def _inferring(self, function: Callable[..., Any], without_gradients: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def stand_in(context: Any, *args: Any) -> Any:
            is_ours = threading.get_ident() == self._thread and context.mode
            return (without_gradients if is_ours else function)(context, *args)

        return stand_in

    def _place(self) -> tuple[str, str]:
        """Return the module that is running, and the line of its owner's source; "" for what is not found."""
        frame: FrameType | None = sys._getframe(2)
        module, line = None, ""
        while frame is not None and module is None:
            if not line and not _is_torch(frame) and frame.f_code.co_filename != __file__:
                line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            module = self._paths.get(id(frame.f_locals.get("self")))
            frame = frame.f_back
        return module or "", line if module is not None else ""


def _is_torch(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_TORCH)


def _is_derived(context: Any) -> bool:
    return type(context) is not autograd_graph.saved_tensors_hooks


def _hook(what: str, hook: Any, module: str, way_out: str = _REMOVE) -> LostBackward:
    code = getattr(_unwrapped(hook), "__code__", None)
    line = "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"
    return LostBackward(what.replace("{}", repr(_name(hook)), 1), module, line, way_out)


def _unwrapped(hook: Any) -> Any:
    while isinstance(hook, functools.partial):
        hook = hook.func
    return hook


def _name(hook: Any) -> str:
    own = _unwrapped(hook)
    name: str = getattr(own, "__qualname__", type(own).__qualname__)
    return name
