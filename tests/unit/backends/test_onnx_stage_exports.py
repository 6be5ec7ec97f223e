"""PyTorch stages become ONNX models that say what their cuts say and give what the model gives."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import Tensor, fx, nn
from torch_models import BACKEND as TORCH
from torch_models import REAL, cut_before, cut_into, llama, skip_net, t5, whisper

from heterps_compile.backends.onnx_stage.exporter_registry import read_once
from heterps_compile.backends.onnx_stage.stage_models import stage_models
from heterps_compile.errors import BackendError, MissingPackageError
from heterps_compile.frontends.onnx_session import open_session
from heterps_compile.frontends.torch_fx import import_torch
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import Partition, cut_graph

pytest.importorskip("onnxscript", reason="torch.onnx.export needs it")


def run_models(partition: Partition, models: tuple[ir.Model, ...], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Check every model and run them in order; give every value."""
    live = {name: np.asarray(value) for name, value in inputs.items()}
    for cut, model in zip(partition.stages, models, strict=True):
        onnx.checker.check_model(ir.to_proto(model), full_check=True)
        assert [value.name for value in model.graph.inputs] == list(cut.inputs)
        assert [value.name for value in model.graph.outputs] == list(cut.outputs)
        if cut.outputs:
            session = open_session(model)
            live.update(zip(cut.outputs, session.run(cut.outputs, {n: live[n] for n in cut.inputs}), strict=True))
    return live


def worst_difference(graph: Graph, partition: Partition, inputs: Mapping[str, Any]) -> float:
    """Return the largest difference from the model as its owner wrote it, relative to an output's scale."""
    live = run_models(partition, stage_models(graph, partition), inputs)
    worst = 0.0
    for name, value in zip(graph.outputs, TORCH.reference(graph)(inputs), strict=True):
        theirs = np.asarray(value.detach() if isinstance(value, Tensor) else value)
        assert (live[name].dtype, live[name].shape) == (theirs.dtype, theirs.shape)
        worst = max(worst, float(np.abs(live[name] - theirs).max() / np.abs(theirs).max()))
    return worst


QUICK = ("small_ctrdnn",)  # exported within a second or two; the others repeat what is in it


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, marks=[] if make.__name__ in QUICK else pytest.mark.slow, id=make.__name__)
        for make in (*REAL.values(), t5, llama, whisper)
    ],
)
def test_three_stages_of_a_real_model_give_what_it_gives(make: Any) -> None:
    model, args, kwargs = make()
    graph = import_torch(model.eval(), args, kwargs)
    assert worst_difference(graph, cut_into(graph, 3), TORCH.example_inputs(graph, 0)) < 1e-5


@pytest.mark.slow  # torch.export takes seconds
def test_initializers_are_the_models_parameters_and_share_their_memory() -> None:
    module, inputs = skip_net()
    graph = import_torch(module, inputs)
    partition = cut_into(graph, 3)
    tensors = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}
    for cut, model in zip(partition.stages, stage_models(graph, partition), strict=True):
        assert set(model.graph.initializers) <= set(cut.parameters)
        for name, held in model.graph.initializers.items():
            assert held.const_value is not None
            assert np.shares_memory(held.const_value.numpy(), tensors[name].detach().numpy())


class Varying(nn.Module):
    """Reshapes by its batch, so that the number itself crosses between stages."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.relu(self.first(x))
        return self.second(wide.view(x.shape[0], 2, 4)).reshape(x.shape[0] * 2, 3)


@pytest.mark.slow  # torch.export takes seconds
def test_a_varying_batch_stays_one_in_every_stage() -> None:
    torch.manual_seed(0)
    graph = import_torch(
        Varying().eval(), (torch.randn(3, 6),), batch=3, dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    partition = cut_into(graph, 3)
    models = stage_models(graph, partition)
    assert [list(value.shape or ()) for value in models[0].graph.inputs] == [[ir.SymbolicDim("batch"), 6]]
    (last,) = models[-1].graph.outputs
    assert last.shape is not None
    assert last.shape[0] == ir.SymbolicDim(None)  # twice the batch has no name of its own
    assert any(not graph.values[name].shape for cut in partition.stages for name in cut.outputs)
    for batch in (1, 3, 7):
        x = torch.randn(batch, 6)
        found = run_models(partition, models, {graph.inputs[0]: x})[graph.outputs[0]]
        (whole,) = TORCH.reference(graph)({graph.inputs[0]: x})
        np.testing.assert_allclose(found, whole.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_an_output_that_is_an_input_or_given_twice_has_a_node_of_its_own() -> None:
    def same(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.contiguous(), (x * 2).contiguous()

    module = fx.GraphModule(nn.Module(), fx.symbolic_trace(same).graph)
    graph = import_torch(module, (torch.randn(2, 3),))
    (model,) = stage_models(graph, cut_graph(graph, [range(len(graph.nodes))]))
    assert len({value.producer() for value in model.graph.outputs}) == len(model.graph.outputs)
    assert worst_difference(graph, cut_graph(graph, [range(len(graph.nodes))]), TORCH.example_inputs(graph, 0)) == 0


def test_a_stage_that_reads_nothing_is_made_of_constants() -> None:
    class Shifted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.arange(4, dtype=torch.float32).unsqueeze(0) + x

    graph = import_torch(Shifted(), (torch.randn(2, 4),))
    partition = cut_before(graph, graph.nodes[-1].name)
    first, _ = stage_models(graph, partition)
    assert [node.op_type for node in first.graph] == ["Constant"]
    assert worst_difference(graph, partition, TORCH.example_inputs(graph, 0)) == 0


def test_nothing_of_the_exporter_or_of_the_users_source_is_in_a_stage() -> None:
    module, inputs = skip_net()
    graph = import_torch(module, inputs)
    for number, model in enumerate(stage_models(graph, cut_into(graph, 2))):
        assert (model.graph.name, model.producer_name) == (f"stage_{number}", "heterps-compile")
        assert b".py" not in ir.to_proto(model).SerializeToString()


def test_an_op_that_onnx_does_not_have_is_named_with_its_stage() -> None:
    class Solves(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.cholesky(x @ x.mT + torch.eye(3))

    graph = import_torch(Solves(), (torch.randn(3, 3),))
    with pytest.raises(BackendError, match=r"stage 1\b.*ONNX.*'linalg_cholesky_ex'"):
        stage_models(graph, cut_before(graph, graph.nodes[-1].name))


class Applies(nn.Module):
    """A layer, and a function of what it gives."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.function = nn.Linear(8, 8), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))


