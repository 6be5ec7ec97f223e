"""A plan whose stages are to compute activations again, and the backends whose stages can."""

from dataclasses import replace

import pytest
from plans import PLAN

from heterps_compile.errors import RunError
from heterps_compile.runtime.launch.prepare import refuse_recomputation


def test_stages_that_cannot_recompute_are_refused_before_a_run_begins():
    first, *others = PLAN.stages
    for backend, recompute in (("torch", True), ("jax", True), ("onnxruntime", False)):
        stage = replace(first, backend=backend, recompute=recompute)
        refuse_recomputation(replace(PLAN, stages=(stage, *others)))
    plan = replace(PLAN, stages=(replace(first, backend="onnxruntime", recompute=True), *others))
    with pytest.raises(RunError, match=r"stage 0\b.*compute.*'onnxruntime' cannot.*--recompute"):
        refuse_recomputation(plan)
