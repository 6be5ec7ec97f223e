"""Choose the rule by which the replicas of every stage agree: the one asked for, or the shortest step.

The placement and its replicas are those of a plan that all-reduces everywhere, and so is what was proven of them
(``make_plan.py`` says so); with an all-reduce everywhere nothing changes here.

Left out: what rules take, and the choice among them (``rules_of_stages.py``).
"""

from dataclasses import dataclass
from typing import ClassVar

from heterps_compile.sync_rules.assignment import parse_rule
from heterps_compile.sync_rules.rules import ALIASES

from .drafts import Agreed, Provisioned, advance
from .rules_of_stages import chosen_rules, refuse_rules_out_of_limits, rules_asked, with_rules


@dataclass(frozen=True, slots=True)
class ChooseRules:
    """Give every stage its rule.

    Attributes:
        decided: The rule of every stage, as text, where that was decided before; empty for the request's.
    """

    decided: tuple[str, ...] = ()
    name: ClassVar[str] = "choose-rules"

    def __call__(self, draft: Provisioned) -> Agreed:
        """Fill in the stages' rules, and what they take and hold with them.

        Raises:
            UnknownNameError: for a pattern that matches no stage.
            InfeasibleError: where a rule cannot be that of a stage, or keeps the plan from its limits.
        """
        request = draft.request
        if self.decided:
            rules = tuple(map(parse_rule, self.decided))
            return advance(with_rules(draft, rules), Agreed)
        if request.is_all_reduced or request.synchronisation in ALIASES:  # the second as plans of before have it
            return advance(draft, Agreed)
        rules = chosen_rules(draft, request.allow) if request.chooses_rules else rules_asked(draft, draft.stages)
        found = with_rules(draft, rules)
        if any(stage.sync is not None for stage in found.stages):
            refuse_rules_out_of_limits(found)
        return advance(found, Agreed)
