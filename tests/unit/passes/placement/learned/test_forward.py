"""The policy in numpy is the policy in PyTorch."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from heterps_compile.cost.synthetic import Recipe, synthetic_problem
from heterps_compile.passes.placement.learned.forward import (
    network_input,
    network_output,
    propose_at,
    shipped_weights,
)
from heterps_compile.passes.placement.learned.policy import shipped_policy

PROBLEM = synthetic_problem(Recipe(seed=2, layers=40, types=5, branched=True, limited=True))
GOALS = [PROBLEM.min_throughput * factor for factor in (1, 2, 5)]


def test_the_forward_pass_is_that_of_torch() -> None:
    features = network_input(PROBLEM, GOALS).astype(np.float64)
    exact = {name: weight.astype(np.float64) for name, weight in shipped_weights().items()}
    with torch.no_grad():
        theirs = [part.numpy() for part in shipped_policy().double()(torch.from_numpy(features))]
    ours = network_output(exact, features)
    assert [part.shape for part in ours] == [(40, 3, 5), (40, 3)]
    for part, other in zip(ours, theirs, strict=True):
        assert part == pytest.approx(other, abs=1e-6)
    for proposal, row in zip(
        propose_at(shipped_weights(), PROBLEM, GOALS), range(3), strict=True
    ):  # in single precision
        assert proposal.throughput == GOALS[row]
        assert proposal.scores == pytest.approx(theirs[0][:, row], abs=1e-5)
        assert proposal.begin_logits == pytest.approx(theirs[1][:, row], abs=1e-5)


def test_the_default_method_anneals_from_the_policy_without_importing_torch() -> None:
    script = """
import sys
from heterps_compile.cost.synthetic import Recipe, synthetic_problem
from heterps_compile.passes.placement.best import Best, Turns
from heterps_compile.passes.placement.learned import forward
from heterps_compile.passes.placement.local.annealing import Annealing
used = []
forward.network_output = lambda *arguments, inner=forward.network_output: (used.append(1), inner(*arguments))[1]
problem = synthetic_problem(Recipe(seed=5, layers=10, types=3, limited=True, tight_memory=True))
Best(turns=Turns(alone_work=0), annealing=Annealing(changes=100, patience=1))(problem)
print(len(used), sorted({"torch", "safetensors"} & set(sys.modules)))
"""
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env=dict(os.environ), check=True
    )
    assert told.stdout == "1 []\n"
