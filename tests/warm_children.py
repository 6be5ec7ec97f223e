"""Start ``python -m heterps_compile.…`` by forking a process that has its imports done, and no threads that matter.

Ranks are what takes long to start: each imports PyTorch. Where they stand in for a fresh interpreter, they are a child
of the one that starts them, with a process id, a session, pipes, signals and an exit code of their own; what they share
is what was imported. Tests of the start itself use :func:`commands.cold_heterps`.
"""

import atexit
import importlib
import inspect
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from warm import IMPORTED, be_in, open_standard_files

from heterps_compile.__main__ import main

_COMMAND = (
    f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); from warm_children import command; command()"
)
WARM_COMMAND = (sys.executable, "-c", _COMMAND)
"""``heterps-compile`` as a process of its own, which imports once for all of its ranks."""

_OF_RANKS = [name for name in IMPORTED if "jax" not in name and "onnx" not in name]
_OPTIONS = {"-P", "-B"}
_GIVEN = list(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]  # type: ignore[attr-defined]


class WarmPopen(subprocess.Popen):  # type: ignore[type-arg] # text or bytes, as the caller says
    """A process of one of our modules, forked; any other is started as ever."""

    def _execute_child(self, *arguments: Any) -> None:
        parent: Any = super()
        given = dict(zip(_GIVEN, arguments, strict=True))
        words = module_and_words(given["args"])
        if words is None:
            parent._execute_child(*arguments)
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # jax and Python tell of threads; the child uses none of them
            self.pid = os.fork()
        if self.pid == 0:
            _be_module(words, given)
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        parent._close_pipe_fds(*(given[name] for name in pipes))


def command() -> NoReturn:
    """Run ``heterps-compile`` on this process's arguments, its ranks forked."""
    for name in _OF_RANKS:
        importlib.import_module(name)
    sys.argv[0] = "heterps-compile"
    subprocess.Popen = WarmPopen  # type: ignore[misc] # for the ranks that it starts
    main()
    raise AssertionError


def module_and_words(command: Sequence[str]) -> list[str] | None:
    """Return a module of ours and its words where a command runs one; None where it runs something else."""
    if isinstance(command, str) or not command or command[0] != sys.executable:
        return None
    rest = list(command[1:])
    while rest and rest[0] in _OPTIONS:
        rest.pop(0)
    return rest[1:] if rest[:1] == ["-m"] and rest[1].partition(".")[0] == "heterps_compile" else None


def _be_module(words: Sequence[str], given: Mapping[str, Any]) -> NoReturn:
    """Do what the system and the interpreter do around a module; end with its exit code."""
    code = 1
    try:
        if given["start_new_session"]:
            os.setsid()
        _forget_parent(given)
        if given["cwd"] is not None:
            os.chdir(given["cwd"])
        if "-P" in given["args"]:
            sys.path[:] = [path for path in sys.path if path]
        sys.argv = list(words)
        sys.modules.pop(words[0], None)  # it was imported; now it is run
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter prints what nobody caught
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
        os._exit(code)


def _forget_parent(given: Mapping[str, Any]) -> None:
    """Leave behind the parent's files, signals, and what it does when it ends."""
    for number, name in enumerate(("p2cread", "c2pwrite", "errwrite")):
        if given[name] != -1:
            os.dup2(given[name], number)
    kept, nothing = {0, 1, 2, *given["pass_fds"]}, os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in kept:
            os.dup2(nothing, number)  # not closed: what held it here may close that number once more
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    atexit._clear()
    open_standard_files()
    be_in(os.environ.copy() if given["env"] is None else given["env"])
