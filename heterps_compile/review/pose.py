"""The problem that a committed plan answers, posed again from its model, and the plan's own answer to it.

The plan says what was asked: batch, sizes of open dimensions, objective, limits, pins, pool. Layers are matched by
structure, so a plan fits a model whose nodes were only renamed.

What is asked of a plan is asked of this value: does it hold (``check.py``), what is it worth today (``today.py``), why
is a layer where it is (``explain.py``).

Left out: searching again (``check.py``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from heterps_compile.backends.find import makes_sparse_gradients, splits_backward
from heterps_compile.cluster.devices import Cluster
from heterps_compile.cost.measured import ProfileSpec
from heterps_compile.cost.problem import Placement, Problem
from heterps_compile.errors import GraphError, InputError, StalePlanError, UnknownNameError
from heterps_compile.escape import printable
from heterps_compile.ir.default_size import defaults_of
from heterps_compile.ir.graph import Graph
from heterps_compile.passes.drafts import Annotated, Draft, Posed, in_order
from heterps_compile.passes.pipeline import run_to
from heterps_compile.plan.fingerprint import make_fingerprints
from heterps_compile.plan.input_values import values_again
from heterps_compile.plan.match_layers import match_layers, with_names_of_today
from heterps_compile.plan.placed_stages import placement_of
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.planned_stage import PlannedStage
from heterps_compile.plan.provenance import make_hashes
from heterps_compile.plan.request import make_request
from heterps_compile.units import counted

from .shared_inputs import SharedInputs
from .stale import pool_of, refuse_stale

_NAMED = 3  # layers that a message names


@dataclass(frozen=True, slots=True)
class PosedAgain:
    """A plan and the problem it is to answer.

    Attributes:
        plan: The committed plan.
        draft: Graph, pool, request, layers, their costs and the problem of today, in the order of the plan's stages.
        hashes: Of what the plan would be made from today.
        matched: Name in the model of every layer of the plan that it still has.
        misfit: Why the plan does not fit the model; "" where it does.
        placement: The plan's answer to the problem; None where it does not fit.
    """

    plan: Plan
    draft: Posed
    hashes: Mapping[str, str]
    matched: Mapping[str, str]
    misfit: str
    placement: Placement | None

    @property
    def problem(self) -> Problem:
        """Return the problem of today."""
        return self.draft.problem

    @property
    def stale(self) -> tuple[str, ...]:
        """Return the names of the hashes that the plan has and that are others today."""
        return tuple(name for name, old in sorted(self.plan.hashes.items()) if old != self.hashes.get(name, old))

    def fitting(self, *, allow_stale: bool) -> Placement:
        """Return the plan's answer.

        Raises:
            StalePlanError: where the plan does not fit the model; where it was made from another one, from another
                pool or with other options, unless that is allowed.
        """
        if self.placement is None:
            raise StalePlanError(f"the plan does not fit: {self.misfit}; compile again")
        refuse_stale(self.stale, allow_stale=allow_stale)
        return self.placement

    def stages(self) -> tuple[PlannedStage, ...]:
        """Return the plan's stages with the layers' names of today; those the model lacks are left out."""
        return with_names_of_today(self.plan.stages, self.matched)


def pose_again(
    model: Any,
    plan: Plan,
    example_inputs: tuple[Any, ...] | Mapping[str, Any] = (),
    *,
    cluster: str | Path | Cluster | None = None,
    profile: ProfileSpec | None = None,
    asked: Mapping[str, Any] | None = None,
    inputs: SharedInputs | None = None,
    **reading: Any,
) -> PosedAgain:
    """Pose the problem of a plan again.

    Args:
        model: What :func:`heterps_compile.compile` takes.
        plan: The committed plan.
        example_inputs: Of a PyTorch model; of an ONNX model values by input, which take the place of the plan's.
        cluster: The pool of today; None for the built-in one of that name, else for the one that the plan recorded.
        profile: Measured times of layers, as :func:`heterps_compile.compile` takes them.
        asked: Options of the request by name, all others at their defaults; None for what the plan asked for.
        inputs: What earlier calls have read already.
        reading: ``example_kwargs``, ``dynamic_shapes``, ``batch`` and ``shapes``, as :func:`heterps_compile.compile`
            takes them; numbers of the plan for those that are not given.

    Raises:
        HeterpsError: where model or pool cannot be read, or what was asked makes no sense for them any more.
    """
    _refuse_several_types(plan)
    inputs = SharedInputs() if inputs is None else inputs
    pool = inputs.pool(pool_of(plan) if cluster is None else cluster)
    measurements = inputs.measurements(pool, profile)
    request = plan.request if asked is None else make_request(pool.currency, **asked)
    if plan.input_values or isinstance(example_inputs, Mapping):
        example_inputs = values_again(plan.input_values, dict(example_inputs or {}), must_have_all=False)
    graph = _read_as_planned(model, plan, inputs, example_inputs, **reading)
    makes_sparse = all(makes_sparse_gradients(stage.backend or plan.backend) for stage in plan.stages)
    splits = all(splits_backward(stage.backend or plan.backend) for stage in plan.stages)
    opened = Draft(
        graph=graph,
        cluster=pool,
        request=request,
        measurements=measurements,
        makes_sparse=makes_sparse,
        splits_backward=splits,
    )
    layered = run_to(opened, Annotated)
    of_plan = {name: plan.fingerprints.get(name, "") for stage in plan.stages for name in stage.layers}
    matched = match_layers(of_plan, make_fingerprints(layered.layers_as_read))
    served = () if plan.tables is None else tuple(matched[name] for name in plan.tables.layers if name in matched)
    draft = run_to(replace(layered, served_layers=served), Posed)
    misfit, draft, placement = _fit(plan, draft, matched)
    return PosedAgain(plan, draft, make_hashes(graph, pool, request, measurements), matched, misfit, placement)


def _read_as_planned(model: Any, plan: Plan, inputs: SharedInputs, example_inputs: Any, **reading: Any) -> Graph:
    """Read a model at the sizes of a plan, but for those that are given.

    Raises:
        StalePlanError: where the model has other dimensions than the plan, and no sizes are given.
    """
    batch, shapes = reading.pop("batch", None), dict(reading.pop("shapes", None) or {})
    is_other_batch = batch is not None or any(_is_batch(plan, name) for name in shapes if name in plan.bindings)
    own = {
        name: size
        for name, size in plan.bindings.items()
        if not (is_other_batch and _is_batch(plan, name)) and not any(given in name for given in shapes)
    }
    own_batch = plan.batch if plan.bindings and not is_other_batch else batch
    try:
        return inputs.graph(model, example_inputs, batch=own_batch, shapes=own | shapes, **reading)
    except UnknownNameError as error:
        if batch is not None or shapes:  # of today's dimensions
            return inputs.graph(model, example_inputs, batch=batch, shapes=shapes, **reading)
        raise StalePlanError(
            f"the model changed, the plan was made at other dimensions: {error}; compile again, or name those of "
            "today (--batch N, --shape NAME=N)"
        ) from error


def _is_batch(plan: Plan, name: str) -> bool:
    """Say whether a dimension of a plan may be its batch: the one it chose itself, else one of that number."""
    chosen = defaults_of(plan.bindings)
    if any(size.is_batch for size in chosen.values()):
        return name in chosen and (chosen[name].is_batch or bool(chosen[name].same_as))
    return plan.bindings[name] == plan.batch


def _refuse_several_types(plan: Plan) -> None:
    """Refuse a plan whose stages are priced by their units of several device types.

    Raises:
        InputError: naming the stage.
    """
    mixed = next((stage for stage in plan.stages if stage.mixed), None)
    if mixed is not None:
        raise InputError(
            f"stage {mixed.index} of the plan has replicas of several device types ({printable(mixed.hardware)}), and "
            f"such a plan is not priced with its model again; ask the plan alone (without the model), or compile again "
            f"and compare both plans (heterps-compile diff)"
        )


def _fit(plan: Plan, draft: Posed, matched: Mapping[str, str]) -> tuple[str, Posed, Placement | None]:
    """Return why a plan does not fit a problem, or its placement; the problem is then in the order of its stages."""
    problem = draft.problem
    home = {matched[name]: stage for stage in plan.stages for name in stage.layers if name in matched}
    unplaced = [name for name in problem.layer_names if name not in home]
    lost = [name for stage in plan.stages for name in stage.layers if name not in matched]
    if unplaced or lost:
        return f"the model changed: {' and '.join(_told(unplaced, lost))}", draft, None
    unknown = [stage.device for stage in plan.stages if stage.device not in problem.type_names]
    if unknown:
        have = ", ".join(map(repr, problem.type_names))
        return f"the pool changed: the plan uses {unknown[0]!r}, and the pool has {have}", draft, None
    try:
        order = draft.layers.order_of([home[name].index for name in problem.layer_names])
    except GraphError as error:
        return f"the model changed: {error}", draft, None
    draft = in_order(draft, order)
    return "", draft, placement_of(draft.problem, home)


def _told(unplaced: Sequence[str], lost: Sequence[str]) -> list[str]:
    told = []
    if unplaced:
        told.append(f"the plan does not place {counted(len(unplaced), 'new layer')} ({_named(unplaced)})")
    if lost:
        are = "is" if len(lost) == 1 else "are"
        told.append(f"{counted(len(lost), 'layer')} of the plan {are} gone ({_named(lost)})")
    return told


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(repr, names[:_NAMED])) + more
