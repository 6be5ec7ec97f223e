"""What a micro-batch begins with: its data, its random numbers, and values that stay on their rank.

Left out: what is done with it (``stage_actions.py``).
"""

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def as_leaves(values: Sequence[Any]) -> list[Any]:
    """Return values that stay on their rank as those that arrive from another: leaves with the same memory."""
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
        self._is_on_cpu = device.type == "cpu"
        self._is_as_read = self._is_on_cpu and readers == 1
        self._held: dict[int, tuple[Mapping[str, Any], int]] = {}

    def take(self, micro_batch: int, read: Callable[[int, Sequence[str]], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return the data of a micro-batch to one of its readers."""
        if self._is_as_read:
            return read(micro_batch, self._wanted)
        data, left = self._held.pop(micro_batch, (None, self._readers))
        if data is None:
            found = read(micro_batch, self._wanted)
            data = found if self._is_on_cpu else self._on_device(found)
        if left > 1:
            self._held[micro_batch] = (data, left - 1)
        return data

    def _on_device(self, found: Mapping[str, Any]) -> dict[str, Any]:
        return {name: v.to(self._device) if isinstance(v, Tensor) else v for name, v in found.items()}
