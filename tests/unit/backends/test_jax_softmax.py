"""The softmax of jax stages: right where the compiler computes its input twice, differentiable everywhere."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from light_models import path

import heterps_compile
from heterps_compile.backends.jax.ops.elementwise import log_softmax, softmax


@pytest.mark.slow  # a compilation of a model of images with jax
def test_huge_logits_that_rounding_spreads_stay_finite() -> None:
    """The weights of the shipped model are constants: its logits are 7e9, and alike but for rounding."""
    compiled = heterps_compile.compile(path("squeezenet"), backend="jax", method="greedy", min_stages=4)
    assert compiled.plan.verification is not None
    assert compiled.plan.verification.max_rel < 1e-4


@pytest.mark.parametrize(("ours", "theirs"), [(softmax, jax.nn.softmax), (log_softmax, jax.nn.log_softmax)])
def test_values_and_gradients_are_those_of_jax(ours, theirs) -> None:  # type: ignore[no-untyped-def]
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)).at[0].set(1.0)  # ties too
    weight = jnp.arange(15.0).reshape(3, 5)
    np.testing.assert_allclose(ours(x, axis=1), theirs(x, axis=1), rtol=1e-6, atol=1e-7)
    mine, his = (jax.grad(lambda x, f=f: jnp.sum(weight * f(x, axis=1)))(x) for f in (ours, theirs))
    np.testing.assert_allclose(mine, his, rtol=1e-5, atol=1e-5)
