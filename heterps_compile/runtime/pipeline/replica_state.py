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

from torch import Tensor, nn

from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.plan.plan import Plan

from .gradient_sums import OwnGradients, SharedGradients
from .layout import Layout
from .ordered_gradient_sums import OrderedGradients
from .rank_group import Group
from .read_stage import RunnableStage, Tied
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


def share_state(
    plan: Plan,
    layout: Layout,
    rank: int,
    stages: Mapping[int, RunnableStage],
    tied: Tied,
    *,
    exact_sums: bool = False,
) -> SharedState:
    """Return what a rank shares with others; every rank of the pipeline calls it.

    Stages of one rank that hold one tied tensor hold the same ``nn.Parameter`` afterwards.

    Args:
        plan: The plan.
        layout: Of the ranks.
        rank: This one.
        stages: Those of this rank.
        tied: Parameters that several stages hold.
        exact_sums: Add up gradients in the order of one process.

    Raises:
        RunError: where the plan has a tied tensor that ``tied`` does not have.
    """
    state = SharedState()
    modules = {index: stage for index, stage in stages.items() if isinstance(stage, nn.Module)}
    tensors = {index: dict(module.state_dict(keep_vars=True)) for index, module in modules.items()}
    _refuse_unknown(plan, modules, tensors, tied)
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
        here = [(index, name) for index, name in places if isinstance(tensors.get(index, {}).get(name), nn.Parameter)]
        holders = tuple(sorted({index for index, _ in places}))
        ranks = tuple(sorted({r for index in holders for r in layout.ranks_of(index)}))
        parameter = _one_parameter(modules, tensors, here)
        is_summed_here = len(ranks) > 1 or (exact_sums and len(holders) > 1)  # by backward itself in another order
        if parameter is not None and is_summed_here:
            shared.setdefault((ranks, holders), {})[storage] = parameter
            apart.add(id(parameter))
            state.counted += [parameter] if rank == min(ranks) else []
    for index, module in sorted(modules.items()):
        own = {
            name: tensor
            for name, tensor in module.state_dict(keep_vars=True).items()
            if isinstance(tensor, nn.Parameter) and tensor.requires_grad and id(tensor) not in apart
        }
        ranks = layout.ranks_of(index)
        state.counted += own.values() if rank == min(ranks) else []
        if len(ranks) == 1:
            state.gradients[index] = OwnGradients(own)
            continue
        group = Group(ranks, rank)
        state.gradients[index] = gradients(_each_once(own), group, [index])
        momentum: Mapping[str, float] = getattr(module, "momentum", {})
        state.statistics[index] = RunningStatistics(index, _buffers(module), layout.micro_batches, group, momentum)
        if index == layout.stage_count - 1:
            state.last_group = group
    state.tied = [
        gradients(parameters, Group(ranks, rank), holders)
        for (ranks, holders), parameters in sorted(shared.items(), key=lambda item: item[0])
    ]
    return state


def _refuse_unknown(
    plan: Plan, modules: Mapping[int, nn.Module], tensors: Mapping[int, Mapping[str, Tensor]], tied: Tied
) -> None:
    for index, module in modules.items():
        names: Mapping[str, str] = getattr(module, "tied_as", {})
        for name, tensor in tensors[index].items():
            storage = names.get(name, name)
            is_trained = isinstance(tensor, nn.Parameter) and tensor.requires_grad
            if is_trained and storage in plan.replicated and storage not in tied:
                raise RunError(
                    f"the plan has the parameter {printable(storage)!r} in several stages, and nobody said in which; "
                    f"give the engine tied=read_tied(folder, plan)"
                )


def _one_parameter(
    modules: Mapping[int, nn.Module], tensors: Mapping[int, Mapping[str, Tensor]], here: list[tuple[int, str]]
) -> nn.Parameter | None:
    """Return the one parameter that the places of a tied tensor on this rank hold; None where it has none."""
    if not here:
        return None
    parameter = tensors[here[0][0]][here[0][1]]
    assert isinstance(parameter, nn.Parameter)  # noqa: S101 - tied names are those of trained parameters
    for index, _ in here[1:]:
        others = {id(tensors[i][name]) for i, name in here if i == index}
        for block in modules[index].modules():
            for name, held in block._parameters.items():
                if id(held) in others:
                    block._parameters[name] = parameter
    return parameter


def _each_once(parameters: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Leave out further names of one parameter."""
    first: dict[int, str] = {}
    for name, parameter in parameters.items():
        first.setdefault(id(parameter), name)
    return {name: parameter for name, parameter in parameters.items() if first[id(parameter)] == name}


def _buffers(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_buffers())
