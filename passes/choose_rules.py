"""Choose the rule by which the replicas of every stage agree: the one asked for, or the shortest step.

The placement and its replicas were found with these rules (``searched_rules.py``); where a search does not know them,
with an all-reduce everywhere, and so is what was proven (``make_plan.py`` says so).

Left out: what rules take, and the choice among them (``rules_of_stages.py``).
"""

from dataclasses import dataclass
from typing import ClassVar

from heterps_compile.sync_rules.assignment import parse_rule
from heterps_compile.sync_rules.rules import ALIASES

from .drafts import Agreed, Provisioned, advance
from .rules_of_stages import refuse_rules_out_of_limits, with_request, with_rules


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
        found = with_request(draft)
        if any(stage.sync is not None for stage in found.stages):
            refuse_rules_out_of_limits(found)
        return advance(found, Agreed)
