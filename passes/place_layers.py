"""Place layers on device types: run a search method, then prove how far from the optimum its plan can be.

Left out: the methods (``placement/``), replicas in the plan (``provision.py``).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from heterps_compile.cost.problem import Placement, Problem
from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.plan.plan import PlannedStage
from heterps_compile.units import counted

from .contract import Draft, refine
from .placement.certificate import certify
from .placement.exact import Exact
from .placement.methods import find_method

_NAMED = 3  # missing layers that a message names
_METHOD_SHARE = 0.7  # of a time limit; the rest is for the proof


@dataclass(frozen=True, slots=True)
class PlaceLayers:
    """Run a placement method and certify its result.

    Attributes:
        method: Name of the method; "" for the request's.
        proof_s: Most seconds the proof may take; a time limit of the request may leave it less.
        warm_start: Stages of an old plan of the same model, to begin from.
    """

    method: str = ""
    proof_s: float = 20.0
    warm_start: tuple[PlannedStage, ...] = ()

    name: ClassVar[str] = "place-layers"
    requires: ClassVar[tuple[str, ...]] = ("problem",)
    ensures: ClassVar[tuple[str, ...]] = ("search",)

    def __call__(self, draft: Draft) -> Draft:
        """Fill in ``search``.

        Raises:
            UnknownNameError: where there is no such method.
            InputError: where the warm start is of another model or pool.
            InfeasibleError: where no placement is feasible, with the constraint and what would help; or where only
                this method finds none.
        """
        assert draft.problem is not None  # noqa: S101 - run_passes has checked it; this tells the type checker
        problem, request = draft.problem, draft.request
        method = find_method(self.method or request.method)
        limit_s, started = request.time_limit_s, time.monotonic()
        is_exact = isinstance(method, Exact)
        share = 1.0 if is_exact else _METHOD_SHARE
        try:
            result = method(
                problem,
                seed=request.seed,
                time_limit_s=None if limit_s is None else share * limit_s,
                warm_start=to_placement(problem, self.warm_start) if self.warm_start else None,
            )
        except InfeasibleError:
            if not is_exact:
                Exact()(problem, time_limit_s=self.proof_s)  # where nothing is feasible, this one says why
            raise
        left_s = np.inf if limit_s is None else limit_s - (time.monotonic() - started)
        if not is_exact:
            result = certify(problem, result, min(self.proof_s, max(0.0, left_s)))
        return refine(draft, search=result)


def to_placement(problem: Problem, stages: Sequence[PlannedStage]) -> Placement:
    """Give the placement that stages of an old plan describe.

    Raises:
        InputError: where they are of another model or pool.
    """
    home = {layer: stage for stage in stages for layer in stage.layers}
    missing = [name for name in problem.layer_names if name not in home]
    if missing:
        names = ", ".join(map(repr, missing[:_NAMED]))
        raise InputError(
            f"the warm start is of another model: it lacks {len(missing)} of {counted(problem.layer_count, 'layer')}, "
            f"such as {names}; take a plan of this model, or none"
        )
    unknown = sorted({stage.device for stage in stages} - set(problem.type_names))
    if unknown:
        have = ", ".join(map(repr, problem.type_names))
        raise InputError(f"the warm start uses the device type {unknown[0]!r}; the pool has {have}")
    chosen = [home[name] for name in problem.layer_names]
    types = tuple(problem.type_names.index(stage.device) for stage in chosen)
    return Placement.of_stages(types, [stage.index for stage in chosen])
