"""Sparse optimisers do what torch's do."""

from functools import partial

import numpy as np
import pytest
import torch
from direct_servers import make_spec

from heterps_compile.errors import RunError, UnknownNameError
from heterps_compile.runtime.servers.optimizers import Adagrad, Adam, Sgd, SparseOptimizer, sparse_optimizer
from heterps_compile.runtime.servers.server import Server

ROWS, WIDTH = 12, 5


def sparse_steps(seed: int = 0):
    """Yield eight steps of gradients that touch some rows each: (rows, gradients)."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(8):
        rows = torch.randperm(ROWS, generator=generator)[:5].sort().values
        yield rows, torch.randn(len(rows), WIDTH, generator=generator)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Sgd(0.1), partial(torch.optim.SGD, lr=0.1)),
        (Adagrad(0.1), partial(torch.optim.Adagrad, lr=0.1)),
        (Adagrad(0.1, initial_accumulator=0.3), partial(torch.optim.Adagrad, lr=0.1, initial_accumulator_value=0.3)),
        (Adam(0.1), partial(torch.optim.SparseAdam, lr=0.1)),
    ],
    ids=["sgd", "adagrad", "adagrad from 0.3", "adam"],
)
def test_equals_torch_on_sparse_gradients(ours: SparseOptimizer, theirs):
    weights = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
    parameter = torch.nn.Parameter(weights.clone())
    optimizer = theirs([parameter])
    mine = weights.numpy().copy()
    state = np.full((ROWS, ours.states * WIDTH), ours.initial, np.float32)
    for step, (rows, gradients) in enumerate(sparse_steps(), start=1):
        with torch.sparse.check_sparse_tensor_invariants():  # torch warns where nobody says whether it should check
            parameter.grad = torch.sparse_coo_tensor(rows[None], gradients, (ROWS, WIDTH), is_coalesced=True)
            optimizer.step()
        some, some_state = mine[rows], state[rows]
        ours.update(some, some_state, gradients.numpy(), step, 0.1)
        mine[rows], state[rows] = some, some_state
    np.testing.assert_allclose(mine, parameter.detach().numpy(), rtol=1e-6, atol=1e-7)


def test_momentum_equals_torch_where_every_row_is_touched():
    weights = torch.randn(ROWS, WIDTH)
    parameter = torch.nn.Parameter(weights.clone())
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    mine, state, ours = weights.numpy().copy(), np.zeros((ROWS, WIDTH), np.float32), Sgd(0.1, momentum=0.9)
    for step in range(1, 6):
        parameter.grad = torch.randn(ROWS, WIDTH)
        optimizer.step()
        ours.update(mine, state, parameter.grad.numpy(), step, 0.1)
    np.testing.assert_allclose(mine, parameter.detach().numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Sgd(0.1, weight_decay=0.2), torch.optim.SGD),
        (Adagrad(0.1, weight_decay=0.2), torch.optim.Adagrad),
        (Adam(0.1, weight_decay=0.2), torch.optim.Adam),
    ],
    ids=["sgd", "adagrad", "adam"],
)
def test_weight_decay_and_schedule_equal_torch_where_every_row_is_touched(ours: SparseOptimizer, theirs):
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(ROWS, WIDTH, generator=generator)
    parameter = torch.nn.Parameter(weights.clone())
    optimizer = theirs([parameter], lr=0.1, weight_decay=0.2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    mine, state = weights.numpy().copy(), np.full((ROWS, ours.states * WIDTH), ours.initial, np.float32)
    for step in range(1, 6):
        # away from zero with its decay: Adam divides a gradient by its own size, and so the rounding of a tiny one
        signs = torch.randn(ROWS, WIDTH, generator=generator).sign()
        parameter.grad = signs * (1 + torch.rand(ROWS, WIDTH, generator=generator))
        ours.update(mine, state, parameter.grad.numpy(), step, optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    np.testing.assert_allclose(mine, parameter.detach().numpy(), rtol=1e-6, atol=1e-6)


def test_a_row_that_no_step_touches_does_not_decay(tmp_path):
    spec = make_spec(tmp_path, {"emb": torch.ones(4, 1)}, servers=1, optimizer=Sgd(0.5, weight_decay=0.5))
    shard = Server(spec, 0).shards[0]
    for _ in range(2):
        shard.push(np.array([2]), np.zeros((1, 1), np.float32))
    (_, records), *_ = shard.records()
    assert records[:, 0].tolist() == [1, 1, 0.75**2, 1]


def test_names():
    assert [sparse_optimizer(name, 0.1).name for name in ("sgd", "adagrad", "adam")] == ["sgd", "adagrad", "adam"]
    with pytest.raises(UnknownNameError, match="'adam'"):
        sparse_optimizer("adamw", 0.1)


@pytest.mark.parametrize("lr", [0.0, -1.0, float("nan")])
def test_a_learning_rate_is_above_zero(lr: float):
    with pytest.raises(RunError, match=r"\b0\b"):
        sparse_optimizer("sgd", lr)


@pytest.mark.parametrize("weight_decay", [-1.0, float("inf")])
def test_a_weight_decay_is_not_below_zero(weight_decay: float):
    with pytest.raises(RunError, match=r"\b0\b"):
        sparse_optimizer("sgd", 0.1, weight_decay)


def test_betas_are_below_one():
    with pytest.raises(RunError, match=r"beta2.*\b1\b"):
        Adam(0.1, beta2=1.0)
