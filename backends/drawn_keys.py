"""Whether stages that need a key to drop at random draw it themselves, from PyTorch's generator, as the module would.

A stage that is called by its user takes the key that it is given, and refuses to drop without one. A compiled model
that runs as the module does has no key to give: who calls ``torch.manual_seed`` repeats its masks.

Left out: drawing one (``jax/stage.py``).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_DRAWN: ContextVar[bool] = ContextVar("_DRAWN", default=False)


@contextmanager
def drawing_keys() -> Iterator[None]:
    """Let stages that are called without a key draw one."""
    before = _DRAWN.set(True)
    try:
        yield
    finally:
        _DRAWN.reset(before)


def are_keys_drawn() -> bool:
    """Say whether stages draw keys now."""
    return _DRAWN.get()
