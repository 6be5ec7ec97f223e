"""What every rule would make of a plan: its step, its bytes, its memory, its price, its class.

Placement, replicas, schedule and micro-batches stay those of the plan; in every stage whose replicas have something to
agree on, the all-reduce is taken out and the rule put in its place, and the step is simulated again. Times, memory and
prices are today's, as ``check`` computes them.

Left out: whether training comes to the same loss (docs/synchronisation.md); another placement, which might suit a rule
better; the looks of it (``comparison_words.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from heterps_compile.cost.evaluate import PlacementDetail
from heterps_compile.cost.served_tables import with_gradients
from heterps_compile.cost.server_cost import server_cost
from heterps_compile.errors import HeterpsError, InputError
from heterps_compile.passes.rules_of_stages import group_of
from heterps_compile.plan.idle_units import idle_of, units_of
from heterps_compile.review.judge import own_detail
from heterps_compile.review.pose import PosedAgain
from heterps_compile.review.scheduled_today import decided_rules, scheduled_with
from heterps_compile.sync_rules.assignment import EVERY, Assignment, RuleEntry, parse_rule
from heterps_compile.sync_rules.rule import SyncGroup, SyncRule
from heterps_compile.sync_rules.rule_text import rule_text
from heterps_compile.sync_rules.rules import COMPARED, COMPARED_BESIDES, USUAL, faults_of
from heterps_compile.sync_rules.sparse_rows import sent_bytes_a_step


@dataclass(frozen=True, slots=True)
class RuleOnPlan:
    """A plan with one rule in every stage that has something to agree on.

    Attributes:
        rule: As text.
        exactness: Its class.
        fault: Why the plan cannot have it; "" where it can, and the numbers are 0 where it cannot.
        step_s: Of one batch alone.
        samples_per_s: Of that step.
        exposed_s: [S], what a step waits for after the last backward of every stage.
        handling_s: [S], what the rule takes a replica's own processor in a step.
        update_s: [S], what the optimizer's step takes it, whatever the rule.
        sent_bytes: [S], what all replicas of a stage send in a step, in the mean over steps.
        held_bytes: [S], what a replica holds with the rule.
        rule_bytes: [S], what of it is the rule's, without the safety factor.
        price_per_hour: Of all units, and of servers where the rule needs some.
        price_per_million_samples: Of the step.
    """

    rule: str
    exactness: str
    fault: str = ""
    step_s: float = 0.0
    samples_per_s: float = 0.0
    exposed_s: tuple[float, ...] = ()
    handling_s: tuple[float, ...] = ()
    update_s: tuple[float, ...] = ()
    sent_bytes: tuple[float, ...] = ()
    held_bytes: tuple[int, ...] = ()
    rule_bytes: tuple[int, ...] = ()
    price_per_hour: float = 0.0
    price_per_million_samples: float = 0.0

    @property
    def is_possible(self) -> bool:
        """Return whether the plan can have the rule."""
        return not self.fault


@dataclass(frozen=True, slots=True)
class RuleComparison:
    """The rules on a plan.

    Attributes:
        posed: The plan, and the problem of today.
        groups: What the replicas of every stage agree on.
        own: The rule of every stage of the plan, as text; empty where all all-reduce.
        rows: The rules, an all-reduce first.
    """

    posed: PosedAgain
    groups: tuple[SyncGroup, ...]
    own: tuple[str, ...]
    rows: tuple[RuleOnPlan, ...]

    @property
    def shortest(self) -> RuleOnPlan:
        """Return the rule with the shortest step, the first of equal ones."""
        return min((row for row in self.rows if row.is_possible), key=lambda row: row.step_s)

    @property
    def agrees(self) -> bool:
        """Return whether some stage has something to agree on."""
        return any(group.agrees for group in self.groups)


def compare_rules(posed: PosedAgain, rules: Sequence[str] = (), *, allow_stale: bool = False) -> RuleComparison:
    """Compare rules on a plan.

    Args:
        posed: The plan and the problem of today.
        rules: As text, beside an all-reduce; none for every rule with usual options.
        allow_stale: Take a plan that was made from another model, pool or profile.

    Raises:
        StalePlanError: where the plan does not fit the model, or was made from something else.
        InputError: where the plan is for inference, or a text is no rule.
        UnknownNameError: for an unknown rule or option.
    """
    plan = posed.plan
    if plan.request.mode != "training":
        raise InputError(
            "the plan is for inference, where replicas have nothing to agree on; compile for training (--mode training)"
        )
    asked = tuple(map(parse_rule, rules)) or (*COMPARED, *COMPARED_BESIDES)
    priced = own_detail(posed, posed.fitting(allow_stale=allow_stale))
    groups = _groups(posed)
    rows = tuple(_with(_counted_for(posed, rule), priced, rule) for rule in dict.fromkeys((USUAL, *asked)))
    return RuleComparison(posed, groups, decided_rules(plan), rows)


def _groups(posed: PosedAgain) -> tuple[SyncGroup, ...]:
    return tuple(group_of(posed.draft, stage) for stage in posed.stages())


def _counted_for(posed: PosedAgain, rule: SyncRule) -> PosedAgain:
    """Return a plan whose layers' work is that with a rule: servers step the rows of tables, which replicas do not."""
    draft = posed.draft
    costs = with_gradients(draft.layers, draft.costs, makes_sparse=draft.makes_sparse, by_servers=rule.uses_servers)
    return replace(posed, draft=replace(draft, costs=costs))


