"""Processes of one machine, forked from one that has imported PyTorch already.

::

    launcher                     fork server, one thread      rank
    module, words, pipes  --->   fork                  --->   session and output of its own, then main()
    its process id        <---
    its exit code         <---   waits for it          <---   leaves

Most of what a rank takes to start are imports: PyTorch with ``torch._dynamo``, which every optimiser loads, takes about
three seconds of a core. So they are made once a machine. The command imports for itself and for its ranks, and forks
the server while it still has one thread; ``run()`` in somebody's script, which may have threads by then, starts a new
interpreter, which imports while the launcher reads and checks the run. Forking is safe because nobody has computed
anything yet: the threads of OpenMP and gloo, and CUDA, begin in the ranks. ``multiprocessing`` would run the caller's
script again. A process that is done leaves by ``os._exit``, since Python's own end would touch, and so copy, every page
that processes share.

The server leaves when its launcher does, since their socket closes. A rank notices that it has another parent then, and
one that only this machine's launcher watches over has the system kill it (:func:`end_with_parent`).

Left out: what ranks do (``worker.py``), what is made of their end (``local_machine.py``). NumPy's own
matrix products keep to one thread in a rank, since NumPy counts its threads when it is imported.
"""

import atexit
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn, Protocol, Self

from heterps_compile.errors import RunError

from .faults import exit_cause

PRELOADED = ("numpy", "torch.nn", "safetensors.torch", "heterps_compile.runtime.launch.worker")
"""What every rank imports."""

PRELOADED_TO_TRAIN = ("torch._dynamo",)

_LENGTH = struct.Struct(">I")
_REPLY = struct.Struct(">qi?")  # process id, exit code, whether it has left
_REAP_S = 0.05
_MOST_PIPES = 2
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_THREADS = Path("/proc/self/task")


@dataclass(frozen=True, eq=False)
class ForkedProcess:
    """A process that a :class:`ForkServer` has started.

    Attributes:
        pid: Its number, and that of its process group.
        stdout: What it prints; its errors too, where they are merged.
        stderr: Its errors; the same where they are merged.
        server: That started it.
    """

    pid: int
    stdout: IO[str]
    stderr: IO[str]
    server: "ForkServer"

    def poll(self) -> int | None:
        """Return its exit code, minus the number of the signal that killed it; None while it runs.

        Raises:
            RunError: where the server was killed or stopped, so that nobody knows.
        """
        return self.server.exit_code(self.pid)

    def wait(self) -> None:
        """Wait until it has left."""
        self.server.wait(self.pid)

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, if it still runs."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill_group(self) -> None:
        """Kill the process with all it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


class ForkServer:
    """Starts processes quickly; as a context, ends its server with the block."""

    def __init__(self, preloaded: Sequence[str] = PRELOADED, *, forks_this_process: bool = False) -> None:
        """Import, or begin to.

        Args:
            preloaded: Modules; one that cannot be imported is left to the processes that need it.
            forks_this_process: Whether to import here and fork, where that is safe: on Linux, with one thread. For a
                process that is all ours, with no file open that ranks should not have.
        """
        self._codes: dict[int, int] = {}
        self._line, theirs = socket.socketpair()
        with theirs:
            forked = _fork_server(preloaded, self._line, theirs) if forks_this_process else None
            self._server: _Child = _spawn_server(preloaded, theirs) if forked is None else forked

    @property
    def pid(self) -> int:
        """Return the number of the server, which is the parent of all that it starts."""
        return self._server.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.kill()
        self._server.wait()
        self._line.close()

    def start(
        self, module: str, words: Sequence[str], environment: Mapping[str, str], *, merges_output: bool
    ) -> ForkedProcess:
        """Run ``main()`` of a module in a process with a session of its own.

        Args:
            module: Its name.
            words: What stands in ``sys.argv`` after the name of the program.
            environment: The process's.
            merges_output: Whether what it prints and its errors come through one pipe.

        Raises:
            RunError: where the server was killed or stopped.
        """
        pipes = [os.pipe() for _ in range(1 if merges_output else _MOST_PIPES)]
        request = json.dumps({"module": module, "words": list(words), "environment": dict(environment)}).encode()
        try:
            socket.send_fds(self._line, [_LENGTH.pack(len(request))], [writer for _, writer in pipes])
            self._line.sendall(request)
        except OSError:
            pass  # it is gone, which the next line tells
        finally:
            for _, writer in pipes:
                os.close(writer)
        while (pid := self._take()) is None:
            pass
        streams = [os.fdopen(reader, encoding="utf-8", errors="replace") for reader, _ in pipes]
        return ForkedProcess(pid, streams[0], streams[-1], self)

    def exit_code(self, pid: int) -> int | None:
        """Return the exit code of a process; None while it runs.

        Raises:
            RunError: where the server was killed or stopped, so that nobody knows.
        """
        while pid not in self._codes and self._has_reply(within_s=0):
            self._take()
        return self._codes.get(pid)

    def wait(self, pid: int) -> None:
        """Wait until a process has left; not where the server was killed or stopped, so that nobody hears of it."""
        with suppress(RunError):
            while pid not in self._codes:
                self._take()

    def _take(self) -> int | None:
        """Take one reply in; return the process that was started, None where one has left.

        Raises:
            RunError: where the server was killed or stopped.
        """
        while not self._has_reply(within_s=_REAP_S):
            pass
        reply = _read_exactly(self._line, _REPLY.size)
        if reply is None:
            cause = exit_cause(self._server.wait())
            raise RunError(f"the process that the ranks are forked from {cause}; start the run again")
        pid, code, has_left = _REPLY.unpack(reply)
        if not has_left:
            return int(pid)
        self._codes[pid] = code
        return None

    def _has_reply(self, within_s: float) -> bool:
        """Return whether a reply, or the server's end, can be read; wait for it so long.

        Raises:
            RunError: where there is none and the server was stopped, so that there will be none.
        """
        if select.select([self._line], [], [], within_s)[0]:
            return True
        if self._server.poll() is None and hasattr(os, "waitid"):  # which Python 3.11 has not on macOS
            stopped = os.waitid(os.P_PID, self._server.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
            if stopped is not None:
                name = signal.Signals(stopped.si_status).name
                raise RunError(f"the process that the ranks are forked from was stopped ({name}); start the run again")
        return False


class _Child(Protocol):
    """The server's process, as ``subprocess.Popen`` has it."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


