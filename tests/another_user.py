"""What another user of this machine does: a process forked from this one, without its rights."""

import json
import os
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

NOBODY = 65534
CAN_BE_ANOTHER = os.getuid() == 0
WHY_NOT = "only root can start a process of another user"


class AnotherUser:
    """The forked process; it is ended at the latest when asked for what it found."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._reader, writer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                found = json.dumps(act())
            except BaseException as error:  # noqa: BLE001 - whatever it is, the test shows it
                found = json.dumps(f"{type(error).__name__}: {error}")
            os.write(writer, found.encode())
            os._exit(0)
        os.close(writer)

    def found(self) -> Any:
        """Wait for what it found."""
        with open(self._reader, encoding="utf-8") as file:
            text = file.read()
        os.waitpid(self._pid, 0)
        return json.loads(text)


def loopback_ports() -> list[int]:
    """Give the ports of loopback on which anybody listens, as every user can read."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]]
    return [int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A" and row[1].startswith("0100007F")]


def hammer(until_s: float, *, before: frozenset[int]) -> int:
    """Connect to every port that opens, as fast as can be, and name the numbers that gloo waits for; count lines."""
    lines: list[socket.socket] = []
    count = 0
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
