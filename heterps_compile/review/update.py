"""Compile a model into the stages that a plan found by a check describes.

Left out: writing them (``CompiledModel.save``).
"""

from pathlib import Path
from typing import Any

from heterps_compile.api import compile as compile_model
from heterps_compile.cluster.devices import Cluster
from heterps_compile.compiled_model import CompiledModel
from heterps_compile.cost.measured import ProfileSpec
from heterps_compile.plan.plan import Plan

from .judge import backend_name
from .pose import pool_of


def compile_as_planned(
    model: Any, plan: Plan, cluster: str | Path | Cluster | None = None, profile: ProfileSpec | None = None
) -> CompiledModel:
    """Compile with the options of a plan, beginning the search from it.

    Args:
        model: Path of an ONNX file, or an ONNX model.
        plan: A plan of this very model.
        cluster: The pool; None for the built-in one of that name, else for the one that the plan recorded.
        profile: Measured times of layers, as :func:`heterps_compile.compile` takes them.

    Raises:
        HeterpsError: as :func:`heterps_compile.compile`.
    """
    return compile_model(
        model,
        cluster=pool_of(plan) if cluster is None else cluster,
        profile=profile,
        batch=plan.batch if plan.bindings else None,
        shapes=plan.bindings,
        backend=backend_name(plan),
        warm_start=plan,
        **plan.request.asked(),
    )
