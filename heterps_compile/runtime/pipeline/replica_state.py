"""What ranks of a training run hold in common, and the process groups in which they agree on it.

::

    group                        agrees on
    replicas of a stage          gradients and running statistics of the stage; of the last one, the loss
    ranks that hold a tied one   the gradient of a tensor that several stages hold

Every rank makes the groups it is in, and no others, in one order: ranks that are no part of the pipeline need not
know of them. Where ranks share machines, and are on several, those that own the same piece of a sum on each machine are
a group besides (``runtime/sync/by_machine.py``).

How the replicas of a stage agree is its rule's affair (``runtime/sync/``). A tensor that several stages hold has the
rule that all of them have.

Left out: sums that nobody shares.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.plan.plan import Plan
from heterps_compile.runtime.sync.collective import Collective, CountedGroup, machines_of, sums_inside_first
from heterps_compile.runtime.sync.contract import Rule, Shared
from heterps_compile.runtime.sync.find import capabilities_of, make_rule
from heterps_compile.sync_rules.rule import SyncRule
from heterps_compile.sync_rules.rules import USUAL

from .gradient_sums import OwnGradients, SharedGradients
from .layout import Layout
from .planned_machines import planned_sizes
from .rank_group import RankGroup
from .rank_parts import RankParts
from .read_stage import Tied
from .world import make_group, world

if TYPE_CHECKING:
    from heterps_compile.runtime.sync.by_machine import ByMachine

    from .running_statistics import RunningStatistics

TIED = -1
"""Stands for a stage where bytes are of tensors that several stages hold."""


@dataclass(slots=True)
class SharedState:
    """Gradients and running statistics of one rank.

    Attributes:
        gradients: Of every stage of the rank.
        tied: Of tensors that several stages hold.
        statistics: Of every stage of the rank that has several replicas, and buffers.
        rules: By which this rank agrees with others.
        own: Gradients that no other rank has.
        last_group: The replicas of the last stage, where this rank is one of several; else None.
        last_rule: By which they agree; None where there is no such rule.
        counted: The parameters that are counted here where each of the model counts once: on its first rank.
        scale: By which losses are multiplied.
    """

    gradients: dict[int, SharedGradients | OwnGradients] = field(default_factory=dict)
    tied: list[SharedGradients] = field(default_factory=list)
    statistics: "dict[int, RunningStatistics]" = field(default_factory=dict)
    rules: list[Rule] = field(default_factory=list)
    own: list[OwnGradients] = field(default_factory=list)
    last_group: RankGroup | None = None
    last_rule: Rule | None = None
    counted: list[nn.Parameter] = field(default_factory=list)
    scale: float = 1.0
    _groups: dict[int, list[CountedGroup]] = field(default_factory=dict)
    _told: dict[int, tuple[int, int]] = field(default_factory=dict)
    _started: set[int] = field(default_factory=set)

    def parameters(self) -> list[nn.Parameter]:
        """Return the trained parameters of the rank."""
        return [p for gradients in (*self.gradients.values(), *self.tied) for p in gradients.parameters.values()]

    def begin(self, step: int) -> None:
        """Begin a step."""
        self._started.clear()
        for rule in self.rules:
            rule.begin(step)
        for statistics in self.statistics.values():
            statistics.begin()

    def begin_gradients(self) -> None:
        """Begin the gradients of a step, before the first backward: forwards, for which others wait, come first."""
        for gradients in (*self.gradients.values(), *self.tied):
            gradients.begin()

    def start_gradients(self, stage: int) -> None:
        """Begin to sum the gradients of a stage, which has run its last backward; a second time does nothing."""
        if stage not in self._started:
            self._started.add(stage)
            self.gradients[stage].start(self.scale)

    def finish(self) -> None:
        """Sum what is not summed yet, and wait for all of it."""
        for stage in sorted(self.gradients, reverse=True):
            self.start_gradients(stage)
        for tied in self.tied:
            tied.start(self.scale)
        for gradients in (*self.gradients.values(), *self.tied):
            gradients.finish()
        for statistics in self.statistics.values():
            statistics.finish()

    @property
    def steps_alone(self) -> bool:
        """Return whether nothing but their losses would make replicas of the last stage wait in a step."""
        return self.last_rule is not None and self.last_rule.can.apart

    @property
    def parameters_alone(self) -> dict[str, nn.Parameter]:
        """Return the parameters by name that this rank steps by itself, though others hold them."""
        alone = [rule.shared.parameters for rule in self.rules if rule.can.steps_alone]
        return {name: parameter for parameters in alone for name, parameter in parameters.items()}

    def norm_groups(self) -> list[Shared]:
        """Return the parameters that several ranks step alike, over which norms can be split, with these ranks."""
        return [rule.shared for rule in self.rules if not rule.can.steps_alone]

    def places(self) -> dict[str, tuple[int, int]]:
        """Return of every parameter by name which replica this rank is, and of how many."""
        found = {name: (0, 1) for own in self.own for name in own.parameters}
        for rule in self.rules:
            found |= dict.fromkeys(rule.shared.parameters, (rule.shared.place, rule.shared.count))
        return found

    def before_update(self, step: int) -> None:
        """Be called before the optimiser's step."""
        for rule in self.rules:
            rule.before_step(step)

    def after_update(self, step: int, *, is_skipped: bool) -> None:
        """Be called after the optimiser's step, or after it was skipped."""
        for rule in self.rules:
            rule.after_step(step, is_skipped=is_skipped)
        for own in self.own:
            own.after_step(is_skipped=is_skipped)

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Let replicas that differ hold what they agree on while a block runs; every rank calls it."""
        with ExitStack() as all_of_them:
            for rule in self.rules:
                all_of_them.enter_context(rule.agreed())
            yield

    def rule_state(self) -> dict[str, Tensor]:
        """Return what this rank has of its own by its rules, by ``KIND:PARAMETER``."""
        found: dict[str, Tensor] = {}
        for rule in self.rules:
            found |= rule.state()
        for own in self.own:
            found |= own.state()
        return found

    def load_rule_state(self, state: Mapping[str, Tensor]) -> None:
        """Take it back before the first step.

        Raises:
            RunError: where something would be lost.
        """
        for rule in self.rules:
            rule.load_state(_of(state, rule.shared.parameters))
        for own in self.own:
            own.load_state(_of(state, own.parameters))

    def measure(self) -> dict[str, dict[int, Any]]:
        """Measure by stage the bytes sent to other replicas since the last call, and how far these are apart.

        Tensors that several stages hold count for stage -1.
        """
        sent, between = dict[int, int](), dict[int, int]()
        for stage, groups in self._groups.items():
            totals = sum(group.sent_bytes for group in groups), sum(group.between_bytes for group in groups)
            before = self._told.get(stage, (0, 0))
            sent[stage], to_others = totals[0] - before[0], totals[1] - before[1]
            between |= {stage: to_others} if to_others else {}
            self._told[stage] = totals
        gaps = {index: gap for index, gradients in self.gradients.items() if (gap := gradients.gap()) is not None}
        return {"sync_bytes": sent, "sync_between_bytes": between, "replica_gap": gaps}

    def close(self) -> None:
        """End what runs beside the training; every rank calls it, after its last step."""
        for rule in self.rules:
            rule.close()


def share_state(
    parts: RankParts,
    *,
    sync: Sequence[SyncRule] = (),
    is_scaled: bool = False,
    order: Callable[[int], int] | None = None,
) -> SharedState:
    """Return what a rank shares with others; every rank of the pipeline calls it.

    Stages of one rank that hold one tied tensor hold the same ``nn.Parameter`` afterwards.

    Args:
        parts: Of the rank.
        sync: The rule of every stage; empty for all-reduce in all of them.
        is_scaled: Whether losses are scaled, so that a step may be skipped.
        order: Which batch of data that come again a step has; None for one after the other.

    Raises:
        RunError: where the plan has a tied tensor that ``parts.tied`` does not have, or a rule that nothing runs.
    """
    layout, rank, tied = parts.layout, parts.rank, parts.tied
    state = SharedState()
    modules = {index: stage for index, stage in parts.stages.items() if isinstance(stage, nn.Module)}
    held = {index: _parameters(module) for index, module in modules.items()}
    _refuse_unknown(parts.plan, modules, held, tied)
    shared: dict[tuple[tuple[int, ...], tuple[int, ...]], dict[str, nn.Parameter]] = {}

    def gradients(parameters: Mapping[str, nn.Parameter], group: RankGroup, holders: Sequence[int]) -> SharedGradients:
        kept = state._groups.setdefault(holders[0] if len(holders) == 1 else TIED, [])
        stages = " and ".join(map(str, holders))
        where = f"stage {stages}" if len(holders) == 1 else f"stages {stages}"

        def more_groups() -> tuple[Collective, Collective]:
            another = make_group(group.ranks, has_thread=True)
            return _counted(another, parts, kept, of_gpus=False)[0], another

        share = _share_of(parts.layout, holders, rank)
        whole, by_machine = _counted(group, parts, kept, of_gpus=world().gpus.connects(group.ranks))
        is_one_machine = _is_one_machine(parts, group, holders)
        shared = Shared(
            whole, rank, parameters, share, is_scaled, where, more_groups, by_machine, is_one_machine, order
        )
        asked = sync[holders[0]] if sync else USUAL
        if len(holders) > 1 and all(len(layout.ranks_of(holder)) == 1 for holder in holders):
            asked = USUAL
        elif len(holders) > 1 and not (capabilities_of(asked).sums and {asked} >= {sync[i] for i in holders if sync}):
            raise RunError(f"{where} share the weight {printable(min(parameters))!r}; expected one rule that sums")
        state.rules.append(make_rule(asked, shared))
        return SharedGradients(state.rules[-1])

    apart: set[int] = set()
    for storage, places in sorted(tied.items()):
        here = [(index, name) for index, name in places if name in held.get(index, {})]
        holders = tuple(sorted({index for index, _ in places}))
        ranks = tuple(sorted({r for index in holders for r in layout.ranks_of(index)}))
        parameter = _one_parameter(modules, held, here)
        if parameter is not None and len(ranks) > 1:
            shared.setdefault((ranks, holders), {})[storage] = parameter
            apart.add(id(parameter))
            state.counted += [parameter] if rank == min(ranks) else []
    for index, module in sorted(modules.items()):
        own = {name: p for name, p in _parameters(module).items() if p.requires_grad and id(p) not in apart}
        ranks = layout.ranks_of(index)
        state.counted += own.values() if rank == min(ranks) else []
        if len(ranks) == 1:
            state.own.append(OwnGradients(own))
            state.gradients[index] = state.own[-1]
            continue
        group = make_group(ranks, of_gpus=True)
        state.gradients[index] = summed = gradients(_each_once(own), group, [index])
        if buffers := dict(module.named_buffers()):
            from .running_statistics import RunningStatistics  # noqa: PLC0415 - few models have them

            momentum: Mapping[str, float] = getattr(module, "momentum", {})
            state.statistics[index] = RunningStatistics(index, buffers, layout.micro_batches, group, momentum)
        if index == layout.stage_count - 1:
            state.last_group = group
            state.last_rule = summed.rule
    state.tied = [
        gradients(parameters, make_group(ranks, of_gpus=True), holders)
        for (ranks, holders), parameters in sorted(shared.items(), key=lambda item: item[0])
    ]
    return state


def _counted(
    group: RankGroup, parts: RankParts, kept: list[CountedGroup], *, of_gpus: bool
) -> "tuple[Collective, ByMachine | None]":
    """Make a group count, and sum by machine if its ranks share some.

    Args:
        group: Some ranks.
        parts: Of this rank.
        kept: Groups that count, to which those made here are added.
        of_gpus: Whether it sums tensors of GPUs without the CPU's memory, and so better than by machine.
    """
    if not sums_inside_first(machines_of(group.ranks, parts.machine_of)):
        kept.append(CountedGroup(group, parts.rank, parts.machine_of))
        return kept[-1], None
    from heterps_compile.runtime.sync.by_machine import ByMachine  # noqa: PLC0415 - few runs share machines

    def between(owners: Sequence[int]) -> CountedGroup:
        kept.append(CountedGroup(make_group(owners), parts.rank, parts.machine_of))
        return kept[-1]

    kept.append(by_machine := ByMachine(group, parts.rank, parts.machine_of, between))
    if not of_gpus:
        return by_machine, by_machine
    kept.append(whole := CountedGroup(group, parts.rank, parts.machine_of))
    return whole, by_machine


def _is_one_machine(parts: RankParts, group: RankGroup, holders: Sequence[int]) -> bool:
    """Return whether the replicas of a stage are on one machine, and the plan counts with that."""
    if len(holders) != 1 or len(machines_of(group.ranks, parts.machine_of)) > 1:
        return False
    return len(planned_sizes(parts.plan, holders[0], len(group.ranks))) == 1


def _share_of(layout: Layout, holders: Sequence[int], rank: int) -> float:
    """Return how much of a step's micro-batches a rank has; of stages that hold one tensor, in the mean over them."""
    places = [(stage, i) for stage in holders for i in range(layout.micro_batches)]
    return sum(layout.owner(*place) == rank for place in places) / len(places)


