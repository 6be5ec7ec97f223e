"""What somebody else can and cannot do to a run: the rows of the table in docs/runtime.md that need no whole run."""

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from another_user import CAN_BE_ANOTHER, WHY_NOT, AnotherUser, look_everywhere

from heterps_compile.errors import HeterpsError, RunError
from heterps_compile.runtime.launch.checkpoint_folder import find_checkpoints, keep_last, tidy
from heterps_compile.runtime.launch.checkpoint_format import (
    check_written,
    read_optimizer,
    read_state,
    read_weights,
    write_stage,
    write_state,
)
from heterps_compile.runtime.launch.checkpoint_hashes import sealed
from heterps_compile.runtime.launch.checkpoint_state import RunState
from heterps_compile.runtime.launch.run_folder import make_run_folder, write_private
from heterps_compile.runtime.launch.run_secret import new_secret, read_secret, write_secret
from heterps_compile.runtime.launch.store_client import StorePlace, connect_store, host_store
from heterps_compile.runtime.pipeline import strangers
from heterps_compile.runtime.pipeline.shared_memory import neighbours
from heterps_compile.runtime.pipeline.strangers import connect_without_strangers
from heterps_compile.runtime.servers.saved_tables import read_saved

SECRET = bytes(range(32))

# ---- another user of this machine


@pytest.mark.skipif(not CAN_BE_ANOTHER, reason=WHY_NOT)
def test_another_user_sees_that_a_run_goes_on_and_reads_writes_and_joins_nothing(monkeypatch):
    folder, held = make_run_folder()
    place = StorePlace(new_secret(), folder=folder)
    write_secret(folder, place.secret)
    write_private(place.folder / "run.json", "{}")
    told: list[str] = []
    server, listener = host_store(place, told.append), neighbours._listen(name := os.urandom(8).hex(), 2, 10.0)
    found: dict = {}
    try:
        stranger = AnotherUser(partial(look_everywhere, str(place.folder), os.getpid(), name))
        line, _ = listener.accept()
        with line:
            assert not neighbours._is_own(line)
        found = stranger.found()
        assert found["done"] == ["knock at a neighbour"], found
        assert found["words"].startswith(Path("/proc/self/cmdline").read_text()[:10])
        connect_store(place, "rank 1").set("key", "value")
        with neighbours._new_socket(10.0) as own:
            own.connect(f"\0{name}")
            line, _ = listener.accept()
            with line:
                assert neighbours._is_own(line)
    finally:
        server.close()
        listener.close()
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)
    assert told == []


def test_the_secret_stands_in_no_command_line_and_no_environment_and_its_file_is_private():
    folder, held = make_run_folder()
    try:
        write_secret(folder, SECRET)
        assert read_secret(folder) == SECRET
        assert [path.stat().st_mode & 0o077 for path in (folder, folder / "secret")] == [0, 0]
        start = "import os; print([open(f'/proc/{os.getppid()}/' + n).read() for n in ('cmdline', 'environ')])"
        shown = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, check=True).stdout
        assert SECRET.hex() not in shown + repr(StorePlace(SECRET, folder=folder))
    finally:
        shutil.rmtree(folder)
        os.close(held)


