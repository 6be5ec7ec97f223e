"""A checkpoint becomes a model again: the module's own state dict, an ONNX model, a program of torch.export."""

import json
import re
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from heterps_compile import export_checkpoint, hash_ids
from heterps_compile.cli.main import command
from heterps_compile.errors import InputError, RunError
from heterps_compile.runtime.checkpoint.format import write_files, write_state
from heterps_compile.runtime.checkpoint.state import Averaged, RunState
from heterps_compile.runtime.data.identity import FileContent, Identity, Part

DATA = Identity("clicks.csv?rows=9", ("user",), (Part(50, "ab"),), (FileContent("<b>|x", "5d41"),))
STATE = RunState(
    step=2, samples=32, batch=16, seed=3, model="ab", plan="cd", stages=(0, 1), data=DATA,
    tied=(("emb.weight", "out.weight"),),
)  # fmt: skip
IDS = torch.tensor([[1, 2], [3, 0], [4, 4]])


class Net(nn.Module):
    """A tied weight, buffers that are trained and that are not kept, a parameter that nothing reads."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.emb = nn.Embedding(5, 4)
        self.norm = nn.BatchNorm1d(8)
        self.fc = nn.Linear(8, 4)
        self.out = nn.Linear(4, 5, bias=False)
        self.out.weight = self.emb.weight
        self.unused = nn.Linear(2, 1)
        self.register_buffer("scale", torch.rand(4))
        self.register_buffer("scratch", torch.ones(1), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.fc(self.norm(self.emb(ids).flatten(1))) * self.scale * self.scratch)


def write(folder, net: nn.Module, state: RunState = STATE):
    """Write a checkpoint of two stages, of which the second has the tied weight too."""
    own = net.state_dict()
    folder.mkdir(parents=True)
    write_files(folder, {"weights-0.safetensors": {n: own[n] for n in own if n.startswith(("emb", "norm"))}})
    write_files(folder, {"weights-1.safetensors": {n: own[n] for n in own if n.startswith(("fc", "scale"))}})
    write_state(folder, state)
    return folder


@pytest.fixture
def trained(tmp_path):
    """Return a folder with two checkpoints, and the module that the last has the weights of."""
    write(tmp_path / "ck" / "step-000001", Net(7), replace(STATE, step=1, metrics={"auc": 0.9}, validations=1))
    net = Net(1)
    with torch.no_grad():
        net.get_buffer("norm.running_mean").add_(0.5)
    state = replace(STATE, metrics={"auc": 0.75, "loss": 0.5}, validations=2, keep_best="auc:max")
    write(tmp_path / "ck" / "step-000002", net, state)
    return tmp_path / "ck", net.eval()


def test_the_state_dict_is_the_modules_own(trained, tmp_path):
    folder, net = trained
    other = Net(2)
    made = export_checkpoint(folder, tmp_path / "m.safetensors", model=other)
    assert (made.step, made.kept) == (2, ("unused.weight", "unused.bias"))
    loaded = load_file(tmp_path / "m.safetensors")
    assert loaded.keys() == other.state_dict().keys()
    other.load_state_dict(loaded, strict=True)
    assert torch.equal(other.eval()(IDS), net(IDS))
    assert other.out.weight is other.emb.weight
    assert torch.equal(loaded["unused.bias"], Net(2).unused.bias), "what no stage reads is the model's own"


def test_without_the_model_the_checkpoint_is_written_with_all_names_of_a_tied_weight(trained, tmp_path):
    folder, net = trained
    export_checkpoint(folder / "step-000002", tmp_path / "m.safetensors")
    loaded = load_file(tmp_path / "m.safetensors")
    assert set(net.state_dict()) - set(loaded) == {"unused.weight", "unused.bias"}
    assert torch.equal(loaded["out.weight"], net.emb.weight)
    with safe_open(tmp_path / "m.safetensors", "pt") as file:
        facts = json.loads(file.metadata()["heterps_compile"])
    assert (facts["step"], facts["plan_sha256"], facts["metrics"]) == (2, "cd", {"auc": 0.75, "loss": 0.5})


def test_the_best_is_chosen_by_its_metric(trained, tmp_path):
    folder, _ = trained
    assert export_checkpoint(folder, tmp_path / "m.safetensors", best=True).step == 1
    with pytest.raises(RunError, match="--best chooses"):
        export_checkpoint(folder / "step-000001", tmp_path / "n.safetensors", best=True)
    write(tmp_path / "none" / "step-000002", Net(1))
    with pytest.raises(RunError, match=r"--validate.*--keep-best METRIC"):
        export_checkpoint(tmp_path / "none", tmp_path / "n.safetensors", best=True)


def test_the_average_of_the_weights_is_written_on_request(trained, tmp_path):
    net, folder = Net(1), tmp_path / "averaged" / "step-000002"
    write(folder, net)
    (folder / "state.json").unlink()
    own = net.state_dict()
    for stage, starts in enumerate((("emb", "norm"), ("fc", "scale"))):
        write_files(folder, {f"ema-{stage}.safetensors": {n: own[n] + 1 for n in own if n.startswith(starts)}})
    write_state(folder, replace(STATE, averaged=Averaged(0.9, 7)))
    made = export_checkpoint(folder, tmp_path / "m.safetensors", averaged=True)
    assert made.weights == "the average (EMA, decay 0.9, 7 steps)"
    assert torch.equal(load_file(made.path)["out.weight"], net.out.weight + 1)
    made = export_checkpoint(folder, tmp_path / "n.safetensors")
    assert made.weights == "the weights themselves, not the average (EMA, decay 0.9, 7 steps)"
    assert made.weights in made.card.read_text("utf-8").replace("\\", "")
    assert torch.equal(load_file(made.path)["out.weight"], net.out.weight)
    with pytest.raises(RunError, match="step-000002"):
        export_checkpoint(trained[0], tmp_path / "o.safetensors", averaged=True)


def test_the_card_has_data_metrics_plan_and_versions_and_no_markup_of_theirs(trained, tmp_path):
    made = export_checkpoint(trained[0], tmp_path / "m.safetensors")
    card = made.card.read_text("utf-8")
    assert made.card.name == "m.safetensors.md"
    for said in ("| auc | 0\\.75 |", "| SHA-256 of the plan | cd |", "clicks.csv?rows=9", "SHA-256 5d41", "hash_ids"):
        assert said in card, said
    assert "<b>" not in card
    assert "\\|x" in card
    assert re.search(r"\| version of torch \| \d", card)
    assert hash_ids(["a"], column="user", rows=9)[0] > 0


@pytest.mark.slow  # torch.export takes seconds
def test_a_program_keeps_its_graph_and_gets_the_weights(trained, tmp_path):
    folder, net = trained
    program = torch.export.export(Net(2).eval(), (IDS,))
    before = {name: tensor.clone() for name, tensor in program.state_dict.items()}
    export_checkpoint(folder, tmp_path / "m.pt2", model=program)
    assert torch.equal(torch.export.load(tmp_path / "m.pt2").module()(IDS), net(IDS))
    assert all(torch.equal(program.state_dict[name], tensor) for name, tensor in before.items())


@pytest.fixture
def onnx_model(tmp_path):
    """Return an ONNX model of two layers, and a checkpoint that trained it."""
    onnx = pytest.importorskip("onnx", reason="onnx is an extra")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    torch.manual_seed(0)
    own = {"a.weight": torch.rand(3, 4), "a.bias": torch.rand(4), "b.weight": torch.rand(4, 2)}
    nodes = [
        helper.make_node("Gemm", ["x", "a.weight", "a.bias"], ["h"]),
        helper.make_node("MatMul", ["h", "b.weight"], ["m"]),
        helper.make_node("Reshape", ["m", "shape"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, 1, ["n", size]) for name, size in (("x", 3), ("y", 2))]
    initializers = [numpy_helper.from_array(tensor.numpy(), name) for name, tensor in own.items()]
    initializers.append(helper.make_tensor("shape", 7, [2], [-1, 2]))
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], initializers)
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    folder = tmp_path / "onnx" / "step-000002"
    folder.mkdir(parents=True)
    new = {name: tensor + 1 for name, tensor in own.items()}
    write_files(folder, {"weights-0.safetensors": new})
    write_state(folder, replace(STATE, stages=(0,), tied=()))
    return tmp_path / "m.onnx", folder, new


def test_an_onnx_model_keeps_its_graph_and_gets_the_weights(onnx_model, tmp_path):
    session_of = pytest.importorskip("onnxruntime").InferenceSession
    model, folder, new = onnx_model
    made = export_checkpoint(folder, tmp_path / "t.onnx", model=model)
    x = torch.rand(5, 3)
    expected = (x @ new["a.weight"] + new["a.bias"]) @ new["b.weight"]
    (found,) = session_of(tmp_path / "t.onnx").run(None, {"x": x.numpy()})
    assert torch.allclose(torch.from_numpy(found), expected, atol=1e-5)
    assert made.kept == ("shape",)
    export_checkpoint(folder, tmp_path / "t.safetensors", model=str(model))
    assert load_file(tmp_path / "t.safetensors").keys() == {*new, "shape"}


@pytest.mark.slow  # torch.export takes seconds
def test_an_onnx_model_becomes_a_program_with_its_batch_open(onnx_model, tmp_path):
    model, folder, new = onnx_model
    made = export_checkpoint(folder, tmp_path / "t.pt2", model=model)
    program = torch.export.load(made.path)
    assert program.state_dict.keys() == new.keys()
    assert made.fixed == ()
    for samples in (2, 5):
        x = torch.rand(samples, 3)
        (found,) = program.module()(x)
        torch.testing.assert_close(found, (x @ new["a.weight"] + new["a.bias"]) @ new["b.weight"])


def test_what_an_exporter_merged_and_what_constant_nodes_hold_is_written_by_its_own_name(tmp_path):
    onnx = pytest.importorskip("onnx", reason="onnx is an extra")
    run = pytest.importorskip("onnxruntime").InferenceSession
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2, 3] x) => (float[2, 3] y)
        <float[3] "a.weight" = {1, 1, 1}> {
        n = BatchNormalization(x, "a.weight", "a.weight", "a.weight", "a.weight")
        c = Constant<value = float[3] {1, 2, 3}>() y = Add(n, c)
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    folder = tmp_path / "step-000002"
    folder.mkdir()
    new = {name: torch.full((3,), value) for name, value in (("a.weight", 2.0), ("a.running_var", 4.0), ("c", 5.0))}
    write_files(folder, {"weights-0.safetensors": new})
    write_state(folder, replace(STATE, stages=(0,), tied=()))
    made = export_checkpoint(folder, tmp_path / "t.onnx", model=tmp_path / "m.onnx")
    assert made.kept == ("a.running_mean",)
    (found,) = run(tmp_path / "t.onnx").run(None, {"x": torch.ones(2, 3).numpy()})
    assert torch.allclose(torch.from_numpy(found), torch.tensor(7.0))  # (1 - 1) / 2 * 2 + 2 + 5


@pytest.mark.parametrize(
    ("name", "model", "fault"),
    [
        ("m.bin", None, "safetensors.*pt2"),
        ("m.onnx", None, "--model"),
        ("m.pt2", None, "--model"),
        ("m.safetensors", "x.pt2", "'x.pt2'.*torch.export.load"),
        ("m.onnx", Net(0), "module.*model=torch.export.export"),
        ("m.safetensors", nn.Linear(2, 2), "step-000002.*'emb.weight'"),
        ("gone/m.safetensors", None, "folder"),
    ],
)
def test_what_cannot_be_written_is_refused_and_leaves_nothing(trained, tmp_path, name, model, fault):
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError, match=fault):
        export_checkpoint(trained[0], tmp_path / name, model=model)
    assert sorted(tmp_path.iterdir()) == before


def test_another_shape_or_dtype_is_refused(trained, tmp_path):
    wide = Net(0)
    wide.fc = nn.Linear(8, 4, dtype=torch.float64)
    with pytest.raises(InputError, match=r"'fc.bias'.*float32\[4\].*float64\[4\]"):
        export_checkpoint(trained[0], tmp_path / "m.safetensors", model=wide)


def test_a_damaged_checkpoint_is_refused(trained, tmp_path):
    path = trained[0] / "step-000002" / "weights-1.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"weights-1.safetensors"):
        export_checkpoint(trained[0], tmp_path / "m.safetensors")
    for where in (tmp_path / "gone", tmp_path):
        with pytest.raises(RunError, match=re.escape(str(where))):
            export_checkpoint(where, tmp_path / "m.safetensors")


def test_the_command_says_what_it_wrote_and_replaces_nothing_unasked(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["export", str(trained[0]), "-o", "m.safetensors"]
    done = CliRunner().invoke(command, words)
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == [
        "m.safetensors  10 tensors of step-000002",
        "m.safetensors.md  its card",
    ]
    refused = CliRunner().invoke(command, words)
    assert isinstance(refused.exception, InputError) or refused.exit_code == 1
    assert CliRunner().invoke(command, [*words, "--force"]).exit_code == 0