def _of(state: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    return {key: tensor for key, tensor in state.items() if key.partition(":")[2] in parameters}


def _parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of a stage under every name that its state has for them."""
    state = module.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in state.items() if isinstance(tensor, nn.Parameter)}


def _refuse_unknown(
    plan: Plan, modules: Mapping[int, nn.Module], held: Mapping[int, Mapping[str, nn.Parameter]], tied: Tied
) -> None:
    for index, module in modules.items():
        names: Mapping[str, str] = getattr(module, "tied_as", {})
        for name, parameter in held[index].items():
            storage = names.get(name, name)
            if parameter.requires_grad and storage in plan.replicated and storage not in tied:
                raise RunError(
                    f"the plan has the parameter {printable(storage)!r} in several stages, and nobody said in which; "
                    f"give the engine tied=read_tied(folder, plan)"
                )


def _one_parameter(
    modules: Mapping[int, nn.Module],
    held: Mapping[int, Mapping[str, nn.Parameter]],
    here: list[tuple[int, str]],
) -> nn.Parameter | None:
    """Return the one parameter that the places of a tied tensor on this rank hold; None where it has none."""
    if not here:
        return None
    parameter = held[here[0][0]][here[0][1]]
    for index, _ in here[1:]:
        others = {id(held[i][name]) for i, name in here if i == index}
        for block in modules[index].modules():
            for name, own in block._parameters.items():
                if id(own) in others:
                    block._parameters[name] = parameter
    return parameter


def _each_once(parameters: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Leave out further names of one parameter."""
    first: dict[int, str] = {}
    for name, parameter in parameters.items():
        first.setdefault(id(parameter), name)
    return {name: parameter for name, parameter in parameters.items() if first[id(parameter)] == name}
