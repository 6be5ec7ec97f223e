"""The state of an optimiser and its scheduler as tensors and plain data: no pickle, and no order of parameters.

``torch.optim`` numbers parameters in the order it was given them; that order is the rank's own. Here every tensor
is filed as ``KIND:PARAMETER``, such as ``exp_avg:fc.weight``, and every number under its parameter, so that the state
fits ranks that hold other stages.

A scheduler knows nothing of parameters, so every process has the same, but for what schedulers of torch keep once for
every parameter group: another process may have other groups. That is left out, and taken from the optimiser's groups
when the state is put back; these have been restored by then, with their learning rates.

A mapping is written as ``{"items": [[key, value], ...]}``, since JSON has no other keys than text, and milestones are
numbers. Functions are no data: ``LambdaLR`` leaves its own out, and a resumed run has those of its training file.

Left out: making a scheduler (``launch/training_file.py``).
"""

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from heterps_compile.errors import RunError
from heterps_compile.runtime.launch.training_file import Scheduler

from .format import SERVERS_NAME, Checkpoint

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

_PLAIN = (bool, int, float, str)
_PER_GROUP = {"base_lrs": "initial_lr", "_last_lr": "lr"}  # in a scheduler, and in a group of its optimiser
_FUNCTIONS = "lr_lambdas"  # of torch: for every group None where it is a function
_ITEMS = "items"


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """The state of a scheduler.

    Attributes:
        kind: Its class's name.
        content: Its ``state_dict()`` as JSON has it.
    """

    kind: str
    content: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """The state of an optimiser, by parameter.

    Attributes:
        kind: Its class's name.
        tensors: By ``KIND:PARAMETER``.
        numbers: By parameter, then by kind: state that is no tensor.
        options: By parameter: the learning rate and all else that its group says.
        schedule: Of the learning rates; None where they stay.
    """

    kind: str
    tensors: Mapping[str, Any] = field(default_factory=dict)
    numbers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    schedule: ScheduleState | None = None

    def files(self, stage: int) -> dict[str, Mapping[str, Any]]:
        """Return the content of a stage's files, by their names."""
        return {f"optimizer-{stage}.safetensors": self.tensors, f"optimizer-{stage}.json": self.described()}

    def described(self) -> dict[str, Any]:
        """Return all but the tensors, as JSON has it."""
        schedule = {} if self.schedule is None else {"schedule": asdict(self.schedule)}
        return {"kind": self.kind, "numbers": self.numbers, "options": self.options, **schedule}


def read_optimizer(checkpoint: Checkpoint, names: Iterable[str], *, with_tensors: bool = True) -> OptimizerState | None:
    """Read the optimiser's state of the named parameters; None if no stage had an optimiser.

    Of tables that were on servers it has the options, their rows have the rest. If the stages of these parameters
    trained nothing but such tables, the schedule is that of another stage.

    Args:
        checkpoint: To read from.
        names: Of the parameters.
        with_tensors: Whether its tensors are read too.

    Raises:
        RunError: if a file is damaged, or stages have other schedules of learning rates.
    """
    wanted, state = set(names), checkpoint.state
    stages = (*state.stages, *([SERVERS_NAME] if state.servers else []))
    described = [(stage, checkpoint.value(f"optimizer-{stage}.json", OptimizerState)) for stage in stages]
    known = [(stage, one) for stage, one in described if one is not None]
    mine = [(stage, one) for stage, one in known if not wanted.isdisjoint(one.options)]
    if not mine:
        return None
    of_stages = [(stage, one) for stage, one in mine if stage != SERVERS_NAME]
    files = [f"optimizer-{stage}.safetensors" for stage, _ in of_stages] if with_tensors else []
    schedules = [one.schedule for _, one in of_stages or known[:1]]
    if any(other != schedules[0] for other in schedules):
        raise RunError(
            f"{checkpoint.name} has other states of scheduler() for stages that now lie together; go on with the cuts "
            f"it was written with"
        )
    return OptimizerState(
        ", ".join(sorted({one.kind for _, one in of_stages or mine})),
        checkpoint.tensors(files, lambda key: key.partition(":")[2] in wanted),
        {name: numbers for _, one in mine for name, numbers in one.numbers.items() if name in wanted},
        {name: options for _, one in mine for name, options in one.options.items() if name in wanted},
        schedules[0],
    )


def take_state(
    optimizer: "Optimizer", named: "Mapping[str, Tensor]", scheduler: Scheduler | None = None
) -> OptimizerState:
    """Return the state of the named parameters, and of a scheduler.

    Args:
        optimizer: Of the parameters.
        named: Tensors by name; those that the optimiser does not step are left out.
        scheduler: Of its learning rates; None if they stay.

    Raises:
        RunError: where an optimiser keeps what is neither tensor nor plain number.
    """
    import torch  # noqa: PLC0415 - torch only in the processes of a run

    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    tensors: dict[str, Any] = {}
    numbers: dict[str, dict[str, Any]] = {}
    options: dict[str, dict[str, Any]] = {}
    for name, parameter in named.items():
        if id(parameter) not in groups:
            continue
        options[name] = {k: _plain(v, optimizer, k) for k, v in groups[id(parameter)].items() if k != "params"}
        for kind, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                tensors[f"{kind}:{name}"] = value.detach().cpu().contiguous()
            else:
                numbers.setdefault(name, {})[kind] = _plain(value, optimizer, kind)
    schedule = None if scheduler is None else take_schedule(scheduler)
    return OptimizerState(type(optimizer).__name__, tensors, numbers, options, schedule)


