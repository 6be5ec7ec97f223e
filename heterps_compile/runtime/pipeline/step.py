"""What a rank keeps of a step: micro-batches between forward and backward, and the data they are made of.

A micro-batch of a stage runs in a piece of the autograd graph of its own: what enters are leaves, which collect the
gradients that go back to the stages they came from.

Left out: the order of actions and who is told (``engine.py``).
"""

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .routes import Route

Arrived = tuple[tuple[Route, list[Any]], ...]
"""The values that came along every route."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A micro-batch of one stage after its forward.

    Attributes:
        arrived: The values that came, the leaves of its piece of the graph.
        made: The values it made, by name.
        loss: Of the micro-batch, where this is the last stage.
    """

    arrived: Arrived
    made: Mapping[str, Any]
    loss: Tensor | None = None


def backward(kept: Kept, gradients: Mapping[str, Tensor], count: int) -> None:
    """Run the backward of a micro-batch; gradients gather in the leaves and in the parameters.

    Args:
        kept: The micro-batch.
        gradients: Of the values it made, by name; what has none is left out.
        count: Micro-batches in a step: a step's loss is the mean over them.
    """
    roots = [kept.made[name] for name in gradients]
    seeds: list[Tensor | None] = list(gradients.values())
    if kept.loss is not None:
        roots.append(kept.loss)
        seeds.append(torch.full_like(kept.loss, 1 / count))
    if roots:
        torch.autograd.backward(roots, seeds)


def gradients_of(values: Sequence[Any]) -> list[Tensor | None]:
    """Give the gradients of the leaves among received values, in order; None for a leaf that was not used."""
    return [v.grad for v in values if isinstance(v, Tensor) and v.requires_grad]


def differentiable(values: Sequence[Any], names: Sequence[str]) -> tuple[str, ...]:
    """Give the names of the values for which gradients come back."""
    return tuple(n for v, n in zip(values, names, strict=True) if isinstance(v, Tensor) and v.requires_grad)


def as_leaves(values: Sequence[Any]) -> list[Any]:
    """Give values that stay on their rank as those that arrive from another: leaves with the same memory."""
    return [v.detach().requires_grad_(v.requires_grad) if isinstance(v, Tensor) else v for v in values]


def seed_forward(seed: int, step: int, micro_batch: int, stage: int, device: torch.device) -> None:
    """Seed the random numbers of a forward, so that they depend neither on the schedule nor on replicas."""
    digest = hashlib.blake2b(struct.pack("<4q", seed, step, micro_batch, stage), digest_size=8).digest()
    number = int.from_bytes(digest, "little") >> 1
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(number)


class MicroBatchData:
    """The data of a step's micro-batches: each is read once, and dropped after its last reader on this rank."""

    def __init__(self, wanted: Sequence[str], readers: int, device: torch.device) -> None:
        """Prepare.

        Args:
            wanted: Names to read.
            readers: Stages of this rank that read them.
            device: Where they are put.
        """
        self._wanted, self._readers, self._device = tuple(wanted), readers, device
        self._held: dict[int, tuple[Mapping[str, Any], int]] = {}

    def take(self, micro_batch: int, read: Callable[[int, Sequence[str]], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Give the data of a micro-batch to one of its readers."""
        if micro_batch in self._held:
            data, left = self._held.pop(micro_batch)
        else:
            found = read(micro_batch, self._wanted)
            data = found if self._device.type == "cpu" else self._on_device(found)
            left = self._readers
        if left > 1:
            self._held[micro_batch] = (data, left - 1)
        return data

    def _on_device(self, found: Mapping[str, Any]) -> dict[str, Any]:
        return {name: v.to(self._device) if isinstance(v, Tensor) else v for name, v in found.items()}
