"""Where a caller of ``compile()`` stands in PyTorch makes no difference: gradient modes, default dtype, autocast."""

import copy
from contextlib import contextmanager, nullcontext
from functools import partial

import pytest
import torch
from torch import nn

from heterps_compile import compile as compile_model

torch.manual_seed(0)
NETWORK = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3))
SAMPLES = torch.randn(4, 6)


@contextmanager
def float64_by_default():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


WHERE = (nullcontext, torch.no_grad, torch.inference_mode, float64_by_default, partial(torch.autocast, "cpu"))


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_the_plan_and_the_stages_are_the_same_wherever_the_caller_stands(where, mode):
    module = copy.deepcopy(NETWORK).train(mode == "training")
    with where():
        made = compile_model(module, (SAMPLES,), mode=mode, min_stages=2, time_limit=5.0)
    assert made.plan.verification is not None
    assert made.plan.verification.max_rel == 0
    assert torch.is_grad_enabled()
    score = made.eval().run(SAMPLES)
    assert torch.equal(score, copy.deepcopy(module).eval()(SAMPLES))
    assert score.requires_grad