class _ForkedServer:
    """A fork of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        return self._reap(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        assert timeout is None  # noqa: S101 - nobody waits for a while
        while (code := self._reap(0)) is None:
            pass
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _reap(self, how: int) -> int | None:
        if self._code is None:
            found, status = os.waitpid(self.pid, how)
            self._code = os.waitstatus_to_exitcode(status) if found else None
        return self._code


def _spawn_server(preloaded: Sequence[str], line: socket.socket) -> "subprocess.Popen[bytes]":
    """Start the server as a new interpreter."""
    # -P keeps the current folder off the path: a file of the user's named torch.py must not be taken for torch.
    return subprocess.Popen(  # noqa: S603 - our own interpreter, module and names
        [sys.executable, "-P", "-m", __name__, str(line.fileno()), *preloaded],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **_environment_of_imports()},
        pass_fds=[line.fileno()],
        start_new_session=True,  # Ctrl-C reaches the launcher alone
    )


def _fork_server(preloaded: Sequence[str], launchers: socket.socket, line: socket.socket) -> _ForkedServer | None:
    """Import here and fork the server; return None where a fork would not be safe."""
    os.environ.update(_environment_of_imports())
    _import(preloaded)
    try:
        threads = len(list(_THREADS.iterdir()))
    except OSError:  # not Linux
        return None
    if threads != 1:
        return None
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    pid = os.fork()
    if pid:
        return _ForkedServer(pid)
    try:
        atexit._clear()  # what the launcher registered is the launcher's
        launchers.close()
        _forget_terminal()
        _serve_or_be_rank(line)
    finally:
        os._exit(1)


def _forget_terminal() -> None:
    """Make a fork of the command what a new interpreter of our own would be: its session, files and signals."""
    os.setsid()  # Ctrl-C reaches the launcher alone
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    os.close(nowhere)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the process
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = open(number, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115 - as above
        stream.reconfigure(write_through=True)
        setattr(sys, name, stream)
    sys.unraisablehook = sys.__unraisablehook__
    if not sys.flags.safe_path:
        del sys.path[:1]
    for known in signal.valid_signals():
        if callable(signal.getsignal(known)):
            signal.signal(known, signal.default_int_handler if known == signal.SIGINT else signal.SIG_DFL)


def _environment_of_imports() -> dict[str, str]:
    """Return what must stand in the environment where ranks' packages are imported."""
    errors_are_told = os.environ.get("TORCH_CPP_LOG_LEVEL", "FATAL")  # they are raised too, and told in one line
    return {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "TORCH_CPP_LOG_LEVEL": errors_are_told}


