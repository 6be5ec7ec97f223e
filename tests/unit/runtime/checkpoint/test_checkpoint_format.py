"""Checkpoints: by name, whole or not at all, the last few kept."""

import json
import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from heterps_compile.errors import RunError
from heterps_compile.runtime.checkpoint.folder import find_checkpoints, keep_last, step_name, tidy
from heterps_compile.runtime.checkpoint.format import Checkpoint, open_checkpoint, write_files, write_state
from heterps_compile.runtime.checkpoint.optimizer_state import put_state, read_optimizer, take_state
from heterps_compile.runtime.checkpoint.start import unchecked_notes
from heterps_compile.runtime.checkpoint.state import RunState

STATE = RunState(step=120, samples=7680, batch=64, seed=3, model="ab", plan="cd", stages=(0, 1))


def trained(seed: int, kind=torch.optim.Adam, **options):
    """Return two layers that have been trained a step, and their optimiser."""
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    optimizer = kind(layers.parameters(), lr=0.01, **options)
    layers(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return layers, optimizer


def parameters(layers: nn.Module, prefix: str = "") -> dict[str, nn.Parameter]:
    return {name: p for name, p in layers.named_parameters() if name.startswith(prefix)}


def write_two_stages(folder, layers, optimizer):
    folder.mkdir(parents=True)
    for stage in (0, 1):
        named = parameters(layers, f"{stage}.")
        files = {f"weights-{stage}.safetensors": named, **take_state(optimizer, named).files(stage)}
        write_files(folder, files)
    write_state(folder, STATE)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.Adam, {}),
        (torch.optim.Adam, {"amsgrad": True}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.SGD, {}),
        (torch.optim.Adagrad, {}),
        (torch.optim.RMSprop, {}),
    ],
)
def test_two_stages_go_on_as_one(tmp_path, kind, options):
    layers, optimizer = trained(0, kind, **options)
    write_two_stages(tmp_path / "step-000120", layers, optimizer)
    other, fresh = trained(1, kind, **options)
    named = parameters(other)
    checkpoint = Checkpoint(tmp_path / "step-000120", STATE)
    weights = checkpoint.weights(named)
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(weights[name])
    known = read_optimizer(checkpoint, named)
    put_state(fresh, named, known)
    for model, its_optimizer in ((layers, optimizer), (other, fresh)):
        for _ in range(3):
            its_optimizer.zero_grad()
            model(torch.ones(2, 3)).square().sum().backward()
            its_optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(layers.parameters(), other.parameters(), strict=True))


def test_another_optimiser_is_refused():
    layers, adam = trained(0)
    state = take_state(adam, parameters(layers))
    other, sgd = trained(0, torch.optim.SGD)
    with pytest.raises(RunError, match=r"Adam.*SGD"):
        put_state(sgd, parameters(other), state)


def test_groups_that_were_apart_are_not_put_together():
    layers = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    apart = torch.optim.SGD([{"params": layers[0].parameters(), "lr": 0.1}, {"params": layers[1].parameters()}], lr=0.2)
    state = take_state(apart, parameters(layers))
    with pytest.raises(RunError):
        put_state(torch.optim.SGD(layers.parameters(), lr=0.3), parameters(layers), state)


def test_tied_names_get_bytes_of_their_own(tmp_path):
    shared = nn.Parameter(torch.arange(4.0))
    write_files(tmp_path, {"weights-0.safetensors": {"wte": shared, "lm_head": shared}})
    write_state(tmp_path, RunState(1, 2, 2, 0, "m", "p", (0,)))
    found = open_checkpoint(tmp_path).weights(["lm_head"])
    assert torch.equal(found["lm_head"], shared)


def test_what_an_optimiser_knows_of_a_tied_weight_is_saved_under_both_names(tmp_path):
    shared = nn.Parameter(torch.arange(4.0))
    optimizer = torch.optim.SGD([shared], lr=0.1, momentum=0.9)
    shared.sum().backward()
    optimizer.step()
    named = {"wte": shared, "lm_head": shared}
    write_files(tmp_path, take_state(optimizer, named).files(0))
    known = read_optimizer(Checkpoint(tmp_path, RunState(1, 2, 2, 0, "m", "p", (0,))), ["lm_head"])
    assert known is not None
    assert torch.equal(known.tensors["momentum_buffer:lm_head"], torch.ones(4))


def test_a_name_that_nobody_saved_is_told(tmp_path):
    layers, optimizer = trained(0)
    write_two_stages(tmp_path / "s", layers, optimizer)
    with pytest.raises(RunError, match=r"'head\.weight'"):
        Checkpoint(tmp_path / "s", STATE).weights(["0.weight", "head.weight"])


def test_a_buffer_that_another_backend_wrote_into_its_code_may_be_missing(tmp_path):
    layers, optimizer = trained(0)
    write_two_stages(tmp_path / "s", layers, optimizer)
    found = Checkpoint(tmp_path / "s", STATE).weights(["0.weight", "mask"], optional={"mask"})
    assert list(found) == ["0.weight"]


def test_the_state_comes_back(tmp_path):
    write_state(tmp_path, STATE)
    assert open_checkpoint(tmp_path).state == replace(STATE, files={})


