"""Place layers on device types: run a search method, prove a bound, and keep the best plan that any of it came upon.

The method of the request goes first, on the layers in the compiler's own order, or in that of the plan it begins from;
then other orders are searched (``placement/orders/``), and the layers of the draft are put in the one of the best plan.
Other methods, where some are named, the old plan and the proof are asked too;
whoever has the best plan, it is the result, and the result says who that was. Of plans of one price per hour it is the
fastest (``placement/proof/fastest_at_price.py``), of its interchangeable layers the stages get even shares
(``placement/deal_alike.py``). Beside it stands the plan that the other question about money would choose
(``placement/other_question.py``).

Left out: the methods (``placement/``), replicas in the plan (``provision.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from heterps_compile.cost.evaluate import evaluate_one, to_arrays
from heterps_compile.cost.finders import PROOF, WARM_START, finder
from heterps_compile.cost.problem import MethodResult, Placement, Problem, SearchResult
from heterps_compile.errors import GraphError, HeterpsError, InfeasibleError, InputError, PlugInError
from heterps_compile.passes.deadline import Deadline, now_s
from heterps_compile.plan.fingerprint import make_fingerprints
from heterps_compile.plan.match_layers import match_layers, with_names_of_today
from heterps_compile.plan.other_plan import OtherPlan
from heterps_compile.plan.placed_stages import placement_of
from heterps_compile.plan.planned_stage import PlannedStage
from heterps_compile.plan.request import PROVISIONERS
from heterps_compile.progress import part_of_step, tell
from heterps_compile.units import counted

from .drafts import Placed, Posed, advance, in_order
from .mixed_stages import PLAIN_SHARE, refuse_mixed, with_mixed_stages
from .placement.deal_alike import deal_alike
from .placement.method import PlacementMethod, proves, proving_for
from .placement.methods import METHODS, find_method
from .placement.orders.best_order import best_order
from .placement.other_question import answer_other, has_other_question, other_objective, unanswered
from .placement.proof.certificate import better_of
from .placement.proof.exact import Exact
from .placement.proof.fastest_at_price import fastest_at_price
from .placement.served_ranges import run_in_ranges
from .placement.steps.minimise_step import least_factor, with_best_step
from .placement.steps.step_plans import SteppedPlan, feasible, simulated, with_units
from .relaxed_rules import told_of_rules
from .served_sets import place_over_sets
from .step_orders import best_steps, steps_of
from .within_memory import may_lack_memory, place_within_memory

_HELD = "some type has no memory for the model and a whole batch, and what its plan would hold is not known"
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

        The placement fits as its schedule holds it (``within_memory.py``).

        Raises:
            UnknownNameError: where there is no such method.
            InputError: where the warm start is of another model or pool.
            InfeasibleError: where no placement is feasible, with the constraint and what would help; or where nothing
                found one in the time.
        """
        if draft.request.mixed_stages:
            return self._of_several_types(draft)
        try:
            return self._over_sets(draft)
        except InfeasibleError as error:
            raise told_of_rules(draft, error, replace(self, proof_s=0.0, beside_s=0.0)._over_sets) from error

    def _over_sets(self, draft: Posed) -> Placed:
        """Place the layers on stages of one device type each."""
        return place_over_sets(draft, partial(place_within_memory, self._placed), self.proof_s)

    def _of_several_types(self, draft: Posed) -> Placed:
        """Place the layers on stages of one device type each, then on stages that may have several."""
        refuse_mixed(draft)
        request, deadline = draft.request, Deadline.after(draft.request.time_limit_s)
        plain: Placed | InfeasibleError
        share_s = None if request.time_limit_s is None else PLAIN_SHARE * request.time_limit_s
        asked = replace(draft, request=replace(request, time_limit_s=share_s))
        try:
            found = self._over_sets(asked)
            plain = draft = replace(found, request=request)
        except InfeasibleError as error:
            plain, draft = error, in_order(draft, draft.layers.own_order)
        factor = least_factor(steps_of(draft)) if request.minimises_step else 1.0
        left_s = None if request.time_limit_s is None else deadline.left_s()
        return with_mixed_stages(draft, plain, left_s, factor)

    def _placed(self, draft: Posed, limit_s: float | None) -> Placed:
        """Place the layers of a draft whose tables lie where they do, in so many seconds; None for no limit."""
        draft, old = _begun(draft)
        start = old
        problem, request = draft.problem, draft.request
        method = proving_for(find_method(self.method or request.method), self.proof_s)
        others = [find_method(name) for name in draft.baselines if name != method.name]
        seed = request.seed if self.seed is None else self.seed
        deadline = Deadline.after(limit_s)
        is_exact = proves(method) and problem.served_s is None
        is_fixed = draft.orders.is_fixed
        share = 1.0 if is_exact and is_fixed else _METHOD_SHARE

        def left_s(most_s: float) -> float:
            return min(most_s, max(0.0, deadline.left_s()))

        parts = 1 + len(others) + (not is_exact)
        tell(f"searching with {method.name}")
        with part_of_step(0.0, 1 / parts):
            own_s = None if limit_s is None else left_s(share * limit_s)
            own = run_method(method, problem, seed=seed, time_limit_s=own_s, warm_start=old)
        runs = [(method.name, own)]
        for number, other in enumerate(others, start=1):
            tell(f"searching with {other.name}")
            if deadline.is_over:
                runs.append((other.name, InfeasibleError("not tried: the time limit left no time for it")))
            else:
                with part_of_step(number / parts, (number + 1) / parts):
                    found = run_method(other, problem, seed=seed, time_limit_s=left_s(self.baseline_s))
                runs.append((other.name, found))
        with part_of_step((parts - 1) / parts, 1.0):
            order, result = _proven(draft, method, [found for _, found in runs], old, left_s(self.proof_s))
        before = draft
        if order:
            draft, old = in_order(draft, order), None
            problem = draft.problem
        if request.minimises_step:
            tell("looking for the best step")
            draft, result = _with_best_step(
                before, draft, result, found=[found for _, found in runs], old=start, deadline=deadline
            )
            problem = draft.problem
        elif old is not None and evaluate_one(problem, old) <= result.value * (1 + _ROUNDING):
            result = _kept(problem, result, old)
        else:
            if request.objective == "price":
                tell("looking for the fastest plan of this price")
                result = fastest_at_price(problem, result, left_s(self.beside_s))
            result = deal_alike(problem, result)
        result, answer = _answered(draft, result, left_s(self.beside_s), is_over=deadline.is_over)
        tried = tuple(_row(name, found) for name, found in runs)
        return advance(draft, Placed, search=result, tried=tried, other=answer)


