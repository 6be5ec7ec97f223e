"""The rules by which replicas may agree, as tables of a problem that a search sees.

An all-reduce in every stage needs none: the problem has it as it is.

Left out: what a rule is to which stage (``rule_times.py``), and which rules are asked for or allowed (``passes``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from heterps_compile.cluster.devices import Cluster
from heterps_compile.ir.layers import LayerGraph
from heterps_compile.sync_rules.amounts import Amounts
from heterps_compile.sync_rules.network import Network
from heterps_compile.sync_rules.rule import SyncGroup, SyncRule
from heterps_compile.sync_rules.rules import faults_of
from heterps_compile.sync_rules.sparse_rows import amounts

from .layer_cost import LayerCost
from .memory import SAFETY_FACTOR
from .pose import network_of
from .problem import Floats, Problem
from .rule_times import RuleForm, RuleSums, least_sync_s
from .sync_groups import groups_of_layers


@dataclass(frozen=True, slots=True)
class PossibleRule:
    """A rule that stages may have.

    Attributes:
        rule: The rule.
        layers: Whose first entry it is, by index.
        is_open: Whether a stage need not have it although a search has to reckon with it.
        saves: Whether no stage has it that would send no less with it than with an all-reduce.
    """

    rule: SyncRule
    layers: tuple[int, ...] = ()
    is_open: bool = False
    saves: bool = False


@dataclass(frozen=True, slots=True)
class AgreedOn:
    """What replicas of every layer alone agree on.

    Attributes:
        timed: [L], as times count it.
        held: [L], as memory counts it, no more than all of it.
        networks: [T], between replicas of a type.
        safety_factor: By which what is held is multiplied.
    """

    timed: Sequence[SyncGroup]
    held: Sequence[SyncGroup]
    networks: Sequence[Network]
    safety_factor: float = 1.0


def agreed_on(problem: Problem, layers: LayerGraph, costs: Sequence[LayerCost], cluster: Cluster) -> AgreedOn:
    """Return what replicas of the layers of a model agree on."""
    networks = [network_of(cluster, name) for name in problem.type_names]
    timed, held = (groups_of_layers(layers, costs, tied=tied) for tied in (True, False))
    return AgreedOn(timed, held, networks, SAFETY_FACTOR)


def with_rules(problem: Problem, of: AgreedOn, possible: Sequence[PossibleRule]) -> Problem | None:
    """Return a problem whose stages may have rules, in the order of their entries; None where one adds up over nothing.

    Raises:
        PlugInError: where a third party's rule fails.
    """
    rules = []
    for each in possible:
        of_time, of_memory = (_amounts(each.rule, groups) for groups in (of.timed, of.held))
        if of_time is None or of_memory is None:
            return None
        if each.saves and any(one.halves for one in of_time):
            continue  # its halves are what a ring sends, and products come besides
        rules.append(_tables(problem, of, each, (of_time, of_memory)))
    least_s = least_sync_s(rules, problem.machines)
    return replace(problem, rules=tuple(rules), sync_s=least_s)


def _amounts(rule: SyncRule, groups: Sequence[SyncGroup]) -> list[Amounts] | None:
    """Return what layers add; None where the rule does not say, or says it of one that it has changed since."""
    if "amounts" not in vars(type(rule)):
        return None
    with faults_of(type(rule)):
        found = [amounts(rule, group) for group in groups]
    known = [each for each in found if each is not None]
    return known if len(known) == len(found) else None


def held_without_rules(problem: Problem) -> Floats:
    """Return [L], what a replica holds of every layer but for rules; a tied tensor counts where it stands first."""
    tied_bytes = np.zeros(problem.layer_count)
    np.add.at(tied_bytes, problem.tied_second, problem.tied_bytes)
    return problem.weight_bytes - tied_bytes + problem.activation_bytes * problem.keeps_activations


def _tables(problem: Problem, of: AgreedOn, each: PossibleRule, found: tuple[list[Amounts], list[Amounts]]) -> RuleSums:
    (of_time, of_memory), networks, safety = found, of.networks, of.safety_factor
    per_byte = np.array([network.seconds_per_byte for network in networks])
    rule_bytes = safety * np.array([one.held_bytes for one in of_memory])
    present = np.zeros(problem.layer_count)
    present[list(each.layers)] = 1.0
    form = RuleForm(
        each.rule,
        sums_inside=of_time[0].sums_inside,
        sums_between=of_time[0].sums_between,
        halves=of_time[0].halves,
        is_open=each.is_open,
    )

    def of_types(values: Floats) -> Floats:
        return np.repeat(values[:, None], problem.type_count, axis=1)

    return RuleSums(
        form,
        ring_s=np.outer([2.0 * one.ring_bytes for one in of_time], per_byte),
        gather_s=np.outer([one.gather_bytes for one in of_time], per_byte),
        base_bytes=of_types(held_without_rules(problem) + rule_bytes),
        each_bytes=of_types(safety * np.array([one.replica_bytes for one in of_memory])),
        present=of_types(present),
        whole=of_types(np.array([one.is_whole and one.ring_bytes > 0 for one in of_time], np.float64)),
        factored=of_types(np.array([one.is_factored for one in of_time], np.float64)),
        room_bytes=problem.memory_bytes,
        most_units=np.array([most_that_save(each.rule, network) if each.saves else np.inf for network in networks]),
    )


def most_that_save(rule: SyncRule, network: Network) -> float:
    """Return the most replicas that send less by a rule than by an all-reduce; inf where all do.

    Of a rule that sends a part of the gradients to every machine: those on fewer than 1 / part machines.
    """
    density = getattr(rule, "density", 0.0)
    if not density:
        return np.inf
    machines = int(np.ceil(1 / density * (1 - 1e-12))) - 1
    return float(max(1, machines * network.units_per_machine))