class ImposedGroup:
    """A group of gloo in which a stranger holds the other's place: what comes from there is the stranger's."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def send(self, tensors, target, tag):
        return self

    def recv(self, tensors, source, tag):
        tensors[0].fill_(7)
        return self

    def wait(self, timeout):
        return True


def test_who_took_a_place_without_the_greeting_loses_it(monkeypatch):
    """The next attempt has other ports and a guard; where strangers have all of them, the run ends and says so."""
    monkeypatch.setattr(strangers, "PortGuard", _NoGuard)
    monkeypatch.setattr(strangers, "guarded_store", lambda store, *_: store)
    for imposed, expected in (
        (1, "made"),
        (4, "strangers disturbed the ranks while these connected, 4 times in a row"),
    ):
        store, ends = dist.HashStore(), []

        def join(rank: int, store=store, imposed=imposed, ends=ends) -> None:
            made: list[int] = []

            def make(tried, timeout):
                made.append(rank)
                return ImposedGroup(rank) if len(made) <= imposed else dist.ProcessGroupGloo(tried, rank, 2, timeout)

            try:
                group = connect_without_strangers(make, lambda: None, store, rank, 2, patience=_PATIENCE)
                ends.append("made" if isinstance(group, dist.ProcessGroupGloo) and len(made) == imposed + 1 else made)
            except RunError as error:
                ends.append(str(error))

        other = threading.Thread(target=join, args=(1,))
        other.start()
        join(0)
        other.join()
        assert [end.startswith(expected) for end in ends] == [True, True], ends
        assert expected == "made" or "what took the place of rank" in ends[0]


class _NoGuard:
    """Stands in for the guard of ports, which has a test of its own and takes a second."""

    def __init__(self, *, stands):
        del stands

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def shut(self):
        return None


_PATIENCE = timedelta(seconds=30)

# ---- somebody on the same network, or on the wire


class Wire:
    """What lies between a process and the store: it hears everything, and changes one byte where it is asked to."""

    def __init__(self, port: int) -> None:
        self.port, self.heard, self.change = port, [b"", b""], (-1, -1)
        self._door = socket.create_server(("127.0.0.1", 0))
        self.place = self._door.getsockname()[1]
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._door.accept()
                self._threads.append(threading.Thread(target=self._carry_both_ways, args=(near,)))
                self._threads[-1].start()

    def _carry_both_ways(self, near: socket.socket) -> None:
        with near, socket.create_connection(("127.0.0.1", self.port)) as far:
            back = threading.Thread(target=self._carry, args=(1, far, near))
            back.start()
            self._carry(0, near, far)
            back.join()

    def _carry(self, way: int, source: socket.socket, target: socket.socket) -> None:
        seen = 0
        with suppress(OSError):
            while came := source.recv(65536):
                self.heard[way] += came
                changed_way, at = self.change
                if way == changed_way and seen <= at < seen + len(came):
                    came = came[: at - seen] + bytes([came[at - seen] ^ 1]) + came[at - seen + 1 :]
                seen += len(came)
                target.sendall(came)
        for line in (source, target):
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Return once both ends of every connection are closed, and so is the door."""
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def wire():
    server = host_store(StorePlace(SECRET, address="127.0.0.1"), lambda _: None)
    made = Wire(server.port)
    yield made
    server.close()
    made.close()


def through(wire: Wire) -> StorePlace:
    return StorePlace(SECRET, address="127.0.0.1", port=wire.place, patience_s=0.0)


def test_who_hears_the_wire_reads_values_and_not_the_secret_and_cannot_say_it_again(wire):
    connect_store(through(wire), "rank 1").set("key", "a value")
    heard = b"".join(wire.heard)
    assert b"a value" in heard  # nothing is encrypted
    assert SECRET not in heard
    with socket.create_connection(("127.0.0.1", wire.port)) as again:  # what was said once, word for word
        again.sendall(wire.heard[0].replace(b"a value", b"another"))
        again.settimeout(10)
        with suppress(ConnectionResetError):
            while again.recv(4096):
                pass  # the store says its hello, and closes
    assert connect_store(through(wire), "rank 1").get("key") == b"a value"


@pytest.mark.parametrize("way", [0, 1], ids=["to the store", "from the store"])
def test_a_byte_that_is_changed_on_the_wire_ends_the_connection_and_is_never_read(way, wire):
    """Whichever byte it is: of the greeting, a length, a content, a code."""
    first = connect_store(through(wire), "rank 1")
    first.set("key", "the value")
    assert first.get("key") == b"the value"
    count = len(wire.heard[way])
    for at in range(0, count, 3):
        wire.change = (way, at)
        with pytest.raises((RunError, RuntimeError), match="store"):
            _read_twice(through(wire))
    wire.change = (-1, -1)
    assert first.get("key") == b"the value"


def _read_twice(place: StorePlace) -> None:
    store = connect_store(place, "rank 2")
    store._line.settimeout(0.2)  # a length that was made larger is waited for
    for _ in range(2):
        store.set("other", "the value")
        assert store.get("key") == b"the value"


def test_a_request_of_no_form_ends_the_connection_of_who_sent_it_and_no_other(wire):
    """It takes the secret to send one."""
    good, bad = (connect_store(through(wire), f"rank {rank}") for rank in (1, 2))
    for content in (b"", b"\x01\0\0", b"\x63\0\0", b"\x02\0\1\0\0\0\1x", b"\x05\0\1\0\0\0\1k"):
        bad._line.sendall(bad._sealed.seal(content))
        assert bad._line.recv(1) == b""
        bad = connect_store(through(wire), "rank 2")
    good.set("key", "value")
    assert bad.get("key") == b"value"


