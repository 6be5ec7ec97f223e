"""Tensors that an exporter merged because they were equal train apart, under the names that the module has for them."""

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn

from heterps_compile.backends.torch.onnx_backend import build_onnx_stages
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import cut_graph


class Fresh(nn.Module):
    """Zeros are a bias, a running mean and two shifts; ones are a scale, a running variance and two scales."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bn = nn.BatchNorm1d(8)
        self.fc = nn.Linear(8, 8)
        nn.init.zeros_(self.fc.bias)
        self.one = nn.LayerNorm(8)
        self.two = nn.LayerNorm(8)
        if tied:
            self.two.weight, self.two.bias = self.one.weight, self.one.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.relu(self.one(torch.relu(self.fc(torch.relu(self.bn(x)))))))


def export(module: nn.Module, path: Path, **options: object) -> Graph:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporters, about themselves
        torch.onnx.export(module, (torch.ones(4, 8),), path, **options)  # type: ignore[arg-type]
    return import_onnx(path)


def kinds(graph: Graph) -> dict[str, str]:
    return {p.name: p.kind for p in graph.parameters.values() if p.dtype == "float32"}


def train(module: nn.Module, steps: int = 4) -> list[float]:
    """Return the losses of some steps, always the same."""
    torch.manual_seed(1)
    optimizer, losses = torch.optim.SGD(module.parameters(), 0.1), []
    for _ in range(steps):
        out = module(torch.randn(4, 8))
        loss = ((out[0] if isinstance(out, tuple) else out) - torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def stage_of(graph: Graph) -> nn.Module:
    (stage,) = build_onnx_stages(graph, cut_graph(graph, [range(len(graph.nodes))]))
    return stage


@pytest.mark.parametrize("tied", [False, True])
def test_a_file_of_the_torchscript_exporter_trains_as_the_module(tied: bool, tmp_path: Path) -> None:
    module = Fresh(tied=tied).eval()
    graph = export(module, tmp_path / "m.onnx", dynamo=False)
    own = dict(module.named_parameters())
    assert {name for name, kind in kinds(graph).items() if kind == "weight"} == own.keys()
    assert {name for name, kind in kinds(graph).items() if kind == "buffer"} == {"bn.running_mean", "bn.running_var"}
    stage = stage_of(graph)
    assert train(stage) == train(module)
    for name, trained in stage.named_parameters():
        torch.testing.assert_close(trained, own[name], rtol=0, atol=0)
    assert any("apart again: " in note for note in graph.source.notes)


@pytest.mark.slow  # the exporter takes seconds
@pytest.mark.parametrize("tied", [False, True])
def test_a_file_of_the_dynamo_exporter_trains_as_the_module(tied: bool, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="torch.onnx.export(dynamo=True) needs it")
    module = Fresh(tied=tied).eval()
    graph = export(module, tmp_path / "m.onnx", dynamo=True, verbose=False, external_data=False)
    own = set(module.state_dict()) - {"bn.num_batches_tracked", "fc.bias"}
    assert kinds(graph).keys() == (own - {"one.weight", "one.bias"} if tied else own)
    assert [note.partition("that")[0] for note in graph.source.training_notes] == [
        "not trained: 1 parameter of the module ('fc.bias') "
    ]
    module.fc.bias.requires_grad_(False)  # which the exporter left out
    np.testing.assert_allclose(train(stage_of(graph)), train(module), rtol=1e-6)


def recorded(graph: str, weights: dict[str, str | None], calls: dict[str, str], producer: str = "pytorch") -> Graph:
    """Return a graph whose initialisers are fours of zeros with a placeholder, and whose nodes came from calls."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20], producer_name: "{producer}">\n{graph}')
    for name, placeholder in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(np.zeros(4, np.float32), name))
        info = model.graph.value_info.add()
        info.CopyFrom(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]))
        if placeholder is not None:
            kind = {"p": "PARAMETER", "b": "BUFFER"}[placeholder[0]]
            for key, text in (
                ("pkg.torch.onnx.original_node_name", placeholder),
                ("pkg.torch.export.graph_signature.InputSpec.kind", kind),
            ):
                entry = info.metadata_props.add()
                entry.key, entry.value = key, text
    for node in model.graph.node:
        if node.output[0] in calls:
            for key, text in (
                (
                    "pkg.torch.onnx.fx_node",
                    f"%c : [num_users=1] = call_function[target=t](args = ({calls[node.output[0]]}",
                ),
                ("pkg.torch.onnx.name_scopes", f"['', '{node.output[0].replace('_', '.')}', 'call']"),
            ):
                entry = node.metadata_props.add()
                entry.key, entry.value = key, text
    return import_onnx(model)


NORMS = """g (float[2, 4] x) => (float[2, 4] l_1) {
    l_0 = LayerNormalization(x, w, w) r = Relu(l_0) l_1 = LayerNormalization(r, w, w)
}"""


NORM = "BatchNormalization_0"


def test_what_a_call_read_is_told_by_its_placeholders() -> None:
    calls = {"l_0": "%x, [4], %p_l_0_weight, %p_l_0_bias, 1e-05", "l_1": "%r, [4], %p_l_1_weight, %p_l_1_bias, 1e-05"}
    graph = recorded(NORMS, {"w": "p_l_0_weight"}, calls)
    assert [node.inputs[1:] for node in graph.nodes if len(node.inputs) > 1] == [
        ("w", "l.0.bias"),
        ("l.1.weight", "l.1.bias"),
    ]


def test_one_tensor_of_the_module_stays_one() -> None:
    calls = {"l_0": "%x, [4], %p_l_0_weight, %p_l_0_bias, 1e-05", "l_1": "%r, [4], %p_l_0_weight, %p_l_0_bias, 1e-05"}
    graph = recorded(NORMS, {"w": "p_l_0_weight"}, calls)
    assert list(kinds(graph)) == ["w", "l.0.bias"]
    assert not any("one tensor each" in note for note in graph.source.notes)


def test_where_nothing_is_recorded_uses_in_one_role_stay_tied_and_that_is_told() -> None:
    graph = recorded(NORMS, {"w": None}, {}, producer="another")
    assert list(kinds(graph)) == ["w"]
    (note,) = [note for note in graph.source.notes if "one tensor each" in note]
    assert note.startswith(
        "one tensor each, though 4 nodes read it as a weight and all its elements are equal: 'w'; if"
    )


def test_a_running_statistic_is_no_weight_whoever_wrote_the_model() -> None:
    text = "g (float[2, 4] x) => (float[2, 4] y) { y = BatchNormalization(x, w, w, w, w) }"
    graph = recorded(text, {"w": None}, {}, producer="another")
    assert kinds(graph) == {"w": "weight", f"{NORM}.running_mean": "buffer", f"{NORM}.running_var": "buffer"}
    stage = stage_of(graph)
    before = stage.state_dict()[f"{NORM}.running_var"].clone()
    stage(torch.ones(2, 4))[0].sum().backward()
    assert [name for name, p in stage.named_parameters() if p.grad is not None] == ["w"]
    assert torch.equal(stage.state_dict()[f"{NORM}.running_var"], before)


def test_buffers_and_literals_of_the_exporter_do_not_train() -> None:
    text = """g (float[2, 4] x) => (float[2, 4] y) {
        a = Mul(x, mean) b = Add(a, val_3) y = Mul(b, w)
    }"""
    graph = recorded(text, {"mean": "b_mean", "val_3": None, "w": "p_w"}, {"a": "%x, %b_mean", "y": "%b, %p_w"})
    assert kinds(graph) == {"mean": "buffer", "val_3": "constant", "w": "weight"}