def _import(names: Sequence[str]) -> None:
    for name in names:
        with suppress(ImportError):  # the process that needs it says what is missing
            import_module(name)


def main() -> NoReturn:
    """Be the server, in an interpreter of its own."""
    line = socket.socket(fileno=int(sys.argv[1]))
    _import(sys.argv[2:])
    _serve_or_be_rank(line)


def _serve_or_be_rank(line: socket.socket) -> NoReturn:
    """Be the server until its launcher is gone, and in every process that it forks what was asked for; then leave."""
    gc.freeze()  # else the collector would touch, and so copy, every page that processes share
    request = _serve(line)
    code: object = 0
    try:
        if request is not None:
            code = import_module(request["module"]).main() or 0
        threading._shutdown()  # type: ignore[attr-defined]  # as Python's own end: threads that are no daemons
    except SystemExit as left:
        code = left.code or 0
    except BaseException:  # noqa: BLE001 - the outermost frame of a process
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # nobody reads it any more
            stream.flush()
    os._exit(code if isinstance(code, int) else 1)


def _serve(line: socket.socket) -> dict[str, Any] | None:
    """Fork what is asked for; return the request in the new process, None in the server once its launcher is gone."""
    running: set[int] = set()
    while True:
        is_asked = bool(select.select([line], [], [], _REAP_S if running else None)[0])
        try:
            for pid in [one for one in running if _reap(line, one)]:
                running.remove(pid)
            if not is_asked:
                continue
            received = _receive(line)
        except OSError:
            return None
        if received is None:
            return None
        request, pipes = received
        pid = os.fork()
        if not pid:
            line.close()
            _take_place(request, pipes)
            return request
        running.add(pid)
        for pipe in pipes:
            os.close(pipe)
        with suppress(OSError):
            line.sendall(_REPLY.pack(pid, 0, False))


def _reap(line: socket.socket, pid: int) -> bool:
    """Tell the launcher of a process that has left; return whether it has."""
    found, status = os.waitpid(pid, os.WNOHANG)
    if not found:
        return False
    line.sendall(_REPLY.pack(pid, os.waitstatus_to_exitcode(status), True))
    return True


def _receive(line: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Receive a request and the pipes to print to; None where the launcher is gone."""
    head, pipes, _, _ = socket.recv_fds(line, _LENGTH.size, _MOST_PIPES)
    rest = _read_exactly(line, _LENGTH.size - len(head)) if head else None
    content = None if rest is None else _read_exactly(line, _LENGTH.unpack(head + rest)[0])
    return None if content is None else (json.loads(content), pipes)


def _read_exactly(line: socket.socket, size: int) -> bytes | None:
    """Read so many bytes; None where the other side is gone."""
    content = b""
    while len(content) < size:
        try:
            part = line.recv(size - len(content))
        except ConnectionError:
            return None
        if not part:
            return None
        content += part
    return content


def _take_place(request: Mapping[str, Any], pipes: Sequence[int]) -> None:
    """Make a forked process what a new one would be: its session, output, environment, words and random numbers."""
    os.setsid()
    os.dup2(pipes[0], sys.stdout.fileno())
    os.dup2(pipes[-1], sys.stderr.fileno())
    for pipe in pipes:
        os.close(pipe)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [request["module"], *request["words"]]
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # Python's own are seeded anew by Python


def end_with_parent(parent: int) -> None:
    """Have the system kill this process when its parent dies, where the system can; the watcher of a rank looks too."""
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - Linux alone

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the system was asked
        os._exit(1)


if __name__ == "__main__":
    main()
