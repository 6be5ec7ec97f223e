"""Regions that torch.export wraps into sub-graphs are put in line, so that they can be cut and written."""

import pytest
import torch
from torch import Tensor, nn

from heterps_compile.backends.torch.backend import TorchBackend
from heterps_compile.errors import BackendError, InputError
from heterps_compile.frontends.torch_fx import import_torch
from heterps_compile.ir.partition import cut_graph
from heterps_compile.runtime.in_process import run_stages

BACKEND = TorchBackend()
X = torch.linspace(-1, 1, 24).reshape(3, 8)


class Regions(nn.Module):
    """A layer in the open, one in a region, and one behind it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.inner, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def region(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.region(self.first(x)))


class AutocastOff(Regions):
    def region(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return self.inner(x).tanh()


class AutocastOffWithoutGradients(Regions):
    """As rotary embeddings often have it."""

    def region(self, x: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            scale = self.inner(x).tanh()
        return x * scale


class WithoutGradientsInAutocastOff(Regions):
    """torch.export forgets the ``no_grad`` of it, so written it would train what the model does not."""

    def region(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            with torch.no_grad():
                scale = self.inner(x).tanh()
            return x * scale


class AutocastOnWithoutGradients(Regions):
    def region(self, x: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            half = self.inner(x).tanh()
        return half.float()


class AutocastOn(Regions):
    def region(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            half = self.inner(x).tanh()
        return half.float()


@pytest.mark.parametrize("kind", [AutocastOff, AutocastOffWithoutGradients])
def test_a_region_is_cut_and_written_and_has_the_gradients_of_the_model(kind, tmp_path):
    model = kind()
    graph = import_torch(model, (X,))
    cuts = cut_graph(graph, [range(2), range(2, len(graph.nodes))])
    files = BACKEND.write(graph, BACKEND.build(graph, cuts), cuts.stages, tmp_path)
    stages = BACKEND.read(tmp_path, files, cuts.stages)
    (result,) = run_stages(cuts.stages, stages, {graph.inputs[0]: X}, graph.outputs).values()
    expected = model(X)
    assert torch.equal(result, expected)
    result.square().sum().backward()
    expected.square().sum().backward()
    found = {name: p.grad for stage in stages for name, p in stage.named_parameters()}
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=0, atol=0)


def test_a_sub_graph_in_a_region_is_refused():
    with pytest.raises(InputError, match="wrap_with_autocast"):
        import_torch(AutocastOnWithoutGradients(), (X,))


@pytest.mark.parametrize("kind", [AutocastOn, WithoutGradientsInAutocastOff])
def test_other_regions_run_in_memory_and_are_not_written(kind, tmp_path):
    model = kind()
    graph = import_torch(model, (X,))
    cuts = cut_graph(graph, [range(len(graph.nodes))])
    stages = BACKEND.build(graph, cuts)
    (result,) = run_stages(cuts.stages, stages, {graph.inputs[0]: X}, graph.outputs).values()
    assert torch.equal(result, model(X))
    with pytest.raises(BackendError, match=r"wrap_with_autocast.*PyTorch's"):
        BACKEND.write(graph, stages, cuts.stages, tmp_path)
