"""PyTorch models through the ONNX Runtime backend: tensors in, arrays out, written and read back."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_models import SkipNet, cut_before, cut_into, skip_net, small_ctrdnn

import heterps_compile
from heterps_compile.backends.onnxruntime.backend import OnnxRuntimeBackend
from heterps_compile.backends.ops import refuse_unsupported
from heterps_compile.errors import BackendError
from heterps_compile.frontends.torch_fx import import_torch
from heterps_compile.runtime.in_process import run_stages

pytest.importorskip("onnxscript", reason="torch.onnx.export needs it")

BACKEND = OnnxRuntimeBackend()


@pytest.mark.slow  # torch.export takes seconds
def test_a_module_is_compiled_saved_and_loaded(tmp_path: Path) -> None:
    model, inputs, _ = small_ctrdnn()
    compiled = heterps_compile.compile(model.eval(), inputs, backend="onnxruntime", min_stages=3, method="exact")
    assert compiled.plan.backend == "onnxruntime"
    assert {stage.backend for stage in compiled.plan.stages} == {"onnxruntime"}
    assert compiled.plan.verification is not None
    assert compiled.plan.verification.max_rel < 1e-5
    compiled.save(tmp_path / "out")
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {"", ".json", ".md", ".onnx"}
    loaded = heterps_compile.load(tmp_path / "out")
    found = loaded.run(*inputs)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, model(*inputs).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_a_torch_model_goes_to_torch_where_nothing_is_said() -> None:
    model, inputs, _ = small_ctrdnn()
    assert heterps_compile.compile(model, inputs, method="exact", verify=False).plan.backend == "torch"


def test_stages_take_arrays_and_tensors_alike() -> None:
    module, inputs = skip_net()
    graph = import_torch(module, inputs)
    partition = cut_into(graph, 3)
    stages = BACKEND.build(graph, partition)
    tensors = dict(zip(graph.inputs, inputs, strict=True))
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    from_tensors = run_stages(partition.stages, stages, tensors, graph.outputs)
    from_arrays = run_stages(partition.stages, stages, arrays, graph.outputs)
    for name in graph.outputs:
        np.testing.assert_array_equal(from_tensors[name], from_arrays[name])


def test_nobody_reads_a_stage_of_dead_nodes(tmp_path: Path) -> None:
    class Dead(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x.unsqueeze(0)
            return x * 2

    graph = import_torch(Dead(), (torch.ones(2),))
    partition = cut_before(graph, "mul")
    assert partition.stages[0].outputs == ()
    stages = BACKEND.build(graph, partition)
    files = BACKEND.write(graph, stages, partition.stages, tmp_path)
    for built in (stages, BACKEND.read(tmp_path, files, partition.stages)):
        values = run_stages(partition.stages, built, {"x": torch.ones(2)}, graph.outputs)
        np.testing.assert_array_equal(values["mul"], [2, 2])


def test_a_model_in_training_mode_is_refused_by_node_and_op() -> None:
    torch.manual_seed(0)
    inputs = (torch.randint(0, 11, (4, 3)), torch.rand(4, 3))
    model: Any = SkipNet().train()
    with pytest.raises(BackendError, match=r"SkipNet.*'add_'.*aten.add_.Tensor.*'norm\.\w+'"):
        heterps_compile.compile(model, inputs, backend="onnxruntime", method="exact")
    model.norm.eval()
    with pytest.raises(BackendError, match=r"'dropout'.*aten.dropout.default.*random.*eval"):
        heterps_compile.compile(model, inputs, backend="onnxruntime", method="exact")
    module, inputs = skip_net(training=True)
    graph = import_torch(module, inputs)
    module.norm.eval()
    with pytest.raises(BackendError, match=r"stage 0\b"):
        BACKEND.build(import_torch(module, inputs), cut_into(graph, 1))


class Dropping(torch.nn.Module):
    def __init__(self, function: Any, **options: Any) -> None:
        super().__init__()
        self.function, self.options = function, options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(*[x] * (3 if self.function is attention else 1), **self.options)


attention, functional = torch.nn.functional.scaled_dot_product_attention, torch.nn.functional


@pytest.mark.parametrize("trace", [lambda model: model, torch.fx.symbolic_trace], ids=["exported", "traced"])
@pytest.mark.parametrize(
    ("function", "options", "drops"),
    [
        (functional.dropout, {"p": 0.1}, True),
        (functional.dropout, {"training": False}, False),
        (functional.dropout, {"p": 0.0}, False),
        (attention, {"dropout_p": 0.1}, True),
        (attention, {}, False),
    ],
)
def test_functions_that_drop_are_refused_before_the_search(
    trace: Any, function: Any, options: Any, drops: bool
) -> None:
    graph = import_torch(trace(Dropping(function, **options)), (torch.ones(1, 2, 3, 4),))
    if drops:
        with pytest.raises(BackendError, match=r"dropout|attention"):
            refuse_unsupported(BACKEND, graph)
    else:
        refuse_unsupported(BACKEND, graph)


@pytest.mark.parametrize("trace", [lambda model: model, torch.fx.symbolic_trace], ids=["exported", "traced"])
@pytest.mark.parametrize("recurrent", [torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM])
@pytest.mark.parametrize(("layers", "training", "drops"), [(2, True, True), (1, True, False), (2, False, False)])
@pytest.mark.filterwarnings("ignore:dropout option adds dropout")
def test_recurrent_layers_that_drop_between_them_are_refused_before_the_search(
    trace: Any, recurrent: Any, layers: int, training: bool, drops: bool
) -> None:
    class Reads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = recurrent(4, 3, num_layers=layers, dropout=0.2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)[0]

    graph = import_torch(trace(Reads().train(training)), (torch.ones(5, 2, 4),))
    if drops:
        with pytest.raises(BackendError):
            refuse_unsupported(BACKEND, graph)
    else:
        refuse_unsupported(BACKEND, graph)


def test_values_that_numpy_does_not_have_are_named() -> None:
    class Halves(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    graph = import_torch(Halves(), (torch.ones(2, dtype=torch.bfloat16),))
    stages = BACKEND.build(graph, cut_into(graph, 1))
    with pytest.raises(BackendError, match=r"'x'.*torch.bfloat16"):
        stages[0](torch.ones(2, dtype=torch.bfloat16))
