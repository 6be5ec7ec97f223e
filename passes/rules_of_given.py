"""The rules by which replicas agree in plans of problems with given costs.

The search minimises over them as over those of a model (``searched_rules.py``); the stages of the plans that it finds
get them here: those of the first entry that matches one of their layers, or with ``auto`` the one that a step waits for
least, of equal ones the one that keeps most of training in one process.

Left out: rules of third parties that do not say what adds up over layers, and servers, which given costs do not count.
"""

from dataclasses import replace

from heterps_compile.cost.pose_rules import AgreedOn, with_rules
from heterps_compile.errors import InputError
from heterps_compile.plan.request import ALONE, Request
from heterps_compile.problem_file.given_plan import GivenPlan, GivenStage
from heterps_compile.problem_file.given_problem import REPLICA, GivenProblem
from heterps_compile.problem_file.given_rules import gradients_of, group_of
from heterps_compile.problem_file.message_times import group_network
from heterps_compile.problem_file.pose_given import PosedGiven
from heterps_compile.problem_file.problem_laws import shown
from heterps_compile.sync_rules.assignment import LayerWords
from heterps_compile.sync_rules.rule import SyncRule
from heterps_compile.sync_rules.rules import USUAL, faults_of

from .searched_rules import is_worth_it, possible_rules, rules_to_choose_from

_NO_KIND = "other"


def refuse_given_rules(given: GivenProblem, request: Request) -> None:
    """Refuse rules that given costs are not planned with.

    Raises:
        InputError: naming them.
        UnknownNameError: for a pattern that matches no layer.
    """
    if request.is_all_reduced:
        return
    asked = f"problem {shown(given.name)}: --sync {request.synchronisation}"
    if given.batch_of == REPLICA:
        raise InputError(
            f"{asked} is not looked at where batches are of one replica each, whose gradients are summed in rounds; "
            f"leave it out, or say that a batch is of a step (batch_of)"
        )
    if request.sync_rules.uses_servers:
        raise InputError(f"{asked} needs servers, which given costs do not count; take another rule")
    request.sync_rules.refuse_unknown(_words(given))


def with_given_rules(given: GivenProblem, request: Request, posed: PosedGiven) -> PosedGiven:
    """Return the arrays with the rules that stages may have.

    Raises:
        InputError: where a rule does not say what adds up over layers.
        PlugInError: where a third party's rule fails.
    """
    possible = [] if request.is_all_reduced else possible_rules(request, _words(given))
    if not possible:
        return posed
    problem = posed.problem
    networks = [group_network(given, each) for each in posed.groups]
    is_divided = any(each.tensor_parallel > 1 for each in posed.groups)
    groups = [
        gradients_of([layer], max(each.parameter_bytes for each in layer.times), 2, networks[0], is_divided=is_divided)
        for layer in given.layers
    ]
    found = with_rules(problem, AgreedOn(groups, groups, networks), possible)
    if found is None:
        names = ", ".join(dict.fromkeys(each.rule.name for each in possible if each.rule != USUAL))
        raise InputError(
            f"problem {shown(given.name)}: --sync {request.synchronisation} cannot be searched: what {names} takes "
            f"does not add up over layers, or needs the shapes of their tensors (layers[].shapes); give these, or give "
            f"the rule to the stages of a plan (predict)"
        )
    return replace(posed, problem=found)


def plan_with_rules(given: GivenProblem, request: Request, plan: GivenPlan) -> GivenPlan:
    """Return a plan whose stages have the rules that are asked for, or that are chosen.

    Raises:
        PlugInError: where a third party's rule fails.
    """
    words = _words(given)
    if request.chooses_rules:
        rules = [_chosen(given, request, plan, stage) for stage in plan.stages]
    else:
        rules = list(
            request.sync_rules.of_stages([[words[i] for i in stage.layers] for stage in plan.stages], is_strict=False)
        )
    stages = zip(plan.stages, rules, strict=True)
    return replace(
        plan, stages=tuple(replace(stage, sync=rule if stage.width > 1 else USUAL) for stage, rule in stages)
    )


def _chosen(given: GivenProblem, request: Request, plan: GivenPlan, stage: GivenStage) -> SyncRule:
    held_bytes = [
        sum(given.layers[i].by_group[each.device, each.tensor_parallel].parameter_bytes for i in stage.layers)
        for each in stage.replicas
    ]
    size_bytes, group = max(held_bytes), group_of(given, plan, stage, held_bytes)
    room = min(given.known_pool.device_type(each.device).memory_bytes for each in stage.replicas)
    left = room - size_bytes * given.held_per_parameter

    def waits_s(rule: SyncRule) -> float:
        with faults_of(type(rule)):
            found = rule.exposed(group)
        return found.time_s if request.reading == ALONE else found.bytes_s

    def is_possible(rule: SyncRule) -> bool:
        with faults_of(type(rule)):
            return not rule.refusal(group) and rule.extra_bytes(group) <= left

    if not group.agrees:
        return USUAL
    candidates = [rule for rule in rules_to_choose_from(request, ()) if rule == USUAL or is_possible(rule)]
    return min((rule for rule in candidates if is_worth_it(rule, group)), key=waits_s)


def _words(given: GivenProblem) -> list[LayerWords]:
    return [LayerWords(layer.name, _NO_KIND) for layer in given.layers]
