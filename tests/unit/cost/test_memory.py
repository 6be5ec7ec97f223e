"""What optimisers keep: the laws, and what the optimisers of PyTorch hold after a step."""

import pytest
import torch

from heterps_compile.cost.memory import OPTIMIZERS
from heterps_compile.ir.graph import Parameter

SHAPES = ((7,), (64, 48), (4, 3, 5, 6))
OF_TORCH = {
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
    "adafactor": torch.optim.Adafactor,
}


def kept_bytes(name: str, *shape: int) -> int:
    count = int(torch.Size(shape).numel())
    return OPTIMIZERS[name](Parameter("w", "float32", shape, "w", 4 * count))


@pytest.mark.parametrize("name", list(OF_TORCH))
@pytest.mark.parametrize("shape", SHAPES)
def test_an_optimizer_of_torch_keeps_what_is_counted(name: str, shape: tuple[int, ...]) -> None:
    weight = torch.nn.Parameter(torch.ones(shape))
    optimizer = OF_TORCH[name]([weight])
    weight.grad = torch.ones(shape)
    optimizer.step()
    states = [
        state for state in optimizer.state[weight].values() if isinstance(state, torch.Tensor) and state.numel() > 1
    ]
    assert sum(state.numel() * state.element_size() for state in states) == kept_bytes(name, *shape)


def test_eight_bits_keep_a_byte_an_element_twice_and_a_scale_a_block() -> None:
    assert kept_bytes("adam-8bit", 1024, 1024) == 2 * (1 << 20) + 2 * 4 * (1 << 12)
    assert kept_bytes("adam-8bit", 4097) == 2 * (4097 + 4 * 17)  # the last block is begun
    assert kept_bytes("adam-8bit", 4095) == kept_bytes("adam", 4095)  # small weights keep whole ones
