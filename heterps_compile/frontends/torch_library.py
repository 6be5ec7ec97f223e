"""What library models do that no graph can hold, switched off while one is traced or held against its stages.

1. Decoders keep a cache of past keys and values, an object that their forward makes, fills and returns, where
   ``config.use_cache`` says so: it is off inside. A cache that is returned all the same is left out of the result.
2. Mixtures of experts call an operator of the library's own where their setting is ``"grouped_mm"``: inside it is
   ``"batched_mm"``, the same in operators of PyTorch's own.
3. ``nn.Transformer`` asks the values of a mask whether it is the causal one, to choose a kernel: with the mask or with
   the hint the numbers are the same, so it is not asked.
4. ``nn.TransformerEncoder`` has a kernel for evaluation without gradients that gives 0 at padded positions: stages give
   there what it gives with gradients on, and a note says so.
5. Parts that ``torch.compile`` wraps run eagerly inside: a second tracer in them sees patched modules and fails. A
   wrapper around the whole model is taken off before.
6. ``flex_attention`` is computed by plain operators (``torch_flex_attention.py``), and a note says so.

Left out: functions that a forward calls and ``torch.compile`` wraps, which ``torch.export`` looks through; caches that
are given as inputs (torch.export says that it does not know their type).
"""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from heterps_compile.errors import InputError
from heterps_compile.units import counted

from .torch_flex_attention import plain_flex_attention
from .torch_program import forward_run_by


@dataclass(frozen=True, slots=True)
class _Setting:
    """An attribute of a model's configuration, the value that no graph can hold, the one instead, the note on it."""

    attribute: str
    unfit: Any
    instead: Any
    told: str = ""


_CACHE = (
    "{} keeps and returns a cache of past keys and values where use_cache is not False: its stages compute without "
    "one, the same outputs, and return none"
)
_PADDED = (
    "nn.TransformerEncoder in {} gives 0 at padded positions when it is evaluated without gradients "
    "(enable_nested_tensor): its stages give there what it gives with gradients on"
)
_SETTINGS = (
    _Setting("use_cache", True, False),  # told by cache_note, since many a model that has it keeps none
    _Setting(
        "_experts_implementation_internal",
        "grouped_mm",
        "batched_mm",
        "the experts of {} are computed with experts_implementation='batched_mm', the same numbers from a copy of an "
        "expert's weights for every token, since 'grouped_mm' is an operator that only its library has",
    ),
)


_HOOKS = frozenset(key for key in vars(nn.Module()) if key.endswith("_hooks"))


_FLEX = (
    "flex_attention in {} is computed by plain operators: its stages make every score, also in blocks that its "
    "block_mask leaves out"
)


@contextmanager
def traceable_settings(model: Any, name: str = "", *, are_functions_eager: bool = False) -> Iterator[list[str]]:
    """Switch off inside what the module says; yield notes on what is, complete once the model was called.

    Args:
        model: The model.
        name: Of the model, if it is traced; "" if it runs.
        are_functions_eager: Whether functions that ``torch.compile`` wraps run eagerly.
    """
    notes: list[str] = []
    if not isinstance(model, nn.Module):
        yield notes
        return
    changed = _unfit_settings(model)
    notes += dict.fromkeys(setting.told.format(name) for _, setting in changed if setting.told)
    if any(isinstance(m, nn.TransformerEncoder) and m.use_nested_tensor and not m.training for m in model.modules()):
        notes.append(_PADDED.format(name))
    try:
        for config, setting in changed:
            setattr(config, setting.attribute, setting.instead)
        with (
            _forward_without_caches(model, notes, _CACHE.format(name)),
            _masks_not_asked(),
            _compiled_parts_eager(model),
            plain_flex_attention(lambda: _tell(notes, _FLEX.format(name)), is_traced=bool(name)),
            torch.compiler.set_stance("force_eager") if are_functions_eager else nullcontext(),
        ):
            yield notes
    finally:
        for config, setting in changed:
            setattr(config, setting.attribute, setting.unfit)


def calls_flex_attention(notes: Iterable[str], name: str) -> bool:
    """Say whether the notes of a trace say that the model calls ``flex_attention``."""
    return _FLEX.format(name) in notes


def _tell(notes: list[str], told: str) -> None:
    if told not in notes:
        notes.append(told)