def _answered(
    draft: Posed, result: SearchResult, limit_s: float, *, is_over: bool
) -> tuple[SearchResult, OtherPlan | None]:
    """Return the result, and the answer to the other question about money; a note says why there is none."""
    problem = draft.problem
    if not has_other_question(problem):
        return result, None
    if why := _no_answer(draft, is_over=is_over) or ("" if not may_lack_memory(draft) else _HELD):
        return replace(result, notes=(*result.notes, unanswered(problem, why))), None
    tell(f"looking at --objective {other_objective(problem)}")
    return result, answer_other(draft, result, limit_s)


def _with_best_step(
    own: Posed,
    moved: Posed,
    result: SearchResult,
    *,
    found: Sequence[SearchResult | InfeasibleError],
    old: Placement | None,
    deadline: Deadline,
) -> tuple[Posed, SearchResult]:
    """Return the result with the plan of the best step, and the draft in the order that it takes the layers in.

    Args:
        own: In the order that the methods ran in.
        moved: In the order of the result.
        result: Of the steady state.
        found: What the methods found.
        old: The old plan's placement, in the order that the methods ran in; None without one.
        deadline: Of all searches.
    """
    began_s = now_s()
    known = [] if old is None else _old_steps(own, old)
    plans = [each.placement for each in found if isinstance(each, SearchResult)]
    least = result.bound_of_all_orders * least_factor(steps_of(moved))
    steps = best_steps(
        [(moved, [result.placement]), (own, plans)], deadline, known=known, seed=own.request.seed, least=least
    )
    if steps.draft is not moved:  # the bound in the order of the result is not one in this order
        result = replace(result, bound=result.bound_of_all_orders)
    stepped = with_best_step(steps.of, result, steps.found, is_only_order=own.orders.is_fixed)
    spent_s = stepped.search_s + now_s() - began_s
    return steps.draft, replace(stepped, evaluations=stepped.evaluations + steps.found.evaluations, search_s=spent_s)


