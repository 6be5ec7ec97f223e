"""An exponential moving average (EMA) of the weights that a rank trains, as ``torch.optim.swa_utils`` keeps it.

It is what ``AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(d))`` has after ``update_parameters`` has followed
every step: with w_t the weights after step t, ::

    e_1 = w_1,    e_t = d e_(t-1) + (1 - d) w_t

Running statistics and other buffers are those of the last step, not averaged. A step that is skipped moves nothing.
Replicas of a stage hold the same weights, and so the same average: nothing is sent.

Left out: rows of parameter servers; the files (``checkpoint/format.py``).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim.swa_utils import get_ema_multi_avg_fn

Key = TypeVar("Key")


class WeightAverage:
    """The average of one rank's weights.

    Attributes:
        decay: The share of the average that a step leaves.
        updates: Steps that it has followed.
    """

    def __init__(self, decay: float, stages: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Begin at the weights as they are.

        Args:
            decay: Above 0 and below 1.
            stages: Parameters and buffers of every stage of the rank by their names in the model.
        """
        self.decay, self.updates = decay, 0
        self._stages = {index: dict(tensors) for index, tensors in stages.items()}
        self._held = {id(tensor): tensor for tensors in self._stages.values() for tensor in tensors.values()}
        self._averages = {key: own_copy(tensor) for key, tensor in self._held.items()}
        self._groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        for key, tensor in self._held.items():
            if is_averaged(tensor):
                self._groups.setdefault((tensor.device, tensor.dtype), []).append(key)
        self._move = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def update(self) -> None:
        """Follow a step that the optimiser has made."""
        for key, tensor in self._held.items():
            if not self.updates or not is_averaged(tensor):
                self._averages[key].copy_(tensor)
        for keys in self._groups.values() if self.updates else ():
            averages = [self._averages[key] for key in keys]
            current = [self._held[key].detach().to(average.dtype) for key, average in zip(keys, averages, strict=True)]
            self._move(averages, current, self.updates)
        self.updates += 1

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the stages hold the average while a block runs, and then their own weights again, bit for bit."""
        with others_in_place(self._held, self._averages):
            yield

    def of_stage(self, stage: int) -> dict[str, Tensor]:
        """Return the averages of a stage's parameters, and its buffers, by name; they are the average's own."""
        return {name: self._averages[id(tensor)] for name, tensor in self._stages[stage].items()}

    def begin(self) -> None:
        """Begin again at the weights as they are now."""
        self.updates = 0
        for key, tensor in self._held.items():
            self._averages[key].copy_(tensor.detach())


@contextmanager
def others_in_place(held: Mapping[Key, Tensor], others: Mapping[Key, Tensor]) -> Iterator[None]:
    """Let tensors that stages hold have other values while a block runs, and then their own again, bit for bit."""
    own = {key: tensor.detach().clone() for key, tensor in held.items()}
    try:
        _put(held, others)
        yield
    finally:
        _put(held, own)


@torch.no_grad()
def _put(held: Mapping[Key, Tensor], values: Mapping[Key, Tensor]) -> None:
    for key, tensor in held.items():
        tensor.copy_(values[key])


def is_averaged(tensor: Tensor) -> bool:
    """Tell whether a tensor of a stage is averaged; of others the last is kept."""
    return isinstance(tensor, Parameter) and (tensor.is_floating_point() or tensor.is_complex())


def own_copy(tensor: Tensor) -> Tensor:
    """Return a copy; of a parameter in fewer bits than float32 one that has as many."""
    is_narrow = is_averaged(tensor) and tensor.is_floating_point() and tensor.dtype.itemsize < torch.float32.itemsize
    return tensor.detach().clone().float() if is_narrow else tensor.detach().clone()
