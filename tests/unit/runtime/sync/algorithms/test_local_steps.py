"""Local steps and predictors of blocks."""

import math

import pytest
import torch

from heterps_compile.errors import InputError
from heterps_compile.runtime.sync.algorithms.local_steps import (
    BlockPredictors,
    average,
    block_loss,
    steady_models,
)


def chain(centres: torch.Tensor, contraction: float, cycles: int) -> BlockPredictors:
    """Return predictors of a chain that begins far away, of its models of the last cycle."""
    model, predictors = torch.full(centres.shape[1:], 100.0, dtype=centres.dtype), BlockPredictors()
    for cycle in range(cycles):
        for block, centre in enumerate(centres):
            model = centre + contraction * (model - centre)
            if cycle == cycles - 1:
                predictors.take(block, model)
    return predictors


@pytest.mark.parametrize(("blocks", "contraction"), [(5, 0.1), (2, 0.5), (7, 0.9), (1, 0.3), (3, 0.0)])
def test_a_chain_settles_where_the_formula_says(blocks, contraction):
    torch.manual_seed(0)
    centres = torch.randn(blocks, 4, dtype=torch.float64)
    predictors = chain(centres, contraction, 2 + math.ceil(40 / -math.log10(contraction or 1e-20) / blocks))
    found = torch.stack([predictors.of(block) for block in range(blocks)])
    assert (found - steady_models(centres, contraction)).abs().max() < 1e-12


def unit_losses(blocks: int, q: float) -> tuple[float, float, float]:
    """Losses of orthonormal centres, by hand.

    With w_j = (1 - q) q^j / (1 - q^M), of which the sum is 1: |x_m - c_m|^2 = (1 - w_0)^2 + sum over j > 0 of w_j^2;
    the best single model is the mean, at 1 - 1/M; the last model is at 1 + sum of w_j^2 - 2/M of them in the mean.
    """
    weights = [(1 - q) * q**j / (1 - q**blocks) for j in range(blocks)]
    squares = sum(w * w for w in weights)
    own = (1 - weights[0]) ** 2 + squares - weights[0] ** 2
    return own / 2, (1 - 1 / blocks) / 2, (1 + squares - 2 / blocks) / 2


def test_losses_of_orthonormal_centres():
    """M 5, q 0.1: 0.00909, 0.4 and 0.709."""
    centres = torch.eye(5, dtype=torch.float64)
    models = steady_models(centres, 0.1)
    found = block_loss(models, centres), block_loss(centres.mean(0), centres), block_loss(models[-1], centres)
    assert found == pytest.approx(unit_losses(5, 0.1), rel=1e-12)
    assert found == pytest.approx((0.00909, 0.4, 0.70909), abs=1e-5)


def test_losses_of_gaussian_centres_are_in_the_mean_those_of_orthonormal_ones():
    """Of any centres that are independent with mean 0, by dimension. 4,000 draws: 4 standard errors of each."""
    torch.manual_seed(0)
    draws = []
    for centres in torch.randn(4000, 5, 1, dtype=torch.float64):
        models = steady_models(centres, 0.1)
        draws.append([block_loss(one, centres) for one in (models, centres.mean(0), models[-1])])
    found = torch.tensor(draws, dtype=torch.float64)
    error = (found.mean(0) - torch.tensor(unit_losses(5, 0.1))).abs()
    assert (error <= 4 * found.std(0) / 4000**0.5).all()


def two_waves(slow: float, fast: float, phase: float) -> torch.Tensor:
    at = torch.arange(5, dtype=torch.float64) * 2 * math.pi / 5
    return (slow * torch.cos(at + phase) + fast * torch.cos(2 * at + phase))[:, None]


def test_every_set_of_five_centres_loses_between_the_two_waves():
    """Centres are waves of 1 or 2 turns a cycle; a chain loses |q (1 - e)|^2 / |1 - q e|^2 of one of angle e.

    With q = 0.1: 0.01458 of the slow one, and 0.03088 of the fast one, in parts of the loss of the best single model.
    """
    slow, fast = (
        0.01 * (2 - 2 * math.cos(turn)) / (1.01 - 0.2 * math.cos(turn)) for turn in (2 * math.pi / 5, 4 * math.pi / 5)
    )
    for weights, share in (((1.0, 0.0), slow), ((0.0, 1.0), fast)):
        centres = two_waves(*weights, 0.3)
        assert block_loss(steady_models(centres, 0.1), centres) == pytest.approx(share * 0.25, rel=1e-12)
    assert slow < 0.0087 / 0.370 < fast


def test_a_predictor_is_the_mean_of_its_rounds():
    predictors = BlockPredictors()
    for value in (1.0, 2.0, 6.0):
        predictors.take(3, torch.tensor([value]))
    predictors.take(0, torch.tensor([9.0]))
    assert predictors.of(3).item() == pytest.approx(3.0)
    assert (predictors.of(0).item(), predictors.rounds) == (9.0, {3: 3, 0: 1})


def test_a_predictor_does_not_follow_the_tensor_it_took():
    predictors, model = BlockPredictors(), torch.tensor([1.0])
    predictors.take(0, model)
    model.zero_()
    assert predictors.of(0).item() == 1.0


def test_the_better_of_two_chains_is_taken():
    predictors = BlockPredictors()
    mixed, separate = torch.tensor([1.0]), torch.tensor([5.0])
    assert predictors.take_better(0, (mixed, 0.3), (separate, 0.2))
    assert not predictors.take_better(1, (mixed, 0.2), (separate, 0.2))
    assert (predictors.of(0).item(), predictors.of(1).item()) == (5.0, 1.0)


def test_a_block_without_a_round_is_refused():
    predictors = BlockPredictors()
    predictors.take(2, torch.zeros(1))
    with pytest.raises(InputError, match=r"block 1\b.*yet.*with.*\b2\b"):
        predictors.of(1)


def test_the_error_falls_as_one_over_the_clients():
    """x <- x - 0.2 (x + noise) on every client, averaged every 4 steps: as all is linear, the averaged model has
    the noise of N clients, and its variance is 0.2 / (2 - 0.2) / N = 0.1111 / N at every averaging."""
    dimensions, rate = 20_000, 0.2
    torch.manual_seed(0)
    for clients in (1, 4, 16):
        model = torch.zeros(dimensions, dtype=torch.float64)
        for _ in range(12):  # 48 steps: 0.8**96 of the beginning is left
            locals_ = [model.clone() for _ in range(clients)]
            for local in locals_:
                for _ in range(4):
                    local.sub_(rate * (local + torch.randn(dimensions, dtype=torch.float64)))
            model = average(locals_)
        variance = model.square().mean().item()
        # a variance of D draws has the relative error (2 / D)^0.5
        assert variance == pytest.approx(rate / (2 - rate) / clients, rel=4 * (2 / dimensions) ** 0.5)


def test_what_has_no_mean_or_does_not_settle_is_refused():
    with pytest.raises(InputError, match="client"):
        average([])
    for contraction in (1.0, -0.1, math.nan):
        with pytest.raises(InputError, match=r"\b0\b.*\b1\b"):
            steady_models(torch.zeros(2, 1), contraction)
