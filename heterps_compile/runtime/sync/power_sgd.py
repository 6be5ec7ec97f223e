r"""``powersgd``: PyTorch's own hook for data parallel training, on the flat buffers of a stage's replicas.

Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", NeurIPS
2019, arXiv 1905.13727, as ``torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook`` has it. The hook takes a bucket
of gradients and gives their mean over replicas. Here gradients are parts of a sum (``contract.py``): each is multiplied
by the k replicas first, whose mean is then the sum. Factors Q are those of the step before (warm start)::

    a = k (g + e)     P = sum a Q, orthonormal     Q = mean a^T P     step on P Q^T     e <- (a - P Q^T) / k

so that what all keep and what they step on are the sum of the gradients, whatever the shares of replicas. The hook's
first steps without factors (``start_powerSGD_iter``) are left out: it begins at once. Columns are divided by their
length + 1e-8, for gradients of zeros.

Left out: sparse gradients, which are summed whole; several sums at a time.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from heterps_compile.sync_rules import powersgd
from heterps_compile.sync_rules.powersgd import Factors
from heterps_compile.sync_rules.rule import SyncRule

from .capabilities import POWERSGD, Capabilities
from .collective import Collective
from .contract import FACTOR, Flat, Shared
from .residuals import AddsResiduals

_EPSILON: Any = 1e-8  # PyTorch gives no type, which reads as a whole number for its default 0
_FIRST = 2  # the hook wants two steps before it begins, which DDP needs to lay its buckets out


class PowerSGD(AddsResiduals):
    """Sums factors of gradients."""

    can: ClassVar[Capabilities] = POWERSGD

    def __init__(self, shared: Shared, asked: SyncRule) -> None:
        assert isinstance(asked, powersgd.PowerSGD)  # noqa: S101 - of that name
        super().__init__(shared, asked)
        self._asked = asked
        self._hook = PowerSGDState(
            _Summing(shared.group),
            matrix_approximation_rank=asked.rank,
            start_powerSGD_iter=_FIRST,
            use_error_feedback=asked.feedback,
            orthogonalization_epsilon=_EPSILON,
        )
        self._hook.iter = _FIRST
        self._known: dict[str, Tensor] = {}
        self._flats: Sequence[Flat] = ()
        self._before: dict[int, Tensor] = {}
        self._scale = 1.0

    def prepare(self, flats: Sequence[Flat]) -> None:
        """Lay out what was not sent, and the factors that a checkpoint had."""
        super().prepare(flats)
        self._flats = flats
        for place, flat in enumerate(flats):
            found = [(name, factors) for name, factors in self._factored(flat)]
            known = [self._known.get(f"{FACTOR}:{name}") for name, _ in found]
            fit = [
                one for one, (_, made) in zip(known, found, strict=True)
                if one is not None and one.shape == (made.columns, made.rank)
            ]  # fmt: skip
            if found and len(fit) == len(found):
                first = sum(factors.first_elements for _, factors in found)
                like = flat.tensor
                self._hook.p_memory_dict[place] = torch.empty(first, dtype=like.dtype, device=like.device)
                self._hook.q_memory_dict[place] = torch.cat([one.reshape(-1) for one in fit]).to(like)
        self._known = {}

    def after_backward(self, flats: Sequence[Flat], scale: float) -> None:
        """Add what is left of the step before; the hook waits for other replicas, so it is called later."""
        self._scale = scale
        for place, flat in enumerate(flats):
            self.residuals.add_to(place, flat.tensor, scale)

    def finish(self) -> None:
        """Have the hook sum."""
        if self.shared.is_scaled:
            self._before = {place: factors.clone() for place, factors in self._hook.q_memory_dict.items()}
        for place, flat in enumerate(self._flats):
            flat.tensor.mul_(self.shared.count)
            self._hook.error_dict.pop(place, None)  # what is left is in the gradient already
            bucket: Any = _Bucket(flat, place, is_last=place == len(self._flats) - 1)
            powerSGD_hook(self._hook, bucket).wait()
            if self._asked.feedback:
                self.residuals.keep(place, self._hook.error_dict.pop(place).div_(self.shared.count), self._scale)
            else:
                self.residuals.forget(place)

    def after_step(self, step: int, *, is_skipped: bool) -> None:
        """Have what is kept count; after a step that was skipped what was before it, factors too."""
        super().after_step(step, is_skipped=is_skipped)
        if is_skipped:
            for place in list(self._hook.q_memory_dict):
                if place in self._before:
                    self._hook.q_memory_dict[place].copy_(self._before[place])
                else:
                    del self._hook.q_memory_dict[place], self._hook.p_memory_dict[place]

    def state(self) -> dict[str, Tensor]:
        """Return what has not been sent yet, and the factors Q, which all ranks have alike."""
        found = super().state() | self._known
        for place, memory in self._hook.q_memory_dict.items():
            factored = list(self._factored(self._flats[place]))
            parts = torch.split(memory, [factors.second_elements for _, factors in factored])
            for (name, factors), part in zip(factored, parts, strict=True):
                found[f"{FACTOR}:{name}"] = part.view(factors.columns, factors.rank).clone()
        return found

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take that back before the first step."""
        super().load_state(state)
        self._known = {key: tensor for key, tensor in state.items() if key.startswith(f"{FACTOR}:")}

    def _factored(self, flat: Flat) -> Iterator[tuple[str, Factors]]:
        """Yield the parameters that have factors in the order in which the hook lays these out: shape by shape."""
        by_shape: dict[tuple[int, int], list[tuple[str, Factors]]] = {}
        for name, shape in zip(flat.names, flat.shapes, strict=True):
            factors = self._asked.factors(tuple(shape))
            if factors.rank:
                by_shape.setdefault((factors.rows, factors.columns), []).append((name, factors))
        for alike in by_shape.values():
            yield from alike


class _Bucket:
    """A flat buffer as the bucket of gradients that the hook takes."""

    def __init__(self, flat: Flat, place: int, *, is_last: bool) -> None:
        self._flat, self._place, self._is_last = flat, place, is_last

    def buffer(self) -> Tensor:
        return self._flat.tensor

    def gradients(self) -> list[Tensor]:
        parts = self._flat.by_name(self._flat.tensor).values()
        return [part if part.dim() else part.view(1) for part in parts]

    def index(self) -> int:
        return self._place

    def is_last(self) -> bool:
        return self._is_last


class _Summing:
    """Ranks as the process group that the hook asks for sums, which are counted here."""

    def __init__(self, group: Collective) -> None:
        self._group = group

    def size(self) -> int:
        return len(self._group.ranks)

    def allreduce(self, tensors: Sequence[Tensor], _options: Any) -> "_Summed":
        for tensor in tensors:
            if tensor.numel():
                self._group.sum(tensor).wait()
        return _Summed(list(tensors))


class _Summed:
    """Sums that are there."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors

    def get_future(self) -> "torch.futures.Future[list[Tensor]]":
        future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        future.set_result(self._tensors)
        return future
