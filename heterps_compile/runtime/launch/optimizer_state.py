"""An optimiser's state by parameter name, so that it fits ranks that hold other stages.

``torch.optim`` numbers parameters in the order it was given them; that order is the rank's own. Here every tensor
is filed as ``KIND:PARAMETER``, such as ``exp_avg:fc.weight``, and every number under its parameter.

Left out: the files (``checkpoint.py``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from heterps_compile.errors import RunError

from .schedule_state import ScheduleState

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter
    from torch.optim import Optimizer

_PLAIN = (bool, int, float, str)


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """What an optimiser knows of its parameters.

    Attributes:
        kind: Its class's name.
        tensors: By ``KIND:PARAMETER``.
        numbers: By parameter, then by kind: state that is no tensor.
        options: By parameter: the learning rate and all else that its group says.
        schedule: Of the learning rates; None where they stay.
    """

    kind: str
    tensors: "Mapping[str, Tensor]" = field(default_factory=dict)
    numbers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    schedule: ScheduleState | None = None


def take_state(optimizer: "Optimizer", named: "Sequence[tuple[str, Parameter]]") -> OptimizerState:
    """Return the state of the named parameters; those that the optimiser does not hold are left out.

    Raises:
        RunError: where an optimiser keeps what is neither tensor nor plain number.
    """
    import torch  # noqa: PLC0415 - torch only in the processes of a run

    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    tensors: dict[str, Any] = {}
    numbers: dict[str, dict[str, Any]] = {}
    options: dict[str, dict[str, Any]] = {}
    for name, parameter in named:
        if id(parameter) not in groups:
            continue
        options[name] = {k: _plain(v, optimizer, k) for k, v in groups[id(parameter)].items() if k != "params"}
        for kind, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                tensors[f"{kind}:{name}"] = value.detach().cpu().contiguous()
            else:
                numbers.setdefault(name, {})[kind] = _plain(value, optimizer, kind)
    return OptimizerState(type(optimizer).__name__, tensors, numbers, options)


def put_state(optimizer: "Optimizer", named: "Sequence[tuple[str, Parameter]]", state: OptimizerState) -> None:
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
    names = {id(parameter): name for name, parameter in named}
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
