r"""Sum gradients in the order in which one process would, so that the result has its very bits.

One process that runs the micro-batches in order adds up ((g0 + g1) + g2) + g3; of a tensor that several stages hold,
each g is the sum over them, from the last stage to the first. Sums of floats depend on the order, and where training
amplifies differences (batch norms over a few samples), ranks that add up in another order end up elsewhere. Here the
sum goes from rank to rank, to whoever has the next micro-batch. Stage 0 has 2 replicas::

    rank 0    g0 ----\          + g2 ----\
    rank 1            + g1 ----/          + g3  = the sum, to all

Sums wait for one another, M messages in a row, and a rank keeps the gradients of each of its micro-batches until
the step ends: for looking into differences, not for speed.

Left out: sparse gradients.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.runtime.sync.collective import Collective

Parts = Sequence[Sequence[tuple[int, int]]]
"""For every micro-batch what is added up, in order, as (stage, rank)."""


class OrderedGradients:
    """The gradients of parameters that the same ranks hold, one set for each micro-batch until they are summed.

    Attributes:
        parameters: By name; names and order are the same on every rank.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], group: Collective, rank: int, parts: Parts) -> None:
        self.parameters = dict(parameters)
        self._group, self._rank, self._parts = group, rank, parts
        self._mine = {(stage, i) for i, of in enumerate(parts) for stage, owner in of if owner == rank}
        self._kept: dict[tuple[int, int], list[Tensor | None]] = {}
        self._has_gradient: list[bool] | None = None

    def begin(self) -> None:
        """Make every gradient None."""
        self._kept.clear()
        for parameter in self.parameters.values():
            parameter.grad = None

    def keep(self, stage: int, micro_batch: int) -> None:
        """Put aside what the backward of a micro-batch of a stage has made."""
        if (stage, micro_batch) in self._mine:
            self._kept[stage, micro_batch] = [parameter.grad for parameter in self.parameters.values()]
            for parameter in self.parameters.values():
                parameter.grad = None

    def start(self, scale: float = 1.0) -> None:
        """Do nothing: the sum takes all micro-batches."""

    def finish(self) -> None:
        """Sum; the ranks of a group must finish their groups in one order.

        Raises:
            RunError: naming a parameter whose gradient is sparse.
        """
        self._refuse_sparse()
        if self._has_gradient is None:
            self._has_gradient = self._agree()
        with_one = [p for p, has in zip(self.parameters.values(), self._has_gradient, strict=True) if has]
        for dtype in dict.fromkeys(parameter.dtype for parameter in with_one):
            members = [parameter for parameter in with_one if parameter.dtype == dtype]
            flat = self._sum(members)
            for parameter, part in zip(members, torch.split(flat, [p.numel() for p in members]), strict=True):
                parameter.grad = part.view(parameter.shape).to(parameter.device)

    def _refuse_sparse(self) -> None:
        for gradients in self._kept.values():
            for name, gradient in zip(self.parameters, gradients, strict=True):
                if gradient is not None and gradient.is_sparse:
                    raise RunError(
                        f"the gradient of {printable(name)!r} is sparse, and sums in order are of dense ones; leave "
                        f"--exact-sums out, or make its embedding dense (sparse=False)"
                    )

    def _agree(self) -> list[bool]:
        columns = zip(*self._kept.values(), strict=True)
        has = torch.tensor([any(g is not None for g in column) for column in columns], dtype=torch.int32)
        self._group.maximum(has).wait()
        return [bool(each) for each in has]

    def _sum(self, members: Sequence[nn.Parameter]) -> Tensor:
        """Return the sum of the gradients of some parameters of one dtype, side by side, on the CPU.

        On the ranks that do not hold it a partial sum is whatever was left there.
        """
        empty = torch.empty(sum(p.numel() for p in members), dtype=members[0].dtype)
        total, holder = self._of_micro_batch(0, members, empty)
        for i in range(1, len(self._parts)):
            part, owner = self._of_micro_batch(i, members, empty)
            total = self._move(total, holder, owner)
            holder = owner
            if holder == self._rank:
                total = total + part
        for other in self._group.ranks:
            total = self._move(total, holder, other)
        return total

    def _of_micro_batch(self, i: int, members: Sequence[nn.Parameter], empty: Tensor) -> tuple[Tensor, int]:
        """Return the sum of a micro-batch over the stages that hold the parameters, and the rank that has it."""
        (stage, holder), *rest = self._parts[i]
        part = self._flat(stage, i, members) if holder == self._rank else empty
        for next_stage, owner in rest:
            part = self._move(part, holder, owner)
            holder = owner
            if holder == self._rank:
                part = part + self._flat(next_stage, i, members)
        return part, holder

    def _move(self, value: Tensor, source: int, target: int) -> Tensor:
        """Hand a sum over to the rank that adds to it next; what is left on others is of no more use."""
        if source == target:
            return value
        if self._rank == source:
            self._group.start_send(value, target).wait()
        if self._rank == target:
            value = torch.empty_like(value)
            self._group.start_receive(value, source).wait()
        return value

    def _flat(self, stage: int, micro_batch: int, members: Sequence[nn.Parameter]) -> Tensor:
        wanted = {id(parameter) for parameter in members}
        found = [
            torch.zeros(p.numel(), dtype=p.dtype) if gradient is None else gradient.detach().cpu().reshape(-1)
            for p, gradient in zip(self.parameters.values(), self._kept[stage, micro_batch], strict=True)
            if id(p) in wanted
        ]
        return torch.cat(found)
