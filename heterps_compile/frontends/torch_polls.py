"""Ask, while torch traces or exports, whether the caller still wants it.

A trace is one call of torch that may take minutes. Every op of it goes through ``FakeTensorMode``, which is made to ask
before those that make tensors. It does not ask before those that read a property such as the device: torch's C++ calls
some of them where an exception would end the process. The caller's function runs outside the trace, so that tensors it
may compute are none of the model's.

Left out: who is asked (``progress.py``).
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from heterps_compile.progress import check, is_due, is_watched

_METHOD = "__torch_dispatch__"
_FIRST = (
    "sympy",
    "torch.distributed.tensor",
    "torch.fx.experimental.symbolic_shapes",
    "torch._functorch.partitioners",
    "torch._dynamo",
    "torch.export._trace",
)
"""What the first trace of a process imports, in whole parts: seconds."""


@contextmanager
def asking_between_ops() -> Iterator[None]:
    """Ask between the ops of every trace in the block, which works on the state of the process (``process_state.py``).

    Raises:
        CancelledError: where the caller cancelled the work.
    """
    original = FakeTensorMode.__torch_dispatch__
    if not is_watched() or getattr(original, "asks", False):
        yield
        return

    for name in _FIRST:
        check()
        with suppress(ImportError):  # another version of torch imports what it needs
            import_module(name)

    def asks_first(mode: FakeTensorMode, func: Any, *args: Any, **kwargs: Any) -> Any:
        if is_due() and _makes_tensors(func):
            with _disable_current_modes():
                check()
        return original(mode, func, *args, **kwargs)

    asks_first.asks = True  # type: ignore[attr-defined]  # pyright: ignore[reportFunctionMemberAccess]
    setattr(FakeTensorMode, _METHOD, asks_first)
    try:
        yield
    finally:
        setattr(FakeTensorMode, _METHOD, original)


@cache
def _makes_tensors(func: Any) -> bool:
    return isinstance(func, torch._ops.OpOverload) and any("Tensor" in str(one.type) for one in func._schema.returns)
