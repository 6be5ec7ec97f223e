"""Norms of layers that are split over replicas."""

import pytest
import torch

from heterps_compile.runtime.layerwise import lamb_ratios, lars_ratios, squares_in_stretch

SIZES = [3, 0, 1000, 1, 77, 4096]


def summed(flat: torch.Tensor, replicas: int) -> torch.Tensor:
    return sum(squares_in_stretch(flat.split(SIZES), replica, replicas) for replica in range(replicas))


@pytest.mark.parametrize("replicas", [1, 3, 8])
def test_a_step_of_lars_and_lamb_is_the_serial_one(replicas):
    torch.manual_seed(1)
    weights, gradient = torch.randn(2, sum(SIZES))
    lars = lars_ratios(summed(weights, replicas), summed(gradient, replicas), trust=0.02, decay=0.1)
    lamb = lamb_ratios(summed(weights, replicas), summed(gradient, replicas))
    for layer, (w, g) in enumerate(zip(weights.split(SIZES), gradient.split(SIZES), strict=True)):
        if w.numel():
            assert lars[layer].item() == pytest.approx(0.02 * (w.norm() / (g.norm() + 0.1 * w.norm())).item(), rel=1e-6)
            assert lamb[layer].item() == pytest.approx((w.norm() / g.norm()).item(), rel=1e-6)


def test_a_layer_of_zeros_steps_with_the_plain_rate():
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    for ratios in (lars_ratios, lamb_ratios):
        assert [ratios(*pair).item() for pair in ((zero, one), (one, zero), (zero, zero))] == [1.0, 1.0, 1.0]


def test_stretches_are_equal_and_leave_nothing_out():
    layers = torch.arange(6.0).split([1, 2, 3])
    squares = [squares_in_stretch(layers, replica, 2).tolist() for replica in range(2)]
    assert squares == [[0.0, 5.0, 0.0], [0.0, 0.0, 50.0]]
