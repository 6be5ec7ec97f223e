"""What verification does where a run would not fit the memory that is free."""

import numpy as np
import pytest
from staged_onnx import parse

import heterps_compile
from heterps_compile.verification import memory


def test_a_run_that_does_not_fit_is_left_out_and_told_with_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse("g (float[N, 1000] x) => (float[N, 1000] y) { y = Relu(x) }")
    monkeypatch.setattr(memory, "available_bytes", lambda: 2**20)
    compiled = heterps_compile.compile(model, batch=100, method="greedy")
    assert compiled.plan.verification is None
    told = "not verified at a batch of 100: the inputs and outputs of the whole model and of its stages take 1.53 MiB"
    assert [note for note in compiled.plan.notes if note.startswith(told)]
    fits = heterps_compile.compile(model, batch=10, method="greedy")
    assert fits.plan.verification is not None
    assert np.isclose(fits.plan.verification.max_abs, 0)
