"""Tables are saved whole, read by any number of servers, and exported under their names."""

import json

import numpy as np
import pytest
import torch
from direct_servers import DirectServers, make_spec
from safetensors.torch import load_file

from heterps_compile.errors import InputError, RunError
from heterps_compile.runtime.servers import saved_tables as saved_module
from heterps_compile.runtime.servers.client import Client
from heterps_compile.runtime.servers.optimizers import Adam, Sgd
from heterps_compile.runtime.servers.saved_tables import export_tables, read_saved


def train(servers: DirectServers, client: Client, steps: range) -> None:
    """Push gradients to both tables, other rows in every step."""
    for step in steps:
        client.before_step(step)
        for table, spec in enumerate(servers.spec.tables):
            rows = torch.arange(step % 3, spec.rows, 2)
            lookup = client.look_up(table, rows, lambda weights, positions, _: weights[positions])
            client.pull()
            (lookup.result.square().sum() / (step + 1)).backward()
        client.after_backward(step)


def started(tmp_path, servers: int, **more) -> tuple[DirectServers, Client]:
    torch.manual_seed(0)
    tables = {"one\n.weight": torch.randn(11, 4), "two": torch.randn(5, 2)}
    direct = DirectServers(make_spec(tmp_path, tables, servers=servers, **{"optimizer": Adam(0.1)} | more))
    return direct, Client(direct.spec, 0, link=direct)


@pytest.mark.parametrize("others", [1, 2, 3, 7])
def test_another_number_of_servers_goes_on_where_the_first_stopped(tmp_path, others):
    whole, whole_client = started(tmp_path, servers=2)
    train(whole, whole_client, range(6))
    first, client = started(tmp_path, servers=2)
    train(first, client, range(3))
    client.save(tmp_path / "saved")
    second, client = started(tmp_path, servers=others, first_step=3, resume=tmp_path / "saved")
    train(second, client, range(3, 6))
    for table in (0, 1):
        assert torch.equal(second.weights(table), whole.weights(table))


def test_what_is_cold_is_saved_too(tmp_path, monkeypatch):
    monkeypatch.setattr(saved_module, "CHUNK_ROWS", 4)
    whole, whole_client = started(tmp_path, servers=1)
    tiered, client = started(tmp_path, servers=1, memory_bytes=500, directory=tmp_path)
    assert tiered.servers[0].memory_bytes <= 500 < whole.servers[0].memory_bytes
    for direct, one in ((whole, whole_client), (tiered, client)):
        train(direct, one, range(4))
        one.save(tmp_path / "saved")
        export_tables(tmp_path / "saved", tmp_path / "weights.safetensors")
        assert torch.equal(load_file(tmp_path / "weights.safetensors")["one\n.weight"], whole.weights(0))


def test_export_has_the_models_names_and_no_state(tmp_path):
    direct, client = started(tmp_path, servers=3)
    train(direct, client, range(2))
    client.save(tmp_path / "saved")
    export_tables(tmp_path / "saved", tmp_path / "weights.safetensors")
    weights = load_file(tmp_path / "weights.safetensors")
    assert {name: list(tensor.shape) for name, tensor in weights.items()} == {"one\n.weight": [11, 4], "two": [5, 2]}
    assert torch.equal(weights["two"], direct.weights(1))


def test_saving_again_replaces_the_files_of_before(tmp_path):
    direct, client = started(tmp_path, servers=2)
    for step in range(2):
        train(direct, client, range(step, step + 1))
        client.save(tmp_path / "saved")
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == [
        "servers.json",
        "table-0.step-2.shard-0-of-2.npy",
        "table-0.step-2.shard-1-of-2.npy",
        "table-1.step-2.shard-0-of-2.npy",
        "table-1.step-2.shard-1-of-2.npy",
    ]
    assert [table.updates for table in read_saved(tmp_path / "saved").tables] == [2, 2]


def saved_folder(tmp_path):
    direct, client = started(tmp_path, servers=2)
    train(direct, client, range(1))
    client.save(tmp_path / "saved")
    return tmp_path / "saved"


def test_another_optimiser_cannot_take_over(tmp_path):
    folder = saved_folder(tmp_path)
    with pytest.raises(RunError, match=r"'adam'.*\b2\b.*'sgd'.*\b0\b"):
        started(tmp_path, servers=2, optimizer=Sgd(0.1), resume=folder)


def test_a_table_of_another_shape_is_named(tmp_path):
    folder = saved_folder(tmp_path)
    spec = make_spec(tmp_path, {"two": torch.zeros(6, 2)}, optimizer=Adam(0.1), resume=folder)
    with pytest.raises(RunError, match=r"'two'.*\b6\b.*\b2\b.*\b5\b.*\b2\b"):
        DirectServers(spec)
    spec = make_spec(tmp_path, {"three": torch.zeros(6, 2)}, optimizer=Adam(0.1), resume=folder)
    with pytest.raises(RunError, match="'three'"):
        DirectServers(spec)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda c: c["tables"][0].update(rows=-1), r"tables\[0\].rows.*-1"),
        (lambda c: c["tables"][0].update(rows=12), "servers.json.*float32"),
        (lambda c: c["tables"][0]["files"].__setitem__(0, "../x.npy"), "'../x.npy'"),
        (lambda c: c["tables"][0]["files"].__setitem__(0, "x.npy"), "No such file"),
        (lambda c: c.pop("step"), r"step: .*missing"),
        (lambda c: c.update(format=3), r"\b3\b.*\b2\b"),
        (lambda c: c["tables"][0]["sha256"].pop(), "hash"),
        (lambda c: c.update(optimizer=None), "None"),
    ],
)
def test_a_damaged_list_of_tables_is_refused(tmp_path, change, fault):
    folder = saved_folder(tmp_path)
    content = json.loads((folder / "servers.json").read_text())
    change(content)
    (folder / "servers.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=fault):
        read_saved(folder)


@pytest.mark.parametrize("shard", range(2))
def test_nothing_is_read_from_a_shard_that_was_changed(tmp_path, shard):
    folder = saved_folder(tmp_path)
    path = folder / f"table-0.step-1.shard-{shard}-of-2.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-4] + bytes(byte ^ 1 for byte in content[-4:]))
    said = rf"shard-{shard}-of-2.npy'.*SHA-256 .{{12}}….*.{{12}}…"
    with pytest.raises(InputError, match=said):
        export_tables(folder, tmp_path / "weights.safetensors")
    with pytest.raises(InputError, match=said):
        started(tmp_path, servers=3, optimizer=Adam(0.1), resume=folder)


def test_a_pickle_in_place_of_a_shard_is_refused(tmp_path):
    folder = saved_folder(tmp_path)
    np.save(folder / "table-0.step-1.shard-0-of-2.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="table"):
        read_saved(folder)


def test_a_folder_without_tables_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"'.*servers.json'.*No such file"):
        read_saved(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    _, client = started(tmp_path, servers=2)
    with pytest.raises(RunError, match=r"'one\\n.weight'.*'.*file'"):
        client.save(tmp_path / "file")


def test_a_stage_file_without_the_table_is_named(tmp_path):
    direct, _ = started(tmp_path, servers=1)
    (tmp_path / "stage_0.safetensors").write_bytes(b"nothing")
    with pytest.raises(RunError, match=r"'one\\n.weight'.*'.*stage_0.safetensors'"):
        DirectServers(direct.spec)
