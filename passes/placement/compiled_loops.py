"""Loops that numba compiles to machine code, which is kept on disk: only their first start on a machine compiles.

Functions that a loop calls are compiled into it, and make no arrays: the law of a stage has one source for loops and
arrays (``cost/stage_law.py``). The code is kept by the time of a loop's file and by a hash of these functions and of
all constants: a change of one, in any file, compiles the loop again. It lies beside the bytecode; where that folder is
read-only, in the user's cache (``~/.cache/numba``); or where ``NUMBA_CACHE_DIR`` says. Where none of them can be
written, every process compiles again, and a warning of the logger says so.

Compiling takes some seconds, so a loop that is wanted later is compiled by a process of its own meanwhile::

    this process  |== proof ==|== proof ==|== the loop ==|
    another           |= compiles, keeps =|

Left out: code for another processor or numba, which is compiled where it is called, as the first time.
"""

import atexit
import hashlib
import inspect
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

from heterps_compile.escape import printable
from heterps_compile.logger import LOG

NOT_COMPILED = (
    "plans were not annealed, since the loop of it was being compiled for the first time on this machine, which goes on"
)

_UNCOUNTED: dict[str, Any] = {"_nrt": False}
"""Else numba counts references to every array that is passed on, which takes most of a loop's time."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return the machine code of a function; it is compiled, or read from disk, when it is called."""
    return cast("Callable[_P, _R]", _dispatcher(function))


@cache
def _dispatcher(function: Callable[..., object]) -> Callable[..., object]:
    import numba  # noqa: PLC0415  # takes a third of a second

    keyed = _keyed(function)
    try:
        made = numba.njit(nogil=True, error_model="numpy", cache=True)(keyed)
    except RuntimeError:  # no folder to keep it in
        LOG.warning(
            "the compiled search loop %r cannot be kept: neither %s nor the user's cache can be written; every process "
            "compiles it again, which takes seconds; NUMBA_CACHE_DIR names another folder",
            function.__name__,
            printable(str(Path(inspect.getfile(function)).parent)),
        )
        made = numba.njit(nogil=True, error_model="numpy")(keyed)
    return cast("Callable[..., object]", made)


def _keyed(function: Callable[..., object]) -> FunctionType:
    """Copy a function under a name with a hash of what it uses, which numba has in the names of what it keeps.

    The copy calls the machine code of the functions that it names, and a branch in place of numpy's ``where``.
    """
    import numba  # noqa: PLC0415  # as above

    original = cast("FunctionType", function)
    scope, used = dict(original.__globals__), list[tuple[str, object]]()
    for name in sorted(set(original.__code__.co_names) & set(scope)):
        value = scope[name]
        if value is np.where:
            value = _choose
        if isinstance(value, FunctionType):
            called = _keyed(value)
            scope[name] = numba.njit(error_model="numpy", forceinline=True, **_UNCOUNTED)(called)
            used.append((called.__qualname__, inspect.getsource(value)))
        elif isinstance(value, int | float | str):
            used.append((name, value))
    key = hashlib.sha256(repr(used).encode()).hexdigest()[:12]
    copy = FunctionType(original.__code__, scope, original.__name__, original.__defaults__, original.__closure__)
    copy.__qualname__ = f"{original.__qualname__}-{key}"
    return copy


def _choose(condition: bool, one: float, other: float) -> float:
    return one if condition else other


def is_kept(function: Callable[..., object]) -> bool:
    """Return whether code of a function was kept since its source was written, with what it uses today."""
    folder, source = _folder(function), Path(inspect.getfile(function))
    kept = () if folder is None else folder.glob(f"{source.stem}.{_keyed(function).__qualname__}-*.nbi")
    return any(index.stat().st_mtime >= source.stat().st_mtime for index in kept)


def _folder(function: Callable[..., object]) -> Path | None:
    """Return where code of a function is kept; None where it cannot be."""
    path = cast("Any", _dispatcher(function)).stats.cache_path
    return None if path is None else Path(path)


class CompiledBeside:
    """Loops that another process compiles, unless they are kept already or have to be compiled in every process.

    Where that process fails, the loops count as ready and are compiled where they are called. Where this process ends
    first, the other goes on, so that the next start finds the code.
    """

    def __init__(self, functions: Sequence[Callable[..., object]], module: str, call: str) -> None:
        """Begin.

        Args:
            functions: The loops.
            module: In which ``call`` is.
            call: A function without parameters that calls the loops as they will be called here.
        """
        self._process: subprocess.Popen[bytes] | None = None
        if all(is_kept(function) or _folder(function) is None for function in functions):
            return
        try:
            self._process = subprocess.Popen(  # noqa: S603 -- names of this package alone
                [sys.executable, "-P", "-c", f"from {module} import {call}; {call}()"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as fault:
            LOG.debug("no process could be started to compile the search loop: %s", printable(str(fault)))
        else:
            atexit.register(self._leave)

    def is_ready(self, wait_s: float = 0.0) -> bool:
        """Return whether the loops can be called without compiling them here; wait so long at most."""
        if self._process is None:
            return True
        try:
            status = self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return False
        LOG.debug("another process compiled the search loop: status %d", status)
        self._process = None
        atexit.unregister(self._leave)
        return True

    def _leave(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.returncode = 0  # else Popen warns of a process that still runs
