"""Sizes that depend on the elements of tensors are asked for and refused all at once, with the lines that make them."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import heterps_compile
from heterps_compile.backends.find import find_backend
from heterps_compile.backends.ops import refuse_unsupported
from heterps_compile.errors import BackendError, InputError, UnsupportedOpError
from heterps_compile.frontends.torch_fx import import_torch

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:onnxscript"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
]


class Chooses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        hidden = self.first(x)
        rows = torch.nonzero(hidden.sum(1) > 0)[:, 0]
        chosen = torch.masked_select(hidden, hidden[0] > 0)
        values, places, counts = torch.unique(hidden.round(), return_inverse=True, return_counts=True)
        return self.second(hidden[rows]), chosen, values, places, counts, hidden.amin(), hidden.amax()


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        count = (x[:, 0] > 0).sum().item()
        torch._check(count >= 0)
        torch._check(count <= x.shape[0])
        return self.first(x)[:count].sum(0) + torch.arange(count).sum()


X = torch.linspace(-2, 2, 48).reshape(6, 8).sin()
PLANNED = {"u0": 3, "u1": 20, "u2": 4}


def test_all_sizes_are_asked_for_at_once_with_the_lines_that_make_them() -> None:
    with pytest.raises(InputError) as caught:
        import_torch(Chooses(), (X,))
    message = str(caught.value)
    assert message.startswith(
        "3 sizes of tensors of Chooses depend on data: 'u0' of node 'nonzero' (test_data_sizes.py:"
    )
    assert "'u1' of node 'masked_select' (test_data_sizes.py:" in message
    assert "chosen = torch.masked_select(hidden, hidden[0] > 0)" in message
    assert message.endswith("say what to plan for (shapes={'u0': N, 'u1': N, 'u2': N})")
    with pytest.raises(InputError, match=r"\b1\b.*Chooses.*'u2'.*'_unique2'"):
        import_torch(Chooses(), (X,), shapes={"u0": 3, "u1": 20})


def test_jax_refuses_all_of_them_before_the_search() -> None:
    with pytest.raises(UnsupportedOpError, match=r"'u0'.*'u1'.*'u2'.*'_unique2'"):
        refuse_unsupported(find_backend("jax"), import_torch(Chooses(), (X,), shapes=PLANNED))


def test_onnx_runtime_refuses_a_number_that_it_cannot_have_before_the_search_and_names_its_line() -> None:
    graph = import_torch(Counts(), (X,), shapes={"u0": 3})
    with pytest.raises(
        BackendError,
        match=r"ONNX.*'u0'.*'item'.*test_data_siz",
    ):
        refuse_unsupported(find_backend("onnxruntime"), graph)


@pytest.mark.slow  # torch.export takes seconds
@pytest.mark.parametrize("backend", ["torch", "onnxruntime"])
def test_such_sizes_may_cross_from_stage_to_stage(backend: str) -> None:
    model = Chooses().eval()
    compiled = heterps_compile.compile(
        model, (X,), backend=backend, shapes=PLANNED, min_stages=2, method="greedy", verify=False
    )
    assert any(name in compiled.plan.stages[1].inputs for name in ("select", "nonzero", "index", "select_1"))
    for x in (X, X.flip(0).cos()):
        for ours, theirs in zip(compiled.run(x), model(x), strict=True):
            np.testing.assert_allclose(
                np.asarray(ours.detach() if isinstance(ours, Tensor) else ours), theirs.detach(), atol=1e-5
            )
