"""What ranks of a training run hold in common, and the process groups in which they agree on it.

::

    group                        agrees on
    replicas of a stage          gradients and running statistics of the stage; of the last one, the loss
    ranks that hold a tied one   the gradient of a tensor that several stages hold

Every rank makes the groups it is in, and no others, in one order: ranks that are no part of the pipeline need not
know of them.

Left out: sums that nobody shares.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.plan.plan import Plan

from .gradient_sums import OwnGradients, SharedGradients
from .ordered_gradient_sums import OrderedGradients
from .rank_group import Group
from .rank_parts import RankParts
from .read_stage import Tied
from .running_statistics import RunningStatistics


@dataclass(slots=True)
class SharedState:
    """Gradients and running statistics of one rank.

    Attributes:
        gradients: Of every stage of the rank.
        tied: Of tensors that several stages hold.
        statistics: Of every stage of the rank that has several replicas.
        last_group: The replicas of the last stage, where this rank is one of several; else None.
        counted: The parameters that are counted here where each of the model counts once: on its first rank.
    """

    gradients: dict[int, SharedGradients | OrderedGradients | OwnGradients] = field(default_factory=dict)
    tied: list[SharedGradients | OrderedGradients] = field(default_factory=list)
    statistics: dict[int, RunningStatistics] = field(default_factory=dict)
    last_group: Group | None = None
    counted: list[nn.Parameter] = field(default_factory=list)
    _started: set[int] = field(default_factory=set)

    def parameters(self) -> list[nn.Parameter]:
        """Return the trained parameters of the rank."""
        return [p for gradients in (*self.gradients.values(), *self.tied) for p in gradients.parameters.values()]

    def begin(self) -> None:
        """Begin a step."""
        self._started.clear()
        for statistics in self.statistics.values():
            statistics.begin()

    def begin_gradients(self) -> None:
        """Begin the gradients of a step, before the first backward: forwards, for which others wait, come first."""
        for gradients in (*self.gradients.values(), *self.tied):
            gradients.begin()

    def keep(self, stage: int, micro_batch: int) -> None:
        """Put the gradients of a micro-batch aside, where they are summed in order."""
        for gradients in (self.gradients[stage], *self.tied):
            if isinstance(gradients, OrderedGradients):
                gradients.keep(stage, micro_batch)

    def start_gradients(self, stage: int) -> None:
        """Begin to sum the gradients of a stage, which has run its last backward; a second time does nothing."""
        if stage not in self._started:
            self._started.add(stage)
            self.gradients[stage].start()

    def finish(self) -> None:
        """Sum what is not summed yet, and wait for all of it."""
        for stage in sorted(self.gradients, reverse=True):
            self.start_gradients(stage)
        for tied in self.tied:
            tied.start()
        for gradients in (*self.gradients.values(), *self.tied):
            gradients.finish()
        for statistics in self.statistics.values():
            statistics.finish()


def share_state(parts: RankParts, *, exact_sums: bool = False) -> SharedState:
    """Return what a rank shares with others; every rank of the pipeline calls it.

    Stages of one rank that hold one tied tensor hold the same ``nn.Parameter`` afterwards.

    Args:
        parts: Of the rank.
        exact_sums: Add up gradients in the order of one process.

    Raises:
        RunError: where the plan has a tied tensor that ``parts.tied`` does not have.
    """
    layout, rank, tied = parts.layout, parts.rank, parts.tied
    state = SharedState()
    modules = {index: stage for index, stage in parts.stages.items() if isinstance(stage, nn.Module)}
    held = {index: _parameters(module) for index, module in modules.items()}
    _refuse_unknown(parts.plan, modules, held, tied)
    shared: dict[tuple[tuple[int, ...], tuple[int, ...]], dict[str, nn.Parameter]] = {}

    def gradients(
        parameters: Mapping[str, nn.Parameter], group: Group, holders: Sequence[int]
    ) -> SharedGradients | OrderedGradients:
        if not exact_sums:
            return SharedGradients(parameters, group)
        parts = [
            [(stage, layout.owner(stage, i)) for stage in sorted(holders, reverse=True)]
            for i in range(layout.micro_batches)
        ]
        return OrderedGradients(parameters, group, rank, parts)

    apart: set[int] = set()
    for storage, places in sorted(tied.items()):
        here = [(index, name) for index, name in places if name in held.get(index, {})]
        holders = tuple(sorted({index for index, _ in places}))
        ranks = tuple(sorted({r for index in holders for r in layout.ranks_of(index)}))
        parameter = _one_parameter(modules, held, here)
        is_summed_here = len(ranks) > 1 or (exact_sums and len(holders) > 1)  # by backward itself in another order
        if parameter is not None and is_summed_here:
            shared.setdefault((ranks, holders), {})[storage] = parameter
            apart.add(id(parameter))
            state.counted += [parameter] if rank == min(ranks) else []
    for index, module in sorted(modules.items()):
        own = {name: p for name, p in _parameters(module).items() if p.requires_grad and id(p) not in apart}
        ranks = layout.ranks_of(index)
        state.counted += own.values() if rank == min(ranks) else []
        if len(ranks) == 1:
            state.gradients[index] = OwnGradients(own)
            continue
        group = Group(ranks, rank)
        state.gradients[index] = gradients(_each_once(own), group, [index])
        momentum: Mapping[str, float] = getattr(module, "momentum", {})
        state.statistics[index] = RunningStatistics(
            index, dict(module.named_buffers()), layout.micro_batches, group, momentum
        )
        if index == layout.stage_count - 1:
            state.last_group = group
    state.tied = [
        gradients(parameters, Group(ranks, rank), holders)
        for (ranks, holders), parameters in sorted(shared.items(), key=lambda item: item[0])
    ]
    return state


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
