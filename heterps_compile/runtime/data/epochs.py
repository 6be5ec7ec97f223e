"""A source that ends, again and again: one epoch after the other, in order or shuffled.

Shuffling moves whole blocks of samples that lie side by side, and mixes inside each block, so that it costs a few
large reads instead of many small ones. The order depends on seed and epoch alone: every rank works it out by itself,
and a run that resumes finds the same order::

    samples      0 1 2 | 3 4 5 | 6 7         8 samples, blocks of 3
    epoch 0      7 6 | 1 0 2 | 5 3 4         blocks 2 0 1, each in an order of its own
    epoch 1      4 3 5 | 6 7 | 2 0 1         another seed, another order

A rank that reads a part of a block reads all of it and keeps it for the next time.

Left out: a shuffle over all samples at once; blocks are mixed with their neighbours only by where they come to lie.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from heterps_compile.errors import InputError

from .data_file import DataFile
from .identity import FromFiles, Part, digest_of, parts_of
from .sample_source import Source, check_range, join

BLOCK_SAMPLES = 4096
"""Of a shuffled block, unless told otherwise."""

_BLOCKS_KEPT = 4
_EPOCH_STRIDE = 0x9E3779B97F4A7C15  # golden ratio of 64 bits: neighbours in epoch or block get seeds far apart
_SEED_BITS = 2**63 - 1


class Epochs:
    """An endless source over one that ends.

    Attributes:
        source: What is repeated.
    """

    def __init__(self, source: Source, *, shuffle_seed: int | None = None, block_samples: int = BLOCK_SAMPLES) -> None:
        """Repeat a source.

        Args:
            source: That has an end.
            shuffle_seed: Of the order; None keeps that of the source.
            block_samples: Samples that stay together when shuffled.

        Raises:
            InputError: where the source has no end, or a block has no samples.
        """
        if source.samples is None:
            raise InputError("data that never end, or are read once from front to back, cannot be shuffled or repeated")
        if block_samples < 1:
            raise InputError(f"a block of {block_samples} samples cannot be shuffled; give it one at least")
        self.source = source
        self._length = source.samples
        self._seed = shuffle_seed
        self._block = min(block_samples, self._length)
        self._order: tuple[int, Tensor, Tensor] | None = None
        self._kept: OrderedDict[tuple[int, int, tuple[str, ...]], dict[str, Tensor]] = OrderedDict()

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return self.source.columns

    @property
    def samples(self) -> None:
        """Give None: there is no end."""
        return

    @property
    def files(self) -> Sequence[DataFile]:
        """Return those of the source; none where it has none."""
        return self.source.files if isinstance(self.source, FromFiles) else ()

    def parts(self) -> tuple[Part, ...]:
        """Return those of the source in their order; as one where they are shuffled."""
        inner = parts_of(self.source)
        return inner if self._seed is None else (Part(self._length, digest_of(self._seed, self._block, inner)),)

    def read(self, first: int, count: int, columns: Sequence[str]) -> dict[str, Tensor]:
        """Return a range of the endless row of epochs."""
        check_range(self, "the epochs", first, count, columns)
        parts = []
        while count > 0:
            epoch, place = divmod(first, self._length)
            here = min(count, self._length - place)
            if self._seed is None:
                parts.append(self.source.read(place, here, columns))
            else:
                parts += self._shuffled(epoch, place, here, tuple(columns))
            first, count = first + here, count - here
        return join(parts)

    def _shuffled(self, epoch: int, place: int, count: int, columns: tuple[str, ...]) -> Iterator[dict[str, Tensor]]:
        """Yield samples ``place`` on of an epoch, block by block."""
        blocks, starts = self._order_of(epoch)
        index = int(torch.searchsorted(starts, place, right=True)) - 1
        while count > 0:
            offset = place - int(starts[index])
            mixed = self._mixed_block(epoch, int(blocks[index]), columns)
            here = min(count, int(starts[index + 1]) - place)
            yield {name: tensor[offset : offset + here] for name, tensor in mixed.items()}
            index, place, count = index + 1, place + here, count - here

    def _order_of(self, epoch: int) -> tuple[Tensor, Tensor]:
        """Return the blocks of an epoch in their order, and where each begins and the last ends."""
        if self._order is None or self._order[0] != epoch:
            count = -(-self._length // self._block)
            blocks = torch.randperm(count, generator=self._generator(epoch, 0))
            sizes = (self._length - blocks * self._block).clamp(max=self._block)
            self._order = epoch, blocks, torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        return self._order[1:]

    def _mixed_block(self, epoch: int, block: int, columns: tuple[str, ...]) -> dict[str, Tensor]:
        key = (epoch, block, columns)
        if key not in self._kept:
            first = block * self._block
            size = min(self._block, self._length - first)
            order = torch.randperm(size, generator=self._generator(epoch, block + 1))
            read = self.source.read(first, size, columns)
            self._kept[key] = {name: tensor[order] for name, tensor in read.items()}
            while len(self._kept) > _BLOCKS_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def _generator(self, epoch: int, block: int) -> torch.Generator:
        mixed = ((self._seed or 0) * _EPOCH_STRIDE + epoch) * _EPOCH_STRIDE + block
        return torch.Generator().manual_seed((mixed ^ (mixed >> 31)) & _SEED_BITS)
