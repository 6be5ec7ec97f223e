"""What of a request that no plan meets is due to how replicas agree, and the least change of rules that helps.

An error without an answer is asked again: were agreeing free, would there be a plan? If so, it is looked at which part
of the rules is in the way, what they hold or what a step waits for; and rules that keep ever less of training in one
process are planned with until a plan is found: an all-reduce, what ``--allow bounded`` allows, what ``any`` does.

Left out: rules with other options than those that ``auto`` chooses from.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from heterps_compile.cost.evaluate import slowest_batch_s
from heterps_compile.cost.pose_rules import held_without_rules
from heterps_compile.cost.problem import Problem
from heterps_compile.cost.rule_times import RuleSums, rule_works
from heterps_compile.errors import HeterpsError, InfeasibleError
from heterps_compile.escape import printable
from heterps_compile.plan.placed_stages import stages_of
from heterps_compile.plan.request import PROVISIONERS, USUAL_SYNCHRONISATION, Request
from heterps_compile.plan.stage_sync import rule_name
from heterps_compile.sync_rules.assignment import AUTO
from heterps_compile.sync_rules.rule import EXACTNESSES
from heterps_compile.sync_rules.rule_text import rule_text
from heterps_compile.sync_rules.rules import USUAL
from heterps_compile.units import format_bytes, format_money, format_seconds

from .drafts import Fused, Placed, Posed, advance
from .placement.proof.exact import Exact
from .pose_problem import pose
from .provision import Provision
from .rules_of_stages import with_request

_TRIED_S = 2.0  # for each question


def told_of_rules(draft: Posed, error: InfeasibleError, place: Callable[[Posed], Placed]) -> InfeasibleError:
    """Return the error with what rules have to do with it; the same where they have nothing.

    Args:
        draft: That nothing was found for.
        error: Why.
        place: Places the layers of a draft.
    """
    request, problem = draft.request, draft.problem
    agrees = bool(np.any(problem.sync_s > 0)) or problem.rules is not None
    if request.mode != "training" or request.provisioner != PROVISIONERS[0] or not agrees:
        return error
    if problem.served_s is not None or request.sync_rules.uses_servers or not _is_met(_without(problem)):
        return error
    said = [str(error)]
    if problem.rules is not None and not _is_met(problem):
        said.append(_blamed(problem, problem.rules))
    ways = (_found(draft, words, relaxed, place) for words, relaxed in _relaxed(request))
    said += [next(filter(None, ways), f"no rule that {AUTO} chooses from was found to help")]
    return type(error)("; ".join(said))


def _is_met(problem: Problem) -> bool:
    try:
        Exact()(problem, time_limit_s=_TRIED_S)
    except HeterpsError:
        return False
    return True


def _without(problem: Problem, *, time: bool = True, memory: bool = True) -> Problem:
    """Return a problem whose replicas agree in no time, or hold nothing for it."""
    if time:
        problem = replace(problem, sync_s=np.zeros_like(problem.sync_s))
    if (time and memory) or problem.rules is None:
        return replace(problem, rules=None)
    rules = problem.rules
    if memory:
        rules = tuple(replace(each, room_bytes=np.full(problem.type_count, np.inf)) for each in rules)
    if time:
        rules = tuple(replace(each, ring_s=0 * each.ring_s, gather_s=0 * each.gather_s) for each in rules)
    return replace(problem, rules=rules)


def _blamed(problem: Problem, rules: tuple[RuleSums, ...]) -> str:
    """Say which part of the rules is in the way, and how large it is."""
    others = [each for each in rules if each.form.rule != USUAL]
    names = " and ".join(dict.fromkeys(rule_text(each.form.rule) for each in others)) or rule_text(USUAL)
    waits = f"the time until replicas agree by {names}{_waited_for(problem, rules)}"
    holds = f"what a replica holds for {names}, {format_bytes(_held(problem, others))} of all layers"
    if _is_met(_without(problem, time=False)):
        return f"what rules it out is {holds}"
    if _is_met(_without(problem, memory=False)):
        return f"what rules it out is {waits}"
    return f"what rules it out are {holds}, and {waits}, together"


def _held(problem: Problem, rules: Sequence[RuleSums]) -> float:
    """Return what a replica of all layers holds besides for the rule that holds most, two replicas of them."""
    own = held_without_rules(problem)
    two = np.full(problem.type_count, 2)
    held = [(each.held_bytes(two) - own[:, None]).sum(axis=0).max() for each in rules]
    return float(max(held, default=0.0))


def _waited_for(problem: Problem, rules: Sequence[RuleSums]) -> str:
    """Say what the fewest replicas of all layers take that compute in time; "" where no number of them does."""
    slow_s = slowest_batch_s(problem)
    if not np.isfinite(slow_s):
        return ""
    compute_s = problem.compute_s.sum(axis=0)
    serial_s = (problem.compute_s * (1 - problem.alpha)).sum(axis=0)
    roomy = [replace(each, room_bytes=np.full(problem.type_count, np.inf)) for each in rules]
    works = rule_works([each.map(lambda table: table.sum(axis=0)) for each in roomy], slice(None))
    with np.errstate(divide="ignore", invalid="ignore"):
        fewest = np.ceil((compute_s - serial_s) / (slow_s - serial_s))
    units = np.where((slow_s > serial_s) & (fewest <= problem.max_units), np.maximum(fewest, 2.0), np.inf)
    known = np.where(np.isfinite(units), units, 2.0)
    times_s = np.minimum.reduce([work.time_s(known, problem.machines) for work in works])
    times_s = np.where(np.isfinite(units), times_s, np.inf)
    least = int(times_s.argmin())
    if not np.isfinite(times_s[least]):
        return ""
    return (
        f", {format_seconds(times_s[least])} of {units[least]:.0f} {problem.type_names[least]!r} that have all layers, "
        f"where the floor leaves {format_seconds(slow_s)} a batch"
    )


def _relaxed(request: Request) -> Iterator[tuple[str, Request]]:
    """Yield requests whose rules keep ever less of training in one process, with the words to ask for them."""
    if not request.is_all_reduced and not request.chooses_rules:
        yield f"--sync {USUAL_SYNCHRONISATION}", replace(request, synchronisation=USUAL_SYNCHRONISATION)
    least = EXACTNESSES.index(request.allow) + 1 if request.chooses_rules else 1
    for allow in EXACTNESSES[least:]:
        yield (
            f"--sync {AUTO} --allow {allow}",
            replace(request, synchronisation=AUTO, allow=allow),
        )


def _found(draft: Posed, words: str, request: Request, place: Callable[[Posed], Placed]) -> str:
    """Say what a plan with other rules is; "" where none was found."""
    try:
        placed = place(replace(pose(replace(draft, request=replace(request, time_limit_s=_TRIED_S)), []), baselines=()))
    except HeterpsError:
        return ""
    fused = advance(placed, Fused, stages=stages_of(placed.problem, placed.search.placement))
    provisioned = with_request(Provision()(fused))
    rules = dict.fromkeys(rule_name(stage) for stage in provisioned.stages if stage.sync is not None)
    price = sum(stage.price_per_hour for stage in provisioned.stages)
    paid = f"{format_money(price)} {draft.cluster.currency}".rstrip()
    by = f" by {printable(' and '.join(rules))}" if rules else ""
    return f"{words} meets it{by}, for {paid} an hour"