@pytest.mark.parametrize(
    "broken",
    [b"", b"{", b"[]", b'{"format": 3}', b'{"format": 1, "step": -1}', json.dumps({"format": 1, "step": "x"}).encode()],
)
def test_a_damaged_state_is_told(tmp_path, broken):
    make_steps(tmp_path, 5, 10)
    (tmp_path / "step-000010" / "state.json").write_bytes(broken)
    with pytest.raises(RunError, match=r"state.json.*'.*step-000010'.*step-000005|format"):
        open_checkpoint(tmp_path / "step-000010")


def written(folder, state=STATE):
    """Write a whole checkpoint of two stages, and tables of servers, as far as hashes are concerned."""
    layers, optimizer = trained(0)
    write_two_stages(folder, layers, optimizer)
    (folder / "servers").mkdir()
    (folder / "servers" / "table-0.npy").write_bytes(bytes(range(256)))
    write_state(folder, state)
    return open_checkpoint(folder)


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_four_flipped_bytes_in_any_file_are_refused_with_its_name_and_both_hashes(tmp_path, place):
    make_steps(tmp_path, 5)
    folder = tmp_path / "step-000120"
    checkpoint = written(folder)
    for name in ("state.json", *checkpoint.state.files):
        content = (folder / name).read_bytes()
        at = {"first": 0, "middle": len(content) // 2, "last": len(content) - 4}[place]
        flipped = bytes(byte ^ 1 for byte in content[at : at + 4])
        (folder / name).write_bytes(content[:at] + flipped + content[at + 4 :])
        with pytest.raises(RunError) as caught:
            open_checkpoint(folder).check()
        said = rf"step-000120/{name}' is not the file .*\(SHA-256 [^ ]+…, expected [^ ]+…\); remove .* from step-000005"
        assert re.search(said, str(caught.value))
        (folder / name).write_bytes(content)
        open_checkpoint(folder).check()


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("weights-1.safetensors", lambda checkpoint: checkpoint.weights(["1.weight"])),
        ("optimizer-1.safetensors", lambda checkpoint: read_optimizer(checkpoint, ["1.weight"])),
        ("optimizer-1.json", lambda checkpoint: read_optimizer(checkpoint, ["1.weight"])),
    ],
)
def test_nothing_is_read_from_a_file_that_was_changed(tmp_path, name, read):
    checkpoint = written(tmp_path / "step-000120")
    path = tmp_path / "step-000120" / name
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match=f"{name}'"):
        read(checkpoint)


def test_a_file_that_is_gone_is_told(tmp_path):
    checkpoint = written(tmp_path / "step-000120")
    (tmp_path / "step-000120" / "optimizer-1.json").unlink()
    with pytest.raises(RunError, match=r"optimizer-1.json'.*No such file"):
        checkpoint.check()


def test_a_checkpoint_of_an_earlier_version_is_read_and_a_note_says_that_it_cannot_be_checked(tmp_path):
    checkpoint = written(tmp_path / "step-000120")
    path = tmp_path / "step-000120" / "state.json"
    content = {key: value for key, value in json.loads(path.read_text()).items() if key not in ("files", "sha256")}
    path.write_text(json.dumps({**content, "format": 1}, indent=2) + "\n")
    old = open_checkpoint(path.parent)
    assert old.state == replace(checkpoint.state, files=None)
    old.check()
    (note,) = unchecked_notes(old)
    assert "without hashes: damage in its files is not noticed" in note
    assert unchecked_notes(checkpoint) == []


def test_damaged_weights_are_told_with_the_way_out(tmp_path):
    layers, optimizer = trained(0)
    write_two_stages(tmp_path / "s", layers, optimizer)
    (tmp_path / "s" / "weights-1.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(RunError, match=r"weights-1.safetensors'.*damaged.*there"):
        Checkpoint(tmp_path / "s", STATE).weights(["1.weight"])


def make_steps(folder, *steps):
    for step in steps:
        (folder / step_name(step)).mkdir()
        write_state(folder / step_name(step), STATE)


def test_the_last_few_are_kept_in_the_order_of_steps(tmp_path):
    make_steps(tmp_path, 5, 1_000_000, 20, 999_999)
    keep_last(tmp_path, 2)
    assert [path.name for path in find_checkpoints(tmp_path)] == ["step-999999", "step-1000000"]


def test_what_is_not_finished_is_no_checkpoint_and_is_tidied_away(tmp_path):
    make_steps(tmp_path, 5)
    (tmp_path / "step-000010").mkdir()
    (tmp_path / ".heterps-new-abc-1").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    assert [path.name for path in find_checkpoints(tmp_path)] == ["step-000005"]
    tidy(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "step-000005"]


def test_a_full_disk_is_told(tmp_path):
    (tmp_path / "file").touch()
    said = f"'{tmp_path}/file'.*Not a directory"
    with pytest.raises(RunError, match=said):
        write_files(tmp_path / "file" / "step", {"weights-0.safetensors": {"a": torch.ones(1)}})
    with pytest.raises(RunError, match=said):
        write_files(tmp_path / "file" / "step", {"optimizer-0.json": {}})
