r"""What a rule of synchronisation is at run time: one object on every rank for parameters that the same ranks hold.

::

    prepare             once, when it is known which parameters have gradients
    every step
        begin           before its forwards
        after_backward  the gradients of this rank's micro-batches begin to become what the optimiser steps on
        finish          they have
        before_step     of the optimiser, and after_step of it: where replicas agree on what a step has changed
    agreed              replicas that differ hold what they agree on while a block runs: validations and checkpoints
    state, load_state   what a rank has of its own, for checkpoints

Gradients come as flat buffers, one for each dtype. Of a step of M micro-batches, of which this rank has m, a buffer has
1/M of the sum over the m: the sum over the ranks is the gradient of the mean loss, and what a rank makes of its own
samples alone is M/m of its buffer (``Shared.share`` is m/M). In float16 all of it is multiplied by the scale of losses,
and a step whose result is not finite is skipped on every rank.

Left out: which rules there are (``find.py``), what they can be combined with (``capabilities.py``), arithmetic on
plain tensors (the file of each rule).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.sync_rules.rule import SyncRule

from .capabilities import Capabilities
from .collective import Collective

if TYPE_CHECKING:
    from .by_machine import ByMachine

RESIDUAL = "residual"
WEIGHT = "weight"
OPTIMIZER = "optimizer"
FACTOR = "factor"
TABLE, MEAN, PENDING = "table", "mean", "pending"
"""What a rank has of its own by kind: ``KIND:PARAMETER`` names a tensor of it."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What a rule works on.

    Attributes:
        group: The ranks; what it sums is summed inside machines first, where they share some.
        rank: This one.
        parameters: By name; names and order are the same on every rank.
        share: Of a step's micro-batches, how much this rank has; above 0, and 1 in all.
        is_scaled: Whether losses are scaled, so that a step may be skipped.
        where: In words, for faults.
        more_groups: Makes another group of the same ranks, for another thread, counted and not.
        by_machine: The parts of such a sum, where ranks share machines and are on several; else None.
        is_one_machine: Whether the ranks are on one machine, and the plan counts with that.
        order: Which batch of data that come again a step has, by its number; None for one after the other.
    """

    group: Collective
    rank: int
    parameters: Mapping[str, nn.Parameter]
    share: float
    is_scaled: bool = False
    where: str = "the stage"
    more_groups: Callable[[], tuple[Collective, Collective]] | None = None
    by_machine: "ByMachine | None" = None
    is_one_machine: bool = False
    order: Callable[[int], int] | None = None

    def batch_of(self, step: int, batches: int) -> int:
        """Return which of so many batches of the data a step has."""
        return step % batches if self.order is None else self.order(step)

    @property
    def count_here(self) -> int:
        """Return how many of the ranks are on this one's machine."""
        if self.by_machine is None:
            return self.count
        return next(len(ranks) for ranks in self.by_machine.machines if self.rank in ranks)

    @property
    def place(self) -> int:
        """Return which of the ranks this one is."""
        return self.group.ranks.index(self.rank)

    @property
    def count(self) -> int:
        """Return how many ranks there are."""
        return len(self.group.ranks)


@dataclass(frozen=True, slots=True)
class Flat:
    """Tensors of one dtype side by side.

    Attributes:
        tensor: One-dimensional.
        names: Of the parameters.
        shapes: Of each.
    """

    tensor: Tensor
    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return how many entries each parameter has."""
        return tuple(shape.numel() for shape in self.shapes)

    def by_name(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the parts of a tensor of the same form, by parameter."""
        parts = zip(self.names, torch.split(flat, list(self.sizes)), self.shapes, strict=True)
        return {name: part.view(shape) for name, part, shape in parts}

    def of(self, known: Mapping[str, Tensor]) -> Tensor:
        """Return known tensors side by side, zeros for those of others."""
        flat = torch.zeros_like(self.tensor)
        for name, part in self.by_name(flat).items():
            if name in known:
                part.copy_(known[name])
        return flat


def flats_of(parameters: Mapping[str, nn.Parameter]) -> list[Flat]:
    """Return copies of parameters side by side, dtype by dtype."""
    by_dtype: dict[torch.dtype, dict[str, nn.Parameter]] = {}
    for name, parameter in parameters.items():
        by_dtype.setdefault(parameter.dtype, {})[name] = parameter
    return [
        Flat(
            torch.cat([parameter.detach().reshape(-1) for parameter in of_dtype.values()]),
            tuple(of_dtype),
            tuple(parameter.shape for parameter in of_dtype.values()),
        )
        for of_dtype in by_dtype.values()
    ]


