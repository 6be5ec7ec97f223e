"""The key-value store of a run: a thread that answers the processes that know the run's secret, and nobody else.

On one machine it listens on a Unix socket in a folder that is this user's alone; on several, on one address of its
host. Strangers can do no more than knock: of those who have not shown that they know the secret there are never more
than a few, each has a few seconds, and 48 bytes of it are read.

Left out: the other side (``store_client.py``), how messages are guarded (``channel.py``).
"""

import math
import os
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from heterps_compile.errors import RunError

from .channel import Door, Sealed, StrangerError, run_mark

_BACKLOG = 1024
_ACCEPTED_AT_ONCE = 32
_MOST_STRANGERS = 256
_STRANGERS_S = 5.0
_READ_BYTES = 2**18
_REST_S = 0.05  # where no descriptor is left to accept with
_COUNT = struct.Struct(">H")
_SIZE = struct.Struct(">I")
_LONGEST_SOCKET_PATH = 100  # sun_path has 104 bytes on macOS and 108 on Linux


class Kind(IntEnum):
    """What is asked of the store."""

    SET = 1
    GET = 2
    CHECK = 3
    COMPARE_SET = 4
    ADD = 5
    APPEND = 6
    DELETE = 7
    COUNT = 8


def pack(kind: int, parts: Sequence[bytes]) -> bytes:
    """Return a request or an answer as bytes: its kind, how many parts, and each with its length."""
    return b"".join((bytes((kind,)), _COUNT.pack(len(parts)), *(_SIZE.pack(len(part)) + part for part in parts)))


def unpack(content: bytes) -> tuple[int, list[bytes]]:
    """Read what :func:`pack` gave.

    Raises:
        ValueError: where it is something else.
    """
    if len(content) < 1 + _COUNT.size:
        raise ValueError("too short")
    (count,) = _COUNT.unpack_from(content, 1)
    at, parts = 1 + _COUNT.size, []
    for _ in range(count):
        if len(content) < at + _SIZE.size:
            raise ValueError("too short")
        (size,) = _SIZE.unpack_from(content, at)
        at += _SIZE.size
        parts.append(content[at : at + size])
        at += size
    if at != len(content):
        raise ValueError("its lengths do not add up")
    return content[0], parts


FOUND, LATE = 1, 2
"""Kinds of answers: what was asked for, or that it did not come in time."""


@dataclass
class _Peer:
    """One connection; ``door`` until the other side has shown that it knows the secret, ``sealed`` afterwards."""

    line: socket.socket
    door: Door | None
    shown: str
    since_s: float
    sealed: Sealed | None = None
    unsent: bytearray = field(default_factory=bytearray)
    awaited: tuple[list[str], float] | None = None


