"""What who can write the folder of the checkpoints can and cannot do to a run; the table is in docs/runtime.md."""

import json
import os
import struct
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from heterps_compile.errors import HeterpsError, RunError
from heterps_compile.runtime.checkpoint.folder import find_checkpoints, keep_last, tidy
from heterps_compile.runtime.checkpoint.format import open_checkpoint, sealed, write_files, write_state
from heterps_compile.runtime.checkpoint.optimizer_state import read_optimizer
from heterps_compile.runtime.checkpoint.state import RunState
from heterps_compile.runtime.servers.saved_tables import read_saved

STATE = RunState(step=5, samples=320, batch=64, seed=0, model="ab" * 32, plan="cd" * 32, stages=(0,))
STEP = "step-000005"


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint of one weight, beside a file and a folder that are none of the run's business."""
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "state.json").write_text("mine")
    folder = tmp_path / "ck" / STEP
    folder.mkdir(parents=True)
    write_files(folder, {"weights-0.safetensors": {"w": torch.ones(2)}})
    write_state(folder, STATE)
    return folder


def forge(folder: Path, **content) -> None:
    """Write a state file whose hash of itself is right."""
    state = {"format": 2, **asdict(replace(STATE, files={}))} | content
    (folder / "state.json").write_bytes(sealed(json.dumps(state, indent=2)))


def read_all(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    checkpoint.check()
    read_optimizer(checkpoint, ["w"])
    checkpoint.weights(["w"])


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
