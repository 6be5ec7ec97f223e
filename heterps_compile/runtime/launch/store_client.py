"""A connection to the key-value store through which the processes of a run find each other.

The launcher hosts it, or under torchrun rank 0, for those alone who know the secret of the run. What goes through it is
JSON and small numbers, and everything read from it is checked against a grammar: a number is a number, and a name is
never a path.

Left out: who writes what (``watch.py``, ``preflight.py``, ``checkpoint_collective.py``), the other side
(``store_server.py``), and how a rank finds it (``run_secret.py``, ``env_rank.py``).
"""

import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from torch.distributed import DistNetworkError, DistStoreError

from heterps_compile.errors import RunError
from heterps_compile.runtime.c10d import KeptStore

from .channel import OtherRunError, Sealed, StrangerError, enter, run_mark
from .store_server import (
    FOUND,
    Kind,
    StoreServer,
    listen_on_address,
    listen_on_path,
    pack,
    short_path,
    tell_on_stderr,
    unpack,
)

if TYPE_CHECKING:
    from heterps_compile.runtime.c10d import Store


LOOPBACK = "127.0.0.1"

CONNECT_S = 60
"""How long a process tries to reach the store, where nothing else says."""

SOCKET_NAME = "store"

_PATIENCE = timedelta(days=7)  # waits end by what the watchers find, not by a clock
_GREETING_S = 10.0
_RETRY_S = 0.1
_READ_BYTES = 2**18

_NUMBER = re.compile(r"-?[0-9]{1,18}")
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class StorePlace:
    """Where the store of a run is, and what opens it.

    Attributes:
        secret: Of the run.
        folder: Of the Unix socket, on one machine; None where there are several.
        address: To listen on and to connect to, on several machines.
        port: The same.
        run: Which of the runs with this secret.
        patience_s: How long a process tries to reach it.
    """

    secret: bytes = field(repr=False)
    folder: Path | None = None
    address: str = ""
    port: int = 0
    run: str = ""
    patience_s: float = CONNECT_S

    def __str__(self) -> str:
        return f"{self.address}:{self.port}" if self.folder is None else repr(str(self.folder / SOCKET_NAME))


def host_store(place: StorePlace, tell: Callable[[str], object] = tell_on_stderr) -> StoreServer:
    """Host the store of a run in a thread of this process.

    Args:
        place: Where.
        tell: Takes the one line about strangers that knock.

    Raises:
        RunError: where nothing can listen there.
    """
    if place.folder is not None:
        listener = listen_on_path(place.folder, SOCKET_NAME)
    else:
        listener = listen_on_address(place.address, place.port)
    return StoreServer(listener, place.secret, place.run, tell)


def connect_store(place: StorePlace, who: str) -> "RunStore":
    """Connect to the store of a run, once for every thread that waits in it.

    Args:
        place: Where it is.
        who: This process, for messages.

    Raises:
        RunError: where it cannot be reached, or what listens there does not know the secret.
    """
    deadline_s = time.monotonic() + place.patience_s
    while True:
        line: socket.socket | None = None
        try:
            line = _new_line(place)
            sealed = enter(line, place.secret, run_mark(place.run))
            line.settimeout(None)
            return RunStore(line, sealed, place)
        except (OSError, StrangerError, OtherRunError) as error:
            if line is not None:
                line.close()
            if time.monotonic() > deadline_s:
                reason = getattr(error, "strerror", None) or str(error) or "it is of another run"
                raise RunError(
                    f"{who} cannot reach the store of the run at {place} within {place.patience_s:g} s: {reason}; "
                    f"is the first host up, and its port open?"
                ) from error
            time.sleep(_RETRY_S)


def _new_line(place: StorePlace) -> socket.socket:
    if place.folder is None:
        line = socket.create_connection((place.address, place.port), timeout=_GREETING_S)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return line
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.settimeout(_GREETING_S)
        with short_path(place.folder, SOCKET_NAME) as path:
            line.connect(path)
    except BaseException:
        line.close()
        raise
    return line