@torch.no_grad()
def put(parameters: Mapping[str, nn.Parameter], flats: Sequence[Flat]) -> None:
    """Give parameters the values of flat tensors."""
    for flat in flats:
        for name, part in flat.by_name(flat.tensor).items():
            parameters[name].copy_(part)


def put_own(parameters: Mapping[str, nn.Parameter], state: Mapping[str, Tensor]) -> bool:
    """Give parameters the values that a rank had of its own; return whether there were any."""
    own = {name: state[f"{WEIGHT}:{name}"] for name in parameters if f"{WEIGHT}:{name}" in state}
    put(parameters, [Flat(tensor.reshape(-1), (name,), (tensor.shape,)) for name, tensor in own.items()])
    return bool(own)


class Rule:
    """How ranks agree on the parameters that all of them hold; see the module.

    Attributes:
        shared: What it works on.
        asked: The rule, with its options.
        can: What it can be combined with.
    """

    can: ClassVar[Capabilities]

    def __init__(self, shared: Shared, asked: SyncRule) -> None:
        """Begin.

        Args:
            shared: What it works on.
            asked: The rule, with its options.
        """
        self.shared, self.asked = shared, asked

    def prepare(self, flats: Sequence[Flat]) -> None:
        """Learn how gradients lie; called once, after the first backward.

        Args:
            flats: The very buffers of every step.
        """

    def begin(self, step: int) -> None:
        """Be called before the forwards of a step."""

    def after_backward(self, flats: Sequence[Flat], scale: float) -> None:
        """Begin to make of the gradients of this rank those that its optimiser steps on, in place; must not wait.

        Args:
            flats: Those of :meth:`prepare`.
            scale: By which they are multiplied.
        """

    def finish(self) -> None:
        """Wait until they are."""

    def before_step(self, step: int) -> None:
        """Be called before the optimiser's step; a skipped one too."""

    def after_step(self, step: int, *, is_skipped: bool) -> None:
        """Be called after the optimiser's step, or after it was skipped: the same on every rank."""

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Let replicas that differ hold what they agree on while a block runs; all of them call it."""
        yield

    def gap(self) -> float | None:
        """Return how far replicas were apart when that was last looked at, over the length of their mean; else None."""
        return None

    def close(self) -> None:
        """End what runs beside the training; every rank calls it, after its last step."""

    def state(self) -> dict[str, Tensor]:
        """Return what this rank has of its own, by ``KIND:PARAMETER``."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take what :meth:`state` gave, of a checkpoint; called before the first step.

        Kinds of other rules may be among it; a residual that nobody adds would be lost.

        Raises:
            RunError: where something would be lost.
        """
        refuse_residuals(self.asked.name, self.shared.where, state)


def refuse_residuals(rule: str, where: str, state: Mapping[str, Tensor]) -> None:
    """Refuse to lose gradients that were not sent before a checkpoint.

    Raises:
        RunError: naming one.
    """
    for key, residual in state.items():
        kind, _, name = key.partition(":")
        if kind == RESIDUAL and bool(residual.any()):
            raise RunError(
                f"the checkpoint has gradients of {printable(name)!r} that were not sent yet, and {rule} in {where} "
                f"would lose them; go on with topk, powersgd or all-reduce there (--sync), which add them, or begin "
                f"with the checkpoint's weights (--weights) in another folder"
            )


def refuse_unadded(left: Mapping[str, Tensor], flats: Sequence[Flat]) -> None:
    """Refuse residuals of parameters that have no dense gradient to add them to.

    Raises:
        RunError: naming one.
    """
    laid_out = {name for flat in flats for name in flat.names}
    for name, residual in left.items():
        if name not in laid_out and bool(residual.any()):
            raise RunError(
                f"the checkpoint has gradients of {printable(name)!r} that were not sent yet, and that parameter "
                f"has no dense gradient in this run; begin with the checkpoint's weights (--weights) in another "
                f"folder"
            )


def of_kind(kind: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Select the tensors of one kind, by parameter."""
    return {key.removeprefix(f"{kind}:"): tensor for key, tensor in state.items() if key.startswith(f"{kind}:")}
