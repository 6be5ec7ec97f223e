"""Sum gradients over the ranks that hold the same parameters.

The replicas of a stage hold the same parameters, and so do all replicas of all stages that hold one tied tensor. Every
rank has the gradients of its own micro-batches, of a loss that is divided by the count of all of them: the sum over the
ranks is the gradient of the mean loss. Two stages of 2 and 1 replicas that share a tensor ``e``::

    rank | stage | sums with the ranks
    0    | 0     | w0 over 0 1      e over 0 1 2
    1    | 0     | w0 over 0 1      e over 0 1 2
    2    | 1     | w1 alone         e over 0 1 2

Gradients of one dtype lie in one flat buffer, so that backward writes straight into what is summed and one message
sums them all. Which parameters have gradients at all is agreed on in the first step; a parameter without one keeps
None, as it does in a model in one piece. Every rank gets the same bits, so that replicas stay equal.

Left out: averaging (the loss is divided already), optimisers, parameters that servers hold.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from heterps_compile.errors import RunError
from heterps_compile.escape import printable

from .rank_group import Group

_NONE, _DENSE, _SPARSE = range(3)


class SharedGradients:
    """The gradients of parameters that the same ranks hold.

    Attributes:
        parameters: By name; names and order are the same on every rank.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], group: Group) -> None:
        self.parameters = dict(parameters)
        self._group = group
        self._kinds: list[int] | None = None
        self._flats: list[Tensor] = []
        self._views: list[tuple[nn.Parameter, Tensor]] = []
        self._works: list[dist.Work] = []

    def begin(self) -> None:
        """Make every gradient zero, or None where there is none."""
        for parameter in self.parameters.values():
            parameter.grad = None
        for flat in self._flats:
            flat.zero_()
        for parameter, view in self._views:
            parameter.grad = view

    def start(self) -> None:
        """Begin to sum; gradients must not be touched until :meth:`finish`.

        Raises:
            RunError: naming a parameter that has a gradient in this step and had none in the first.
        """
        if self._kinds is None:
            self._kinds = self._agree()
            self._lay_out(self._kinds)
        for (name, parameter), kind in zip(self.parameters.items(), self._kinds, strict=True):
            if kind == _SPARSE:
                self._works.append(self._group.sum(_coalesced(parameter)))
            elif kind == _NONE and parameter.grad is not None:
                raise RunError(
                    f"parameter {printable(name)!r} has a gradient in this step and had none in the first one, so that "
                    f"the replicas have not agreed to sum it; give its stage one replica (--replicas)"
                )
        self._works += [self._group.sum(flat) for flat in self._flats]

    def finish(self) -> None:
        """Wait until the gradients are summed."""
        for work in self._works:
            work.wait()
        self._works.clear()

    def _agree(self) -> list[int]:
        kinds = [_NONE if p.grad is None else _SPARSE if p.grad.is_sparse else _DENSE for p in self.parameters.values()]
        device = next((p.device for p in self.parameters.values()), torch.device("cpu"))
        agreed = torch.tensor(kinds, dtype=torch.int32, device=device)
        self._group.maximum(agreed).wait()
        return [int(kind) for kind in agreed]

    def _lay_out(self, kinds: Sequence[int]) -> None:
        """Move dense gradients into flat buffers, one for each dtype."""
        by_dtype: dict[torch.dtype, list[nn.Parameter]] = {}
        for parameter, kind in zip(self.parameters.values(), kinds, strict=True):
            if kind == _DENSE:
                by_dtype.setdefault(parameter.dtype, []).append(parameter)
        for dtype, parameters in by_dtype.items():
            flat = torch.zeros(sum(p.numel() for p in parameters), dtype=dtype, device=parameters[0].device)
            views = torch.split(flat, [p.numel() for p in parameters])
            for parameter, part in zip(parameters, views, strict=True):
                view = part.view(parameter.shape)
                if parameter.grad is not None:
                    view.copy_(parameter.grad)
                parameter.grad = view
                self._views.append((parameter, view))
            self._flats.append(flat)


def _coalesced(parameter: nn.Parameter) -> Tensor:
    """Return a sparse gradient with every row once, and put it in its place; an empty one where there is none."""
    if parameter.grad is None:
        gradient = torch.sparse_coo_tensor(
            torch.zeros((1, 0), dtype=torch.int64, device=parameter.device),
            parameter.new_zeros((0, *parameter.shape[1:])),
            parameter.shape,
        )
    else:
        gradient = parameter.grad
    parameter.grad = gradient.coalesce()
    return parameter.grad


class OwnGradients:
    """The gradients of parameters that this rank alone holds; there is nothing to sum.

    Attributes:
        parameters: By name.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self.parameters = dict(parameters)

    def begin(self) -> None:
        """Make every gradient None."""
        for parameter in self.parameters.values():
            parameter.grad = None

    def start(self) -> None:
        """Do nothing."""

    def finish(self) -> None:
        """Do nothing."""
