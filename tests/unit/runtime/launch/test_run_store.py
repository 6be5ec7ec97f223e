"""Where the processes of a run meet: a file of one machine, or torch's server of several."""

import errno
import multiprocessing
import os
import shutil
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from heterps_compile.errors import RunError
from heterps_compile.runtime.c10d import TCPStore
from heterps_compile.runtime.launch import run_store
from heterps_compile.runtime.launch.run_store import Connect, folder_store, tcp_store


def server() -> TCPStore:
    return TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)


@pytest.fixture(params=["file", "server"])
def connect(request, tmp_path) -> Connect:
    """Return what connects to one store."""
    if request.param == "file":
        return partial(folder_store, tmp_path)
    hosted = server()
    return lambda: tcp_store("127.0.0.1", hosted.port, "heterps/0")


def test_several_connections_see_one_store(connect):
    one, two = connect(), connect()
    one.set("key", "value")
    one.set("empty", "")
    assert (two.get("key"), two.get("empty"), two.check(["key", "other"])) == (b"value", b"", False)
    one.set("key", "another")
    assert two.get("key") == b"another"
    assert [store.compare_set("fault", "", name) for store, name in ((one, "a"), (two, "b"))] == [b"a", b"a"]
    assert (one.add("count", 2), two.add("count", 3)) == (2, 5)
    assert one.delete_key("key")
    with pytest.raises(RuntimeError):
        two.wait(["key"], timedelta(milliseconds=10))


def test_a_thread_that_waits_holds_up_no_other(connect):
    found: list[bytes] = []
    waiting = threading.Thread(target=lambda: found.append(connect().get("late")))
    waiting.start()
    connect().set("late", "1")
    waiting.join()
    assert found == [b"1"]


def test_what_several_connections_add_at_once_is_counted(connect):
    def add_many() -> None:
        own = connect()
        for _ in range(50):
            own.add("count", 1)

    adding = [threading.Thread(target=add_many) for _ in range(4)]
    for thread in adding:
        thread.start()
    for thread in adding:
        thread.join()
    assert connect().add("count", 0) == 200


def test_runs_of_one_server_do_not_see_each_other():
    hosted = server()
    one, two = (tcp_store("127.0.0.1", hosted.port, f"heterps/{run}") for run in "01")
    one.set("key", "value")
    assert not two.check(["key"])


def _serve(pipe) -> None:
    hosted = server()
    pipe.send(hosted.port)
    pipe.recv()


@pytest.mark.parametrize("call", [lambda store: store.get("key"), lambda store: store.check(["key"])])
def test_a_server_that_is_gone_raises_what_watchers_catch(call: Callable):
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,))
    process.start()
    store = tcp_store("127.0.0.1", pipe.recv(), "heterps/0")
    process.kill()
    process.join()
    with pytest.raises(RuntimeError):
        call(store)


def test_a_value_that_cannot_be_written_leaves_the_store_as_it_was(tmp_path, monkeypatch):
    store = folder_store(tmp_path)
    store.set("key", "before")

    def torn(path: Path, content: bytes) -> int:
        with path.open("wb") as file:
            file.write(content[:3])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", torn)
    for write in (lambda: store.set("key", "afterwards"), lambda: store.compare_set("fault", "", "afterwards")):
        with pytest.raises(RunError):
            write()
    monkeypatch.undo()
    assert (store.get("key"), store.check(["fault"])) == (b"before", False)
    assert len(list((tmp_path / "store").iterdir())) == 1


def test_a_folder_that_cannot_be_made_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "mkdir", Mock(side_effect=OSError(errno.ENOSPC, "no space")))
    with pytest.raises(RunError, match=tmp_path.name):
        folder_store(tmp_path)


def test_a_server_that_cannot_be_reached_is_reported(monkeypatch):
    monkeypatch.setattr(run_store, "_CONNECT", timedelta(milliseconds=100))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and does not listen; no other process gets the port
        port = silent.getsockname()[1]
        with pytest.raises(RunError, match=rf"127\.0\.0\.1:{port}\b"):
            tcp_store("127.0.0.1", port, "heterps/0")


def test_a_folder_that_is_deleted_meanwhile_is_reported(tmp_path):
    folder: Path = tmp_path / "heterps-run-x"
    folder.mkdir()
    store = folder_store(folder)
    shutil.rmtree(folder)
    for call in (lambda: store.check(["key"]), lambda: store.set("key", "value")):
        with pytest.raises(RunError, match=r"heterps-run-x.*deleted"):
            call()
