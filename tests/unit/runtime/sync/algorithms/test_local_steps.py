"""Local steps and predictors of blocks."""

import math

import pytest
import torch

from heterps_compile.errors import InputError
from heterps_compile.runtime.sync.algorithms.local_steps import (
    BlockPredictors,
    average,
    steady_models,
)


def test_a_predictor_is_the_mean_of_its_rounds():
    predictors = BlockPredictors()
    for value in (1.0, 2.0, 6.0):
        predictors.take(3, torch.tensor([value]))
    predictors.take(0, torch.tensor([9.0]))
    assert predictors.of(3).item() == pytest.approx(3.0)
    assert (predictors.of(0).item(), predictors.rounds) == (9.0, {3: 3, 0: 1})


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


def test_what_has_no_mean_or_does_not_settle_is_refused():
    with pytest.raises(InputError, match="client"):
        average([])
    for contraction in (1.0, -0.1, math.nan):
        with pytest.raises(InputError, match=r"\b0\b.*\b1\b"):
            steady_models(torch.zeros(2, 1), contraction)