# ---- who can write the folder of the checkpoints

STATE = RunState(step=5, samples=320, batch=64, seed=0, model="ab" * 32, plan="cd" * 32, stages=(0,))
STEP = "step-000005"


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint of one weight, beside a file and a folder that are none of the run's business."""
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "state.json").write_text("mine")
    folder = tmp_path / "ck" / STEP
    folder.mkdir(parents=True)
    write_stage(folder, 0, {"w": torch.ones(2)}, None)
    write_state(folder, STATE)
    return folder


def forge(folder: Path, **content) -> None:
    """Write a state file whose hash of itself is right."""
    state = {"format": 2, **asdict(replace(STATE, files={}))} | content
    (folder / "state.json").write_bytes(sealed(json.dumps(state, indent=2)))


def read_all(folder: Path) -> None:
    state = read_state(folder)
    check_written(folder, state)
    read_optimizer(folder, state, ["w"])
    read_weights(folder, state, ["w"])


@pytest.mark.parametrize("name", ["/etc/hostname", "../../private/state.json", "./weights-0.safetensors", "a\0b",
                                  "\ud800", "", "weights-0.safetensors/", "servers//x"])  # fmt: skip
def test_a_name_that_leads_out_of_the_folder_is_refused_before_the_file_is_read(name, checkpoint):
    forge(checkpoint, files={name: "0" * 64})
    with pytest.raises(RunError, match=r"state\.json'"):
        read_all(checkpoint)


def test_tables_of_servers_are_named_inside_their_folder(tmp_path):
    table = {"name": "t", "rows": 1, "width": 1, "updates": 0, "sha256": ["0" * 64]}
    np.save(tmp_path / "outside.npy", np.zeros((1, 1), np.float32))
    (tmp_path / "servers").mkdir()
    for name in ("../outside.npy", str(tmp_path / "outside.npy"), "outside.txt"):
        content = {"format": 2, "step": 1, "optimizer": "sgd", "states": 0, "tables": [{**table, "files": [name]}]}
        (tmp_path / "servers" / "servers.json").write_text(json.dumps(content))
        with pytest.raises(HeterpsError, match="tables"):
            read_saved(tmp_path / "servers")


def hostile_files() -> dict[str, bytes]:
    pickled = b"cos\nsystem\n(S'touch ran'\ntR."
    header = json.dumps({"w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    return {
        "nothing": b"", "a pickle": pickled, "a torch file": b"PK\x03\x04" + pickled, "brackets": b"[" * 200_000,
        "digits": b'{"options": ' + b"9" * 5000 + b"}", "a list": b"[1]", "other JSON": b'{"options": {"w": 3}}',
        "a huge tensor": struct.pack("<Q", len(header)) + header, "a huge header": struct.pack("<Q", 2**62),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["state.json", "weights-0.safetensors", "optimizer-0.json"])
def test_whatever_a_file_holds_nothing_runs_and_one_sentence_tells_it(name, checkpoint, monkeypatch):
    monkeypatch.chdir(checkpoint.parent.parent)
    for kind, content in hostile_files().items():
        (checkpoint / name).write_bytes(content)
        if name != "state.json":
            write_state(checkpoint, STATE)  # the hashes match
        with pytest.raises(HeterpsError) as caught:
            read_all(checkpoint)
        assert name in str(caught.value), kind
        assert not Path("ran").exists()


@pytest.mark.parametrize("name", ["state.json", "weights-0.safetensors"])
def test_a_pipe_or_a_device_in_the_place_of_a_file_is_not_waited_for(name, checkpoint):
    for put in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        (checkpoint / name).unlink()
        put(checkpoint / name)
        with pytest.raises(RunError):
            read_all(checkpoint)


def test_nothing_is_written_or_deleted_where_a_link_in_the_folder_leads(checkpoint, tmp_path):
    private, folder = tmp_path / "private", checkpoint.parent
    for link in ("step-000001", "step-000002", ".heterps-new-0123-4567"):
        (folder / link).symlink_to(private)
    assert len(find_checkpoints(folder)) == 3
    keep_last(folder, 1)
    tidy(folder)
    assert [path.name for path in find_checkpoints(folder)] == [STEP]
    assert (private / "state.json").read_text() == "mine"
