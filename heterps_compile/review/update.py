"""Write the plan that a check found: a plan alone as a file, a compiled folder with its stages compiled anew.

Left out: how a folder or a file is replaced as a whole (``plan/swap.py``, ``plan/whole_file.py``).
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from heterps_compile.api import compile as compile_model
from heterps_compile.cluster.devices import Cluster
from heterps_compile.compiled_model import CompiledModel
from heterps_compile.cost.measured import ProfileSpec
from heterps_compile.plan.file import to_json
from heterps_compile.plan.folder import PLAN_NAME, compiled_folder
from heterps_compile.plan.input_values import values_again
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.whole_file import write_whole

from .judge import backend_name
from .stale import pool_of


def write_plan(
    where: str,
    plan: Plan,
    model: Any,
    cluster: str | Path | Cluster | None = None,
    profile: ProfileSpec | None = None,
    *,
    given: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Write a plan as a whole in place of the one that is there, or where none is.

    The stages of a compiled folder are compiled anew, since they are those of the old plan. Where nothing is yet, a
    path that ends in ``.json`` is to be a plan alone, any other such a folder.

    Args:
        where: Path of the plan, as a review names it.
        plan: What a check found.
        model: Of it, as :func:`compile_as_planned` takes it.
        cluster: The pool that it was found for.
        profile: The measured times that it was found with.
        given: Values of inputs, in place of the plan's.

    Raises:
        HeterpsError: where the stages cannot be compiled, or the plan cannot be written; the old one is as it was.
    """
    path, folder = Path(where), folder_to_write(where)
    if folder is not None:
        compile_as_planned(model, plan, cluster, profile, given=given).save(folder)
        return
    alone = path / PLAN_NAME if path.is_dir() else path
    write_whole(alone, to_json(replace(plan, artifacts=(), verification=None)), what="the plan ")


def folder_to_write(where: str) -> Path | None:
    """Return the compiled folder that a plan is or is to be part of; None where it is a plan alone."""
    path, folder = Path(where), compiled_folder(where)
    if folder is None and not (path / PLAN_NAME if path.is_dir() else path).exists() and path.suffix != ".json":
        return path
    return folder


def compile_as_planned(
    model: Any,
    plan: Plan,
    cluster: str | Path | Cluster | None = None,
    profile: ProfileSpec | None = None,
    *,
    given: Mapping[str, Any] = MappingProxyType({}),
) -> CompiledModel:
    """Compile with the options of a plan, beginning the search from it.

    Args:
        model: Path of an ONNX file, or an ONNX model.
        plan: A plan of this very model.
        cluster: The pool; None for the built-in one of that name, else for the one that the plan recorded.
        profile: Measured times of layers, as :func:`heterps_compile.compile` takes them.
        given: Values of inputs, in place of the plan's.

    Raises:
        HeterpsError: as :func:`heterps_compile.compile`.
    """
    return compile_model(
        model,
        values_again(plan.input_values, given, must_have_all=True),
        cluster=pool_of(plan) if cluster is None else cluster,
        profile=profile,
        batch=plan.batch if plan.bindings else None,
        shapes=plan.bindings,
        backend=backend_name(plan),
        warm_start=plan,
        **plan.request.asked(),
    )