BOUNDS = torch.tensor([-0.5, 0.0, 0.25])


@pytest.mark.slow  # torch.export takes seconds
@pytest.mark.parametrize(
    "function",
    [
        lambda h: torch.cdist(h, h[:2] + 1),
        lambda h: torch.cdist(h[None], h[None, :2], p=1.0),
        lambda h: torch.cdist(h, h[:2], p=float("inf")),
        lambda h: torch.cdist(h, h[:2], p=3.0),
        lambda h: torch.cdist(h, h[:2], p=0.0),
        lambda h: torch.searchsorted(BOUNDS, h, right=True),
        lambda h: torch.searchsorted(h.sort(1)[0], h * 2, side="left", out_int32=True),
        lambda h: torch.bucketize(h, BOUNDS),
        lambda h: h.cumprod(1) + h.prod(0),
    ],
)
def test_what_the_exporter_does_not_know_is_written_with_other_ops(function: Callable[[Tensor], Tensor]) -> None:
    graph = import_torch(Applies(function), (torch.randn(4, 8),))
    partition = cut_before(graph, graph.nodes[1].name)
    assert worst_difference(graph, partition, TORCH.example_inputs(graph, 0)) < 1e-6


def test_numbers_before_tensors_and_sums_of_bools_mean_what_pytorch_means() -> None:
    class Counts(nn.Module):
        def forward(self, m: Tensor) -> tuple[Tensor, ...]:
            is_one, is_large = m > 0, m > 1
            reversed_ones = (1.5 - m, 1 - m.int(), 0.1 - m.double(), torch.rsub(m, 1.5, alpha=2), 1.7 - m.sum())
            divided = (7.0 // (m + 1), 7 // (m + 1))
            sums = (is_one + is_large, is_one + True, is_one + (m.sum() > 0), torch.add(is_one, is_large, alpha=False))
            return (*reversed_ones, *divided, *sums)

    module = Counts()
    m = torch.randint(0, 3, (4, 8))
    graph = import_torch(module, (m,))
    partition = cut_into(graph, 1)
    live = run_models(partition, stage_models(graph, partition), {graph.inputs[0]: m})
    for name, value in zip(graph.outputs, module(m), strict=True):
        assert live[name].dtype == value.numpy().dtype
        np.testing.assert_allclose(live[name], value.numpy(), rtol=1e-6)


def test_the_exporters_table_is_read_once_and_an_export_changes_only_its_own_copy() -> None:
    from torch.onnx._internal.exporter._registration import ONNXRegistry  # noqa: PLC0415 - what is looked after

    original = ONNXRegistry.from_torchlib
    with read_once():
        first, second = ONNXRegistry.from_torchlib(), ONNXRegistry.from_torchlib()
        first.register_op(torch.ops.aten.relu.default, lambda x: x)
    assert len(first.functions["aten::relu"]) == len(second.functions["aten::relu"]) + 1
    assert first.functions.keys() == second.functions.keys() == original().functions.keys()
    assert ONNXRegistry.from_torchlib == original


def test_numbers_of_a_float64_model_are_not_rounded_to_float32() -> None:
    def scaled(h: Tensor) -> Tensor:
        return (h * 0.3 + h**0.7).clamp(-0.1, 0.2).masked_fill(h > 1, 1 / 3) + torch.full((8,), 0.7).double()

    module = Applies(lambda h: scaled(h.abs()) + 2 / 3).double()
    graph = import_torch(module, (torch.randn(4, 8).double(),))
    partition = cut_before(graph, graph.nodes[1].name)
    assert worst_difference(graph, partition, TORCH.example_inputs(graph, 0)) < 1e-15


def test_complex_numbers_do_not_cross() -> None:
    class Waves(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.fft(x).abs()

    graph = import_torch(Waves(), (torch.randn(2, 4),))
    with pytest.raises(BackendError, match=r"stage 0\b.*ONNX.*complex64"):
        stage_models(graph, cut_before(graph, graph.nodes[-1].name))


def test_without_the_exporters_package_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    module, inputs = skip_net()
    graph = import_torch(module, inputs)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingPackageError, match=r"onnxscript.*'.*\[export\]'"):
        stage_models(graph, cut_into(graph, 1))