def put_state(optimizer: "Optimizer", named: "Mapping[str, Tensor]", state: OptimizerState) -> None:
    """Give an optimiser the state of its parameters.

    Raises:
        RunError: where the state is of another kind of optimiser, lacks a parameter, or has options that differ among
            parameters of one group.
    """
    kind = type(optimizer).__name__
    if kind != state.kind:
        raise RunError(
            f"the checkpoint has the state of {state.kind}, the training file makes {kind}; use the same optimiser, or "
            f"start anew in another folder (--checkpoint DIR)"
        )
    names = {id(parameter): name for name, parameter in named.items()}
    by_name: dict[str, dict[str, Any]] = {}
    for key, tensor in state.tensors.items():
        what, _, name = key.partition(":")
        by_name.setdefault(name, {})[what] = tensor
    content: dict[str, Any] = {"state": {}, "param_groups": []}
    index = 0
    for group in optimizer.param_groups:
        held = [names[id(parameter)] for parameter in group["params"]]
        missing = [name for name in held if name not in state.options]
        if missing:
            raise RunError(f"the checkpoint knows no optimiser state of {missing[0]!r}; it is of another model or file")
        options = [state.options[name] for name in held]
        if any(other != options[0] for other in options):
            raise RunError(
                f"the checkpoint has other options for {held[0]!r} than for parameters that the training file puts "
                f"in one group with it; make the same groups"
            )
        numbered = list(range(index, index + len(held)))
        index += len(held)
        first = {k: tuple(v) if isinstance(v, list) else v for k, v in options[0].items()} if options else group
        content["param_groups"].append({**first, "params": numbered})
        for number, name in zip(numbered, held, strict=True):
            known = {**by_name.get(name, {}), **state.numbers.get(name, {})}
            if known:
                content["state"][number] = known
    optimizer.load_state_dict(content)


def _plain(value: Any, optimizer: "Optimizer", what: str) -> Any:
    """Return a value as JSON has it."""
    if hasattr(value, "item") and getattr(value, "numel", lambda: 0)() == 1:
        value = value.item()
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, tuple | list) and all(item is None or isinstance(item, _PLAIN) for item in value):
        return list(value)
    raise RunError(f"{type(optimizer).__name__} keeps {what!r}, a {type(value).__name__}, which no checkpoint can hold")


def take_schedule(scheduler: Scheduler) -> ScheduleState:
    """Return the state of a scheduler.

    Raises:
        RunError: where it keeps what no checkpoint can hold.
    """
    kind = type(scheduler).__name__
    return ScheduleState(kind, _to_json(_without_groups(scheduler.state_dict()), kind, "its state"))


def put_schedule(scheduler: Scheduler, optimizer: "Optimizer", state: ScheduleState) -> None:
    """Give a scheduler its state; the optimiser has its own back.

    Raises:
        RunError: where the state is of another kind of scheduler, or damaged.
    """
    kind = type(scheduler).__name__
    if kind != state.kind:
        raise RunError(
            f"the checkpoint has the state of the scheduler {state.kind}, the training file makes {kind}; use the "
            f"same, or start anew in another folder (--checkpoint DIR)"
        )
    try:
        known = _from_json(state.content)
        scheduler.load_state_dict(_fill(scheduler.state_dict(), known, optimizer))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"the checkpoint's state of the scheduler {kind} does not fit ({error!r})") from error


def _without_groups(state: Any) -> Any:
    """Leave out what stands there once for every group, in schedulers inside a scheduler too."""
    if isinstance(state, list):
        return [_without_groups(item) for item in state]
    if not isinstance(state, dict) or not _is_of_torch(state):
        return state
    kept = {name: value for name, value in state.items() if name not in _PER_GROUP}
    if not any(kept.get(_FUNCTIONS, ())):
        kept.pop(_FUNCTIONS, None)
    return {name: _without_groups(value) for name, value in kept.items()}


def _is_of_torch(state: Mapping[Any, Any]) -> bool:
    return "_last_lr" in state


def _fill(fresh: Any, known: Any, optimizer: "Optimizer") -> Any:
    """Return a known state the types of a fresh one, and what was left out of it."""
    if isinstance(fresh, tuple) and isinstance(known, list):
        return tuple(known)
    if isinstance(fresh, list) and isinstance(known, list) and len(fresh) == len(known):
        return [_fill(one, other, optimizer) for one, other in zip(fresh, known, strict=True)]
    if not isinstance(fresh, dict) or not isinstance(known, dict):
        return known
    filled = copy(fresh)  # a Counter stays one
    is_of_torch = _is_of_torch(fresh)
    if not is_of_torch:
        filled.clear()
    filled.update({name: _fill(fresh.get(name), value, optimizer) for name, value in known.items()})
    for name, of_group in _PER_GROUP.items() if is_of_torch else ():
        if name in fresh:
            filled[name] = [group[of_group] for group in optimizer.param_groups]
    return filled


def _to_json(value: Any, kind: str, where: str) -> Any:
    if hasattr(value, "item") and getattr(value, "numel", lambda: 0)() == 1:
        value = value.item()
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, list | tuple):
        return [_to_json(item, kind, where) for item in value]
    if isinstance(value, dict) and all(type(key) in _PLAIN for key in value):
        return {_ITEMS: [[key, _to_json(item, kind, repr(key))] for key, item in value.items()]}
    raise RunError(
        f"the scheduler {kind} keeps a {type(value).__name__} in {where}, which no checkpoint can hold; have its "
        f"state_dict() give numbers, text, lists and dicts, or train without --checkpoint"
    )


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _from_json(item) for key, item in value[_ITEMS]}
    return [_from_json(item) for item in value] if isinstance(value, list) else value
