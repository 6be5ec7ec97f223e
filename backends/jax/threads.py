"""The threads of XLA on a CPU.

It makes them at the first use of jax in a process, as many as there are cores; its own option for their number is an
environment variable. Left out: a process that has used jax already, which keeps what it has.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

_VARIABLE = "PJRT_NPROC"


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Let XLA have so many threads, if jax is first used in here and the user has not said otherwise."""
    is_ours = _VARIABLE not in os.environ
    if is_ours:
        os.environ[_VARIABLE] = str(count)
    try:
        yield
    finally:
        if is_ours:
            del os.environ[_VARIABLE]
