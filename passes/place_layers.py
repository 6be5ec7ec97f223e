"""Place layers on device types: run a search method, prove a bound, and keep the best plan that any of it came upon.

The method of the request goes first. Other methods, where some are named, the old plan and the proof are asked too;
whoever has the best plan, it is the result, and the result says who that was. Of plans of one price per hour it is the
fastest (``placement/proof/fastest_at_price.py``), of its interchangeable layers the stages get even shares
(``placement/deal_alike.py``). Beside it stands the plan that the other question about money would choose
(``placement/other_question.py``).

Left out: the methods (``placement/``), replicas in the plan (``provision.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from heterps_compile.cost.evaluate import evaluate_one
from heterps_compile.cost.finders import PROOF, WARM_START, finder
from heterps_compile.cost.problem import MethodResult, Placement, Problem, SearchResult
from heterps_compile.errors import HeterpsError, InfeasibleError, InputError, PlugInError
from heterps_compile.plan.fingerprint import make_fingerprints
from heterps_compile.plan.match_layers import match_layers, with_names_of_today
from heterps_compile.plan.placed_stages import placement_of
from heterps_compile.plan.plan import PlannedStage
from heterps_compile.plan.request import PROVISIONERS, Request
from heterps_compile.progress import part_of_step, tell
from heterps_compile.units import counted

from .deadline import Deadline
from .drafts import Placed, Posed, advance
from .placement.deal_alike import deal_alike
from .placement.method import PlacementMethod, proves
from .placement.methods import METHODS, find_method
from .placement.other_question import answer_other, has_other_question, other_objective, unanswered
from .placement.proof.certificate import better_of, certify
from .placement.proof.exact import Exact
from .placement.proof.fastest_at_price import fastest_at_price

_NAMED = 3  # missing layers that a message names
_ROUNDING = 1e-12  # relative
_METHOD_SHARE = 0.7  # of a time limit; the rest is for the proof


@dataclass(frozen=True, slots=True)
class PlaceLayers:
    """Run a placement method, others beside it, and the proof; keep the best plan.

    Attributes:
        method: Name of the method; "" for the request's.
        proof_s: Most seconds the proof may take; a time limit of the request may leave it less.
        baseline_s: Most seconds that each method beside it may take.
        beside_s: Most seconds for the fastest plan of a price, and as much for the plan of the other question.
        seed: Of the methods; None for the request's.
    """

    method: str = ""
    proof_s: float = 20.0
    baseline_s: float = 2.0
    beside_s: float = 5.0
    seed: int | None = None

    name: ClassVar[str] = "place-layers"

    def __call__(self, draft: Posed) -> Placed:
        """Fill in ``search``, ``tried`` with what each method found by itself, and ``other``.

        Raises:
            UnknownNameError: where there is no such method.
            InputError: where the warm start is of another model or pool.
            InfeasibleError: where no placement is feasible, with the constraint and what would help; or where nothing
                found one in the time.
        """
        problem, request = draft.problem, draft.request
        method = find_method(self.method or request.method)
        others = [find_method(name) for name in draft.baselines if name != method.name]
        seed = request.seed if self.seed is None else self.seed
        limit_s, deadline = request.time_limit_s, Deadline.after(request.time_limit_s)
        old = warm_start_of(problem, warm_stages(draft)) if draft.warm_start else None
        is_exact = proves(method)
        share = 1.0 if is_exact else _METHOD_SHARE

        def left_s(most_s: float) -> float:
            return min(most_s, max(0.0, deadline.left_s()))

        parts = 1 + len(others) + (not is_exact)
        tell(f"searching with {method.name}")
        with part_of_step(0.0, 1 / parts):
            own = run_method(
                method,
                problem,
                seed=seed,
                time_limit_s=None if limit_s is None else share * limit_s,
                warm_start=old,
            )
        if isinstance(own, InfeasibleError) and is_exact:
            raise own
        runs = [(method.name, own)]
        for number, other in enumerate(others, start=1):
            tell(f"searching with {other.name}")
            if deadline.is_over:
                runs.append((other.name, InfeasibleError("not tried: the time limit left no time for it")))
            else:
                with part_of_step(number / parts, (number + 1) / parts):
                    found = run_method(other, problem, seed=seed, time_limit_s=left_s(self.baseline_s))
                runs.append((other.name, found))
        try:
            result = _best_of(problem, [found for _, found in runs], old)
        except InfeasibleError as fault:  # the exact search finds a plan, or says why there is none
            result = _found_by_proof(problem, method.name, fault, left_s(self.proof_s))
        else:
            if not is_exact:
                with part_of_step((parts - 1) / parts, 1.0):
                    result = certify(problem, result, left_s(self.proof_s), [] if old is None else [old])
        if old is not None and evaluate_one(problem, old) <= result.value * (1 + _ROUNDING):
            result = _kept(problem, result, old)
        else:
            if request.objective == "price":
                tell("looking for the fastest plan of this price")
                result = fastest_at_price(problem, result, left_s(self.beside_s))
            result = deal_alike(problem, result)
        answer = None
        if has_other_question(problem):
            why = _no_answer(request, is_over=deadline.is_over)
            if why:
                result = replace(result, notes=(*result.notes, unanswered(problem, why)))
            else:
                tell(f"looking at --objective {other_objective(problem)}")
                answer = answer_other(problem, result, left_s(self.beside_s))
        tried = tuple(_row(name, found) for name, found in runs)
        return advance(draft, Placed, search=result, tried=tried, other=answer)


def _no_answer(request: Request, *, is_over: bool) -> str:
    """Return why the other question is not answered; "" where it is."""
    if request.provisioner != PROVISIONERS[0]:
        return f"the provisioner {request.provisioner!r} does not go with it"
    if request.synchronisation == "parameter-server":
        return "the parameter servers that its plan needs are left out of the search"
    return "the time limit left no time for it" if is_over else ""


def run_method(
    method: PlacementMethod,
    problem: Problem,
    *,
    seed: int = 0,
    time_limit_s: float | None = None,
    warm_start: Placement | None = None,
) -> SearchResult | InfeasibleError:
    """Run a method; give what it found, or why it found nothing.

    Raises:
        PlugInError: where a third party's method fails, or what it gives is no result of this problem.
    """
    try:
        found = method(problem, seed=seed, time_limit_s=time_limit_s, warm_start=warm_start)
    except InfeasibleError as error:
        return error
    except HeterpsError:
        raise
    except Exception as error:
        if method.name in METHODS:
            raise  # ours: a bug
        raise PlugInError(
            f"the plug-in method {method.name!r} fails: {type(error).__name__}: {error}; mend it, or take another"
        ) from error
    if method.name not in METHODS:
        _check_result(problem, method.name, found)
    return found


def _check_result(problem: Problem, name: str, found: Any) -> None:
    fault = ""
    if not isinstance(found, SearchResult):
        fault = f"a {type(found).__name__}, and must give a SearchResult"
    elif len(found.placement.types) != problem.layer_count:
        fault = f"a placement of {len(found.placement.types)} layers, and the problem has {problem.layer_count}"
    elif not all(0 <= t < problem.type_count for t in found.placement.types):
        fault = f"a device type that is none of the {problem.type_count} of the problem"
    else:
        value = evaluate_one(problem, found.placement)
        if not np.isclose(found.value, value, rtol=1e-6, atol=0.0):
            fault = f"the value {found.value:g} with a placement of the value {value:g}"
        elif found.bound > value * (1 + 1e-9):
            fault = f"the bound {found.bound:g} above the value {value:g} of its placement"
    if fault:
        raise PlugInError(f"the plug-in method {name!r} gave {fault}; mend it, or take another method")


def _best_of(problem: Problem, found: Sequence[SearchResult | InfeasibleError], old: Placement | None) -> SearchResult:
    """Return the best result, the first of equal ones. That of the method of the request comes first.

    Raises:
        InfeasibleError: that of the method of the request, where no method found a plan.
    """
    own, *others = found
    plans = [other for other in others if isinstance(other, SearchResult)]
    if isinstance(own, SearchResult):
        result = replace(own, found_by=WARM_START) if own.placement == old else own
    elif plans:
        note = f"the method of the request found no plan: {own}"
        result, *plans = plans
        result = replace(result, found_by=result.method, notes=(*result.notes, note))
    else:
        raise own
    for other in plans:
        result = better_of(problem, result, other.placement, other.method)
    return result if old is None else better_of(problem, result, old, WARM_START)


def _kept(problem: Problem, result: SearchResult, old: Placement) -> SearchResult:
    """Return the result with the placement of the old plan, which is as good, so that nothing moves for nothing."""
    if result.placement == old:
        return result
    value = evaluate_one(problem, old)
    notes = (*result.notes, f"the plan was found by {finder(WARM_START)}, which is as good and stays as it is")
    bound = min(result.bound, value)
    return replace(result, placement=old, value=value, bound=bound, found_by=WARM_START, notes=notes)


def _found_by_proof(problem: Problem, method: str, own: InfeasibleError, limit_s: float) -> SearchResult:
    """Return the plan of the exact search, where the method found none.

    Raises:
        InfeasibleError: where no placement is feasible, with the reason; or the method's own where the time is up.
    """
    try:
        found = Exact()(problem, time_limit_s=limit_s)
    except InfeasibleError as error:
        if limit_s > 0:
            raise error from own
        raise own from error
    return replace(
        found, method=method, found_by=PROOF, notes=(*found.notes, f"the plan was found by {finder(PROOF)}: {own}")
    )


def _row(name: str, found: SearchResult | InfeasibleError) -> MethodResult:
    if isinstance(found, InfeasibleError):
        return MethodResult(name, np.inf, 0, 0.0, str(found))
    return MethodResult(name, found.value, found.evaluations, found.search_s)


def warm_stages(draft: Posed) -> tuple[PlannedStage, ...]:
    """Return the stages of the old plan, their layers named as in the model of today."""
    if not draft.warm_fingerprints:
        return draft.warm_start
    names = [name for stage in draft.warm_start for name in stage.layers]
    old = {name: draft.warm_fingerprints.get(name, "") for name in names}
    return with_names_of_today(draft.warm_start, match_layers(old, make_fingerprints(draft.layers_as_read)))


def warm_start_of(problem: Problem, stages: Sequence[PlannedStage]) -> Placement:
    """Return the placement that stages of an old plan describe.

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
    return placement_of(problem, home)