def _old_steps(draft: Posed, old: Placement) -> list[SteppedPlan]:
    """Return the steps of the old plan's placement with its units."""
    of, home = steps_of(draft), {layer: stage for stage in warm_stages(draft) for layer in stage.layers}
    units = [home[draft.problem.layer_names[first]].replicas for first in old.starts()]
    if not feasible(of.problem, *to_arrays([old]))[0]:
        return []
    found = (simulated(of, plan) for plan in with_units(of, old, units, of.counts(max(units))) if plan.value < np.inf)
    return [plan for plan in found if plan is not None]


def _no_answer(draft: Posed, *, is_over: bool) -> str:
    """Return why the other question is not answered; "" where it is."""
    request = draft.request
    if request.provisioner != PROVISIONERS[0]:
        return f"the provisioner {request.provisioner!r} does not go with it"
    if request.sync_rules.uses_servers:
        return "the parameter servers that its plan needs are left out of the search"
    if not request.is_all_reduced and draft.problem.rules is None:
        return "its replicas would all-reduce, and the rules of --sync are of another plan"
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
        run = method if problem.served_s is None else partial(run_in_ranges, method)
        found = run(problem, seed=seed, time_limit_s=time_limit_s, warm_start=warm_start)
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
    return replace(result.with_placement(old, value), found_by=WARM_START, notes=notes)


def _begun(draft: Posed) -> tuple[Posed, Placement | None]:
    """Return a draft in the order that the search begins with, and the old plan's placement where there is one.

    Raises:
        InputError: where the old plan is of another model or pool.
    """
    draft = in_order(draft, draft.layers.own_order)
    if not draft.warm_start:
        return draft, None
    home = warm_start_of(draft.problem, warm_stages(draft))
    stages = [home[name].index for name in draft.problem.layer_names]
    try:
        draft = in_order(draft, draft.layers.order_of(stages))
    except GraphError as error:
        raise InputError(
            f"the warm start does not fit the model: {error}; take a plan of this model, or none"
        ) from error
    return draft, placement_of(draft.problem, home)


def _proven(
    draft: Posed,
    method: PlacementMethod,
    found: Sequence[SearchResult | InfeasibleError],
    old: Placement | None,
    limit_s: float,
) -> tuple[tuple[int, ...], SearchResult]:
    """Return the best plan of all orders, with what is proven of it, and its order; () for that of the draft.

    Raises:
        InfeasibleError: where no placement is feasible, with the reason; or that of the method where the time is up.
    """
    problem, orders = draft.problem, draft.orders
    fault, result = None, None
    try:
        result = _best_of(problem, found, old)
    except InfeasibleError as error:
        fault = error
    if fault is not None and not proves(method):  # the exact search finds a plan, or says why there is none
        try:
            result = _found_by_proof(problem, method.name, fault, limit_s)
        except InfeasibleError as error:
            fault = error
    starts = [] if old is None else [old]
    is_proven, seed = proves(method) and problem.served_s is None, draft.request.seed
    chosen = best_order(
        problem, orders, method.name, result, limit_s, is_proven=is_proven, seed=seed, starts=starts
    )  # fmt: skip
    if chosen.result is not None:
        return chosen.order, chosen.result
    if fault is None or chosen.is_impossible or orders.is_fixed:
        raise fault or InfeasibleError(f"{method.name} found no feasible placement")
    raise type(fault)(f"{fault}; another order of the layers was not ruled out") from fault


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


def warm_start_of(problem: Problem, stages: Sequence[PlannedStage]) -> dict[str, PlannedStage]:
    """Return the stage of an old plan that each layer has.

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
    return home
