"""What another user of this machine does: a process that has given its rights away."""

import codecs
import json
import multiprocessing
import os
from collections.abc import Callable, Sequence
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


def look_everywhere(folder: str, pid: int, names: Sequence[str]) -> dict[str, object]:
    """Try to read and write what a run has; return what could be done, and what everybody can see."""
    done: list[str] = []

    def attempt(what: str, act: Callable[[], object]) -> None:
        with suppress(OSError):
            act()
            done.append(what)

    inside = Path(folder)
    attempt("list the folder", lambda: os.listdir(inside))
    attempt("make a file", (inside / "mine").touch)
    for name in names:
        attempt(f"read {name}", (inside / name).read_bytes)
        attempt(f"replace {name}", lambda name=name: (inside / name).write_bytes(b""))
    attempt("delete the folder", lambda: os.rename(inside, f"{inside}.gone"))
    for file in ("environ", "maps", "mem", "fd"):
        path = Path(f"/proc/{pid}/{file}")
        attempt(f"read {file}", lambda path=path: os.listdir(path) if path.name == "fd" else path.open("rb").read(1))
    return {"done": done, "words": Path(f"/proc/{pid}/cmdline").read_text("utf-8")}