class StoreServer:
    """The store of a run, served by a thread of its own from when it is made until :meth:`close`."""

    def __init__(self, listener: socket.socket, secret: bytes, run: str, tell: Callable[[str], object]) -> None:
        """Begin to serve.

        Args:
            listener: Bound and listening; closed in the end.
            secret: Of the run.
            run: Which of the runs that have this secret.
            tell: Takes the one line about strangers.
        """
        self._listener, self._secret, self._run, self._tell = listener, secret, run_mark(run), tell
        listener.setblocking(False)
        self._values: dict[str, bytes] = {}
        self._peers: dict[int, _Peer] = {}
        self._has_told = self._is_over = False
        self._selector = selectors.DefaultSelector()
        self._rests_until_s = 0.0
        self._waker, self._wakened = socket.socketpair()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._wakened, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="store", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Return the port it listens on; 0 for a Unix socket."""
        return 0 if self._listener.family == socket.AF_UNIX else int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Answer no longer."""
        if not self._is_over:
            self._is_over = True
            self._waker.send(b"\0")  # the thread may have seen the end already, so it does not close this
            self._thread.join()
            for made in (self._waker, self._wakened):
                made.close()

    def _serve(self) -> None:
        while not self._is_over:
            for key, events in self._selector.select(self._nap_s()):
                if key.fileobj is self._listener:
                    self._accept()
                elif (peer := self._peers.get(key.fd)) is not None:
                    self._attend(peer, events)
            self._look_at_the_clock()
        for peer in list(self._peers.values()):
            self._drop(peer)
        self._selector.close()
        self._listener.close()

    def _nap_s(self) -> float | None:
        """Return how long nothing need be done."""
        due = [peer.since_s + _STRANGERS_S for peer in self._peers.values() if peer.door is not None]
        due += [peer.awaited[1] for peer in self._peers.values() if peer.awaited is not None]
        due += [self._rests_until_s] if self._rests_until_s else []
        soonest_s = min(due, default=math.inf)
        return None if math.isinf(soonest_s) else max(0.0, soonest_s - time.monotonic())

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        for peer in list(self._peers.values()):
            if peer.door is not None and now - peer.since_s > _STRANGERS_S:
                self._turn_away(peer, "it said nothing, or not enough, for 5 s")
            elif peer.awaited is not None and now >= peer.awaited[1]:
                peer.awaited = None
                self._send(peer, pack(LATE, ()))
        if self._rests_until_s and now >= self._rests_until_s:
            self._rests_until_s = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                line, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # no descriptor is left
                strangers = self._strangers()
                if strangers:
                    self._turn_away(strangers[0], "there were too many")
                else:
                    self._selector.unregister(self._listener)
                    self._rests_until_s = time.monotonic() + _REST_S
                return
            line.setblocking(False)
            if line.family != socket.AF_UNIX:
                line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            shown = str(address[0]) if isinstance(address, tuple) else "this machine"
            peer = _Peer(line, Door(self._secret, self._run), shown, time.monotonic())
            self._peers[line.fileno()] = peer
            self._selector.register(line, selectors.EVENT_READ)
            assert peer.door is not None  # noqa: S101 - just made
            self._send_bytes(peer, peer.door.hello)
        strangers = self._strangers()
        for peer in strangers[: max(0, len(strangers) - _MOST_STRANGERS)]:
            self._turn_away(peer, "there were too many")

    def _strangers(self) -> list[_Peer]:
        """Return those who have not shown that they know the secret, the oldest first."""
        return [peer for peer in self._peers.values() if peer.door is not None]

    def _attend(self, peer: _Peer, events: int) -> None:
        """Read and write what a connection has and takes."""
        try:
            if events & selectors.EVENT_WRITE:
                self._send_bytes(peer, b"")
            if not events & selectors.EVENT_READ:
                return
            came = peer.line.recv(_READ_BYTES if peer.door is None else peer.door.missing_bytes)
            if not came:
                raise ConnectionResetError
            if peer.door is not None:
                opened = peer.door.feed(came)
                if opened is None:
                    return
                answer, peer.sealed = opened
                peer.door = None
                self._send_bytes(peer, answer)
                return
            assert peer.sealed is not None  # noqa: S101 - it is where there is no door
            peer.sealed.feed(came)
            while (content := peer.sealed.next_message()) is not None:
                self._handle(peer, content)
        except BlockingIOError:
            return
        except StrangerError as error:
            self._turn_away(peer, str(error))
        except (OSError, ValueError, IndexError):
            if peer.door is not None and peer.door.has_heard:
                self._turn_away(peer, "it left in the middle of a greeting")
            else:
                self._drop(peer)

    def _turn_away(self, peer: _Peer, why: str) -> None:
        """Drop a stranger; the first one is told."""
        self._drop(peer)
        if not self._has_told:
            self._has_told = True
            self._tell(
                f"a stranger at {peer.shown} was turned away from the store of the run: {why}; the run goes on, and of "
                f"others nothing is said"
            )

    def _drop(self, peer: _Peer) -> None:
        if self._peers.pop(peer.line.fileno(), None) is not None:
            self._selector.unregister(peer.line)
            peer.line.close()

    def _send(self, peer: _Peer, content: bytes) -> None:
        assert peer.sealed is not None  # noqa: S101 - only those who know the secret are answered
        self._send_bytes(peer, peer.sealed.seal(content))

    def _send_bytes(self, peer: _Peer, content: bytes) -> None:
        if peer.line.fileno() not in self._peers:
            return  # it has left meanwhile
        peer.unsent += content
        try:
            while peer.unsent:
                del peer.unsent[: peer.line.send(peer.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(peer)
            return
        writes = selectors.EVENT_WRITE if peer.unsent else 0
        self._selector.modify(peer.line, selectors.EVENT_READ | writes)

    def _handle(self, peer: _Peer, content: bytes) -> None:
        """Do what a request asks, and answer it at once or when its keys are there.

        Raises:
            ValueError: where it is none; the connection is closed then.
        """
        kind, parts = unpack(content)
        if kind == Kind.GET:
            wait_s, *keys = parts
            peer.awaited = [key.decode() for key in keys], time.monotonic() + float(wait_s)
            self._answer_waiting(peer)
            return
        changes = kind in (Kind.SET, Kind.COMPARE_SET, Kind.ADD, Kind.APPEND)
        self._send(peer, pack(FOUND, self._do(kind, parts)))
        for other in list(self._peers.values()) if changes else ():
            if other.awaited is not None:
                self._answer_waiting(other)

    def _answer_waiting(self, peer: _Peer) -> None:
        assert peer.awaited is not None  # noqa: S101 - asked of those who wait
        keys, _ = peer.awaited
        if all(key in self._values for key in keys):
            peer.awaited = None
            self._send(peer, pack(FOUND, [self._values[key] for key in keys]))

    def _do(self, kind: int, parts: Sequence[bytes]) -> list[bytes]:
        values = self._values
        if kind == Kind.CHECK:
            return [b"1" if all(key.decode() in values for key in parts) else b""]
        if kind == Kind.COUNT:
            return [str(len(values)).encode()]
        key, rest = parts[0].decode(), parts[1:]
        if kind == Kind.SET:
            (values[key],) = rest
            return []
        if kind == Kind.DELETE:
            return [b"" if values.pop(key, None) is None else b"1"]
        if kind == Kind.APPEND:
            values[key] = values.get(key, b"") + rest[0]
            return []
        if kind == Kind.ADD:
            values[key] = str(int(values.get(key, b"0")) + int(rest[0])).encode()
            return [values[key]]
        if kind == Kind.COMPARE_SET:
            expected, desired = rest
            if values.get(key, b"") == expected:
                values[key] = desired
            return [values.get(key, expected)]
        raise ValueError(f"unknown kind {kind}")


def listen_on_path(folder: Path, name: str) -> socket.socket:
    """Listen on a Unix socket in a folder that is this user's alone.

    Raises:
        RunError: where that cannot be.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_path(folder, name) as path:
            listener.bind(path)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise RunError(
            f"the run cannot listen on a socket in {str(folder)!r}: {error.strerror or error}; set TMPDIR to a folder "
            f"on a disk of this machine, with a short name"
        ) from error
    return listener


class short_path:  # noqa: N801 - used as a function
    """The path of a socket, made short where the system takes no longer ones."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._descriptor: int | None = None

    def __enter__(self) -> str:
        path = str(self._folder / self._name)
        if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH or sys.platform != "linux":
            return path
        self._descriptor = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._descriptor}/{self._name}"

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


def listen_on_address(address: str, port: int) -> socket.socket:
    """Listen on one address of this machine.

    Args:
        address: A name or number; only its interface is listened on.
        port: 0 lets the system choose.

    Raises:
        RunError: where the port is in use, or the address is not of this machine.
    """
    listener: socket.socket | None = None
    try:
        family, kind, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        if port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(_BACKLOG)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise RunError(
            f"the run cannot listen on {address}:{port}: {error.strerror or error}; choose another port, or end what "
            f"holds it"
        ) from error
    return listener


def tell_on_stderr(line: str) -> None:
    """Say a line about strangers where errors go."""
    with suppress(OSError, ValueError):
        print(f"note: {line}", file=sys.stderr, flush=True)
