"""What another user of this machine does: a process that has given its rights away."""

import codecs
import json
import multiprocessing
import os
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

NOBODY = 65534
CAN_BE_ANOTHER = os.getuid() == 0
WHY_NOT = "only root can start a process of another user"


class AnotherUser:
    """A process of another user, which acts once this is made; it is ended at the latest when asked for what it found.

    It is spawned, as forking a process that has threads can end in a deadlock, and is warned of where jax is loaded.
    """

    def __init__(self, act: Callable[[], Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self._reader, writer = context.Pipe(duplex=False)
        self._process = context.Process(target=_act_as_nobody, args=(act, writer))
        self._process.start()
        writer.close()
        assert self._reader.recv() == _READY

    def found(self) -> Any:
        """Wait for what it found."""
        text = self._reader.recv()
        self._process.join()
        return json.loads(text)


_READY = "ready"


def _act_as_nobody(act: Callable[[], Any], writer: Connection) -> None:
    for codec in ("ascii", "utf-8", "idna"):  # what is imported late may lie where others do not read
        codecs.lookup(codec)
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    writer.send(_READY)
    try:
        found = json.dumps(act())
    except BaseException as error:  # noqa: BLE001 - whatever it is, the test shows it
        found = json.dumps(f"{type(error).__name__}: {error}")
    writer.send(found)


def loopback_ports() -> list[int]:
    """Return the ports of loopback on which anybody listens, as every user can read."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]]
    return [int(row[1].partition(":")[2], 16) for row in rows if row[3:4] == ["0A"] and row[1].startswith("0100007F")]


def knock(where: tuple[str, int]) -> str:
    """Connect; give "open", or the name of the error."""
    with socket.socket() as line:
        line.settimeout(0.2)
        try:
            line.connect(where)
        except OSError as error:
            return type(error).__name__
        return "open"


def hammer(for_s: float, *, before: frozenset[int]) -> int:
    """Connect to every port that opens, as fast as can be, and name the numbers that gloo waits for; count lines."""
    lines: list[socket.socket] = []
    count = 0
    until_s = time.monotonic() + for_s
    while time.monotonic() < until_s:
        for port in set(loopback_ports()) - before:
            for number in range(3):
                with suppress(OSError):
                    line = socket.socket()
                    line.settimeout(0.05)
                    lines.append(line)
                    line.connect(("127.0.0.1", port))
                    line.sendall(struct.pack("q", number))
                    count += 1
        for line in lines[:-500]:
            line.close()
        del lines[:-500]
    return count


def look_everywhere(folder: str, pid: int, name: str) -> dict[str, object]:
    """Try to read, write and connect to what a run has; give what could be done, and what everybody can see."""
    done: list[str] = []

    def attempt(what: str, act: Callable[[], object]) -> None:
        with suppress(OSError):
            act()
            done.append(what)

    inside = Path(folder)
    attempt("list the folder", lambda: os.listdir(inside))
    attempt("make a file", (inside / "mine").touch)
    for file in ("secret", "run.json"):
        attempt(f"read {file}", (inside / file).read_bytes)
        attempt(f"replace {file}", lambda file=file: (inside / file).write_bytes(b""))
    attempt("delete the folder", lambda: os.rename(inside, f"{inside}.gone"))
    with socket.socket(socket.AF_UNIX) as line:
        attempt("connect to the store", lambda: line.connect(str(inside / "store")))
    for file in ("environ", "maps", "mem", "fd"):
        path = Path(f"/proc/{pid}/{file}")
        attempt(f"read {file}", lambda path=path: os.listdir(path) if path.name == "fd" else path.open("rb").read(1))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        attempt("knock at a neighbour", lambda: line.connect(f"\0{name}"))
    return {"done": done, "words": Path(f"/proc/{pid}/cmdline").read_text("utf-8")}
