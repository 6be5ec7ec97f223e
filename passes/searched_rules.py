"""Which rules of synchronisation a search has to reckon with, in the problem that it sees.

With ``--sync RULES`` a stage has the rule of the first entry that one of its layers matches, which follows from its
layers. With ``auto`` a stage has the rule that takes the least of those that are allowed, so that the search minimises
over rules as well. Either way what was proven of the problem is proven of plans with rules.

What ``auto`` chooses from are ``COMPARED``, or the rules in its parentheses, that need no servers; a rule has to send
less than an all-reduce does, or be waited for by nobody: fewer messages alone are no reason to keep less of training
in one process.

Left out: rules of third parties that do not say what adds up over layers, and rules together with the paper's rules for
replicas: their placements are searched with an all-reduce.
"""

from collections.abc import Sequence
from dataclasses import replace

from heterps_compile.cost.layer_cost import LayerCost
from heterps_compile.cost.pose_rules import PossibleRule, agreed_on, with_rules
from heterps_compile.cost.sync_groups import layer_words
from heterps_compile.plan.request import PROVISIONERS, Request
from heterps_compile.sync_rules.assignment import Assignment, LayerWords
from heterps_compile.sync_rules.rule import EXACTNESSES, REFUSED, SyncGroup, SyncRule, allowed_classes
from heterps_compile.sync_rules.rules import COMPARED, USUAL, faults_of
from heterps_compile.sync_rules.sparse_rows import exposed, sent_bytes_a_step

from .drafts import Posed


def rules_to_choose_from(request: Request, costs: Sequence[LayerCost]) -> tuple[SyncRule, ...]:
    """Return the rules that ``auto`` may give a stage, those that keep most of training in one process first.

    Where the model makes sparse gradients, in whatever stage, rules that refuse these are not among them.
    """
    named = request.rules_named or COMPARED
    allowed, has_sparse = allowed_classes(request.allow), any(cost.looked_up for cost in costs)
    usable = (rule for rule in (USUAL, *named) if not (has_sparse and rule.of_sparse == REFUSED))
    found = (rule for rule in usable if rule.exactness in allowed and not rule.uses_servers)
    return tuple(sorted(dict.fromkeys(found), key=lambda rule: EXACTNESSES.index(rule.exactness)))


def is_worth_it(rule: SyncRule, group: SyncGroup) -> bool:
    """Return whether ``auto`` may give a group a rule, by what it sends and by who waits for it."""
    with faults_of(type(rule)):
        is_waited_for = exposed(rule, group).time_s > 0
        is_less = sent_bytes_a_step(rule, group) < sent_bytes_a_step(USUAL, group)
        return rule == USUAL or not is_waited_for or is_less


def with_searched_rules(draft: Posed) -> Posed:
    """Return a draft whose problem has the rules that its stages may have.

    Raises:
        PlugInError: where a third party's rule fails.
    """
    request = draft.request
    is_usual = request.is_all_reduced or request.mode != "training" or request.provisioner != PROVISIONERS[0]
    if is_usual:
        return draft
    possible = possible_rules(request, layer_words(draft.layers, draft.costs), draft.costs)
    if not possible:
        return draft
    found = agreed_on(draft.problem, draft.layers, draft.costs, draft.cluster)
    problem = with_rules(draft.problem, found, possible)
    return draft if problem is None else replace(draft, problem=problem)


def possible_rules(
    request: Request, words: Sequence[LayerWords], costs: Sequence[LayerCost] = ()
) -> list[PossibleRule]:
    """Return the rules that stages of layers may have; none where all all-reduce, or pay servers for as much."""
    possible = _allowed(request, costs) if request.chooses_rules else _asked(request.sync_rules, words)
    return [] if all(each.rule == USUAL or each.rule.uses_servers for each in possible) else possible


def _allowed(request: Request, costs: Sequence[LayerCost]) -> list[PossibleRule]:
    return [PossibleRule(rule, is_open=True, saves=rule != USUAL) for rule in rules_to_choose_from(request, costs)]


def _asked(assignment: Assignment, words: Sequence[LayerWords]) -> list[PossibleRule]:
    first = assignment.first_entries(words)
    entries = [
        PossibleRule(entry.rule, tuple(i for i, own in enumerate(first) if own == place))
        for place, entry in enumerate(assignment.entries)
    ]
    left = tuple(i for i, own in enumerate(first) if own == len(entries))
    return [each for each in (*entries, PossibleRule(USUAL, left)) if each.layers]