def without_wrapper(model: Any) -> tuple[Any, str]:
    """Unwrap a module that ``torch.compile`` wraps, with a note.

    Raises:
        InputError: if hooks are registered on the wrapper, where the module itself does not have them.
    """
    if not isinstance(model, nn.Module) or not _is_wrapper(model):
        return model, ""
    module: Any = vars(model)["_modules"]["_orig_mod"]
    name = type(module).__name__
    if hooks := sum(len(table) for key, table in vars(model).items() if key in _HOOKS):
        raise InputError(
            f"the torch.compile wrapper of {name} has {counted(hooks, 'hook')}; expected none, since the module itself "
            f"is read. Fix: register them on the module, before torch.compile or on its _orig_mod"
        )
    return module, (
        f"{name} was wrapped by torch.compile: the module itself is read and runs eagerly, and its parameters have "
        f"their names without '_orig_mod.'"
    )


def _is_wrapper(module: nn.Module) -> bool:
    """Say whether a module is a wrapper of ``torch.compile``, without importing the compiler for it."""
    kind = getattr(sys.modules.get("torch._dynamo"), "OptimizedModule", None)
    return kind is not None and isinstance(module, kind)


@contextmanager
def _compiled_parts_eager(model: nn.Module) -> Iterator[None]:
    changed: list[tuple[nn.Module, str, Any]] = []
    for part in model.modules():
        if _is_wrapper(part):
            changed.append((part, "forward", vars(part)["forward"]))
            vars(part)["forward"] = vars(part)["_modules"]["_orig_mod"].__call__
        if part._compiled_call_impl is not None and "_compiled_call_impl" in vars(part):
            changed.append((part, "_compiled_call_impl", part._compiled_call_impl))
            vars(part)["_compiled_call_impl"] = None
    try:
        with warnings.catch_warnings():
            if changed:
                warnings.filterwarnings(
                    "ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks"
                )
            yield
    finally:
        for part, attribute, value in reversed(changed):
            vars(part)[attribute] = value


def _unfit_settings(model: nn.Module) -> list[tuple[Any, _Setting]]:
    configs = {id(c): c for c in (getattr(part, "config", None) for part in model.modules())}.values()
    return [(c, s) for s in _SETTINGS for c in configs if getattr(c, s.attribute, None) == s.unfit]


def cache_note(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return the note on the cache that a call would keep; none where it would keep none.

    The call is made on fake tensors, which compute nothing, and ends where a cache of transformers is made.
    """
    if not any(setting.attribute == "use_cache" for _, setting in _unfit_settings(model)):
        return ()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    given, named = pytree.tree_map(
        lambda value: mode.from_tensor(value) if isinstance(value, torch.Tensor) else value, (args, dict(kwargs))
    )
    try:
        with mode, _no_cache_made():
            keeps = any(map(_is_cache, pytree.tree_leaves(model(*given, **named))))
    except Exception:  # noqa: BLE001 - a cache is made, or what the trace will tell better
        keeps = True
    return (_CACHE.format(name),) if keeps else ()


class _CacheMadeError(Exception):
    """Ends a call that is made to see whether it keeps a cache."""


@contextmanager
def _no_cache_made() -> Iterator[None]:
    kind: Any = getattr(sys.modules.get("transformers.cache_utils"), "Cache", None)
    if kind is None:
        yield
        return
    before = kind.__init__

    def stop(*_: Any, **__: Any) -> None:
        raise _CacheMadeError

    try:
        kind.__init__ = stop
        yield
    finally:
        kind.__init__ = before


@contextmanager
def _forward_without_caches(model: nn.Module, notes: list[str], told: str) -> Iterator[None]:
    """Put None in place of the caches in what a module returns."""

    def run(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = forward(*args, **kwargs)
        if not any(map(_is_cache, pytree.tree_leaves(result))):
            return result
        _tell(notes, told)
        return pytree.tree_map(lambda leaf: None if _is_cache(leaf) else leaf, result)

    with forward_run_by(model, run):
        yield


def _is_cache(leaf: Any) -> bool:
    return any(kind.__name__.endswith("Cache") for kind in type(leaf).__mro__)


@contextmanager
def _masks_not_asked() -> Iterator[None]:
    layers: Any = nn.modules.transformer
    before = layers._detect_is_causal_mask
    layers._detect_is_causal_mask = lambda mask, is_causal=None, size=None: is_causal is True
    try:
        yield
    finally:
        layers._detect_is_causal_mask = before
