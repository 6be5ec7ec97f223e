"""Make of the gradients of ranks that hold the same parameters those that each steps on: by default their sum.

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

What becomes of the flat buffers is a rule's affair (``runtime/sync/contract.py``), ``all-reduce`` where nobody says
otherwise. Sparse gradients are summed, or belong to their rank where ranks step alone.

Left out: averaging (the loss is divided already), optimisers, parameters that servers hold.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.runtime.sync.collective import Work
from heterps_compile.runtime.sync.contract import RESIDUAL, Flat, Rule, of_kind

_NONE, _SPARSE, _DENSE = range(3)  # what is more on one rank holds for all: a tied table may be looked up on another


class SharedGradients:
    """The gradients of parameters that the same ranks hold.

    Attributes:
        parameters: By name; names and order are the same on every rank.
        rule: By which they agree.
    """

    def __init__(self, rule: Rule) -> None:
        self.parameters = dict(rule.shared.parameters)
        self.rule = rule
        self._group = rule.shared.group
        self._kinds: list[int] | None = None
        self._flats: list[Flat] = []
        self._views: list[tuple[nn.Parameter, Tensor]] = []
        self._works: list[Work] = []

    def begin(self) -> None:
        """Make every gradient zero, or None where there is none."""
        for parameter in self.parameters.values():
            parameter.grad = None
        for flat in self._flats:
            flat.tensor.zero_()
        for parameter, view in self._views:
            parameter.grad = view

    def start(self, scale: float = 1.0) -> None:
        """Begin to sum; gradients must not be touched until :meth:`finish`.

        Args:
            scale: By which the losses are multiplied.

        Raises:
            RunError: naming a parameter that has a gradient in this step and had none in the first, or a sparse one
                that the rule does not take.
        """
        if self._kinds is None:
            self._kinds = self._agree()
            self._refuse_sparse(self._kinds)
            self._lay_out(self._kinds)
            self.rule.prepare(self._flats)
        for (name, parameter), kind in zip(self.parameters.items(), self._kinds, strict=True):
            if kind == _SPARSE and self.rule.can.steps_alone:
                parameter.grad = _coalesced(parameter) / self.rule.shared.share
            elif kind == _SPARSE:
                self._works.append(self._group.sum(_coalesced(parameter)))
            elif kind == _NONE and parameter.grad is not None:
                raise RunError(
                    f"parameter {printable(name)!r} has a gradient in this step and had none in the first one, so that "
                    f"the replicas have not agreed to sum it; give its stage one replica (--replicas)"
                )
        self.rule.after_backward(self._flats, scale)

    def finish(self) -> None:
        """Wait until the gradients are summed."""
        for work in self._works:
            work.wait()
        self._works.clear()
        self.rule.finish()

    def gap(self) -> float | None:
        """Return how far replicas were apart when last measured, over the length of their mean."""
        return self.rule.gap()

    def _refuse_sparse(self, kinds: Sequence[int]) -> None:
        for name, kind in zip(self.parameters, kinds, strict=True):
            if kind == _SPARSE and not self.rule.can.takes_sparse:
                raise RunError(
                    f"the gradient of {printable(name)!r} is sparse, and {self.rule.asked.name} combines dense ones; "
                    f"make its embedding dense (sparse=False), or take another rule for its stage (--sync)"
                )

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
                    view.copy_(parameter.grad.to_dense())
                parameter.grad = view
                self._views.append((parameter, view))
            names = {id(parameter): name for name, parameter in self.parameters.items()}
            named = tuple(names[id(parameter)] for parameter in parameters)
            self._flats.append(Flat(flat, named, tuple(parameter.shape for parameter in parameters)))


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
        self._left: dict[str, Tensor] = {}

    def begin(self) -> None:
        """Make every gradient None."""
        for parameter in self.parameters.values():
            parameter.grad = None

    def start(self, scale: float = 1.0) -> None:
        """Add what replicas had not sent before a checkpoint, in the first step after it."""
        for name, left in self._left.items():
            parameter = self.parameters[name]
            more = (left * scale).to(parameter.device)
            parameter.grad = more if parameter.grad is None else parameter.grad + more

    def finish(self) -> None:
        """Do nothing."""

    def gap(self) -> float | None:
        """Return None: no other rank has these."""

    def after_step(self, *, is_skipped: bool) -> None:
        """Forget what is added now."""
        if not is_skipped:
            self._left.clear()

    def state(self) -> dict[str, Tensor]:
        """Return what is still to be added, by ``KIND:PARAMETER``."""
        return {f"{RESIDUAL}:{name}": left for name, left in self._left.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take what replicas had not sent before a checkpoint."""
        self._left = of_kind(RESIDUAL, state)