def _with(posed: PosedAgain, priced: PlacementDetail, rule: SyncRule) -> RuleOnPlan:
    text, groups = rule_text(rule), _groups(posed)
    try:
        draft = scheduled_with(posed, priced, [rule] * len(groups))
        paid = _price(posed, priced, rule)
        with faults_of(type(rule)):
            sent_bytes = tuple(sent_bytes_a_step(rule, group) * group.replicas for group in groups)
    except HeterpsError as error:
        return RuleOnPlan(text, rule.exactness, str(error))
    step_s, batch = draft.schedule.step_s, posed.plan.batch
    memory = [stage.memory for stage in draft.stages]
    return RuleOnPlan(
        rule=text,
        exactness=rule.exactness,
        step_s=step_s,
        samples_per_s=batch / step_s,
        exposed_s=tuple(stage.all_reduce_s for stage in draft.stages),
        handling_s=tuple(stage.handling_s for stage in draft.stages),
        update_s=tuple(stage.update_s for stage in draft.stages),
        sent_bytes=sent_bytes,
        held_bytes=tuple(0 if each is None else each.total_bytes for each in memory),
        rule_bytes=tuple(0 if each is None else each.sync_bytes for each in memory),
        price_per_hour=paid,
        price_per_million_samples=paid / 3600 * step_s / batch * 1e6,
    )


def _price(posed: PosedAgain, priced: PlacementDetail, rule: SyncRule) -> float:
    """Return the price of the plan's units, and of the servers of a rule and of tables.

    Raises:
        InputError: where the rule needs servers and the pool has none.
    """
    draft, stages = posed.draft, posed.plan.stages
    pool = draft.cluster
    paid = sum(count * pool.device_type(device).price_per_hour for stage in stages for device, count in stage.units)
    paid += sum(idle.price_per_hour for idle in idle_of(units_of(stages), pool.device_types))
    server, tables = pool.parameter_server, posed.plan.tables
    if server is not None and tables is not None:
        paid += tables.servers * server.price_per_hour
    if rule.uses_servers:
        if server is None:
            raise InputError(f"the pool {pool.name!r} has no parameter servers; add a [parameter_server] to it")
        everywhere = Assignment((RuleEntry(EVERY, rule),))
        paid += server.price_per_hour * server_cost(draft.layers, draft.costs, server, everywhere).cores(priced.stages)
    return paid
