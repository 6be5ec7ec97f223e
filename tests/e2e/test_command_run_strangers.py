"""Another user of this machine beside a run: what is in docs/runtime.md's table, row by row."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from another_user import CAN_BE_ANOTHER, WHY_NOT, AnotherUser, hammer, loopback_ports
from loopback import using_loopback
from processes import PATIENCE_S
from written_ctrdnn import BATCH, DATA, MICRO_BATCHES, write_ctrdnn

STEPS = 150  # a run that lasts longer than one look of the stranger

# an attack takes its time, alone on the loopback interface
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CAN_BE_ANOTHER, reason=WHY_NOT)]


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started, as everybody can read."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):  # one that ends has an empty line
            if entry.name.isdigit() and int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry.name))
    return found


def attack(launcher: int, temporary: str, ports: frozenset[int], for_s: float) -> dict[str, object]:
    """Look for the secret of a run wherever others can look, knock at its doors, and write where it reads."""
    opened: list[str] = []
    words: set[str] = set()
    seen: set[int] = set()
    until_s = time.monotonic() + for_s
    while time.monotonic() < until_s and not opened:
        folders = [path for path in Path(temporary).iterdir() if path.name.startswith("heterps-run-")]
        for folder in folders:
            for name in ("", "secret", "run.json", "store", "telemetry"):
                with suppress(OSError):
                    os.listdir(folder) if not name else (folder / name).read_bytes()
                    opened.append(str(folder / name))
            with suppress(OSError), socket.socket(socket.AF_UNIX) as line:
                line.connect(str(folder / "store"))
                opened.append("store")
        for pid in (
            launcher,
            *(server := children_of(launcher)),
            *(rank for one in server for rank in children_of(one)),
        ):
            with suppress(OSError):
                words.add(Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace"))
                seen.add(pid)
            for name in ("environ", "mem", "fd", "maps"):
                with suppress(OSError):
                    path = Path(f"/proc/{pid}/{name}")
                    if os.listdir(path) if name == "fd" else holds_something(path):
                        opened.append(f"/proc/{pid}/{name}")
        hammer(0.2, before=ports)
    return {"opened": opened, "seen": len(seen), "words": sorted(words)}


def holds_something(path: Path) -> bool:
    """Open a file, and say whether there is anything in it: that of a process that ends is empty, and open to all."""
    with path.open("rb", buffering=0) as file:
        try:
            return file.read(1) != b""
        except OSError:  # it was opened, and its first address is not mapped
            return True


@pytest.fixture
def attacked() -> Iterator[None]:
    """Have the loopback interface to oneself."""
    with using_loopback(attacked=True):
        yield


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """Have a folder for temporary files that is not in one of pytest's, which another pytest shuts to others."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o1777)
        yield folder


@pytest.mark.usefixtures("attacked")
def test_another_user_learns_nothing_changes_nothing_and_does_not_end_a_run(tmp_path, open_to_all):
    folder = tmp_path / "written"
    folder.mkdir()
    write_ctrdnn(folder)
    words = ("--train", "train.py", "--data", DATA, "--batch", str(BATCH), "--micro-batches", str(MICRO_BATCHES))
    ports = frozenset(loopback_ports())
    run = subprocess.Popen(
        [sys.executable, "-m", "heterps_compile", "run", "model2.heterps", *words, "--replicas", "1,2", "--steps",
         str(STEPS), "--checkpoint", str(folder / "ck"), "--every", "5"],
        cwd=folder, env={**os.environ, "TMPDIR": str(open_to_all), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    stranger = AnotherUser(partial(attack, run.pid, str(open_to_all), ports, 25.0))
    out, err = run.communicate(timeout=PATIENCE_S)
    found = stranger.found()
    assert isinstance(found, dict), found
    assert run.returncode == 0, err
    assert f"{STEPS} steps, {STEPS * BATCH:,} samples" in out
    assert found["opened"] == []
    assert found["seen"] >= 4, found  # the launcher and three ranks: it did look
    assert not any(
        len(word) >= 32 and set(word) <= set("0123456789abcdef") for line in found["words"] for word in line.split("\0")
    )