class RunStore(KeptStore):
    """One connection to the store of a run, as ``torch.distributed`` takes stores; it is for one thread at a time."""

    def __init__(self, line: socket.socket, sealed: Sealed, place: StorePlace) -> None:
        super().__init__()
        self._patience = _PATIENCE
        self._line, self._sealed, self._place = line, sealed, place
        self._one_at_a_time = threading.Lock()

    @property
    def timeout(self) -> timedelta:
        """Return how long is waited for values."""
        return self._patience

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long is waited for values."""
        self._patience = timeout

    def clone(self) -> "RunStore":
        """Return another connection."""
        return connect_store(self._place, "a process of the run")

    def close(self) -> None:
        """Leave; so does a connection that nobody holds any more."""
        self._line.close()

    def __del__(self) -> None:
        self._line.close()

    def set(self, key: str, value: str | bytes) -> None:
        """Set a value."""
        self._ask(Kind.SET, key.encode(), _bytes(value))

    def get(self, key: str) -> bytes:
        """Wait for a value."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Wait for several values."""
        return self._wait(keys, self._patience)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until keys are there.

        Raises:
            DistStoreError: where they are not in time.
        """
        self._wait(keys, self._patience if timeout is None else timeout)

    def check(self, keys: Sequence[str]) -> bool:
        """Tell whether all of some keys are there."""
        return self._ask(Kind.CHECK, *(key.encode() for key in keys)) == [b"1"]

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        """Set a value where it is what is expected, "" for none; give the one that stands there then."""
        return self._ask(Kind.COMPARE_SET, key.encode(), _bytes(expected_value), _bytes(desired_value))[0]

    def add(self, key: str, value: int) -> int:
        """Add to a number and give it."""
        return int(self._ask(Kind.ADD, key.encode(), str(value).encode())[0])

    def append(self, key: str, value: str | bytes) -> None:
        """Add to the end of a value."""
        self._ask(Kind.APPEND, key.encode(), _bytes(value))

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Set several values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def delete_key(self, key: str) -> bool:
        """Take a value away; tell whether there was one."""
        return self._ask(Kind.DELETE, key.encode()) == [b"1"]

    def num_keys(self) -> int:
        """Return how many keys there are."""
        return int(self._ask(Kind.COUNT)[0])

    def has_extended_api(self) -> bool:
        """Say that several values can be asked for at once."""
        return True

    def _wait(self, keys: Sequence[str], timeout: timedelta) -> list[bytes]:
        return self._ask(Kind.GET, str(timeout.total_seconds()).encode(), *(key.encode() for key in keys))

    def _ask(self, kind: Kind, *parts: bytes) -> list[bytes]:
        """Ask and wait for the answer.

        Raises:
            DistNetworkError: where the store is gone.
            DistStoreError: where what is waited for does not come in time.
        """
        with self._one_at_a_time:
            try:
                self._line.sendall(self._sealed.seal(pack(kind, parts)))
                while (content := self._sealed.next_message()) is None:
                    came = self._line.recv(_READ_BYTES)
                    if not came:
                        raise ConnectionResetError("connection closed by peer")
                    self._sealed.feed(came)
                found, values = unpack(content)
            except (OSError, ValueError, StrangerError) as error:
                raise DistNetworkError(f"the store of the run is lost: {error}") from error
        if found != FOUND:
            raise DistStoreError("wait timeout: not all keys came in time")
        return values


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def read_word(store: "Store", key: str, pattern: re.Pattern[str], what: str) -> str:
    """Wait for a value and give it.

    Args:
        store: Of the run.
        key: Of the value.
        pattern: That all of it must match.
        what: A word for it.

    Raises:
        RunError: where it does not match.
    """
    content = bytes(store.get(key))
    text = content.decode("utf-8", "replace")
    if not pattern.fullmatch(text):
        raise RunError(
            f"the store of the run has {content[:_SHOWN]!r} where {what} is due; do all ranks run the same version?"
        )
    return text


def read_number(store: "Store", key: str, what: str, *, least: int = 0) -> int:
    """Wait for a number and give it.

    Raises:
        RunError: where it is none, or too small.
    """
    number = int(read_word(store, key, _NUMBER, what))
    if number < least:
        raise RunError(
            f"the store of the run has {number} where {what} is due, which is {least} or more; do all ranks run the "
            f"same version?"
        )
    return number
