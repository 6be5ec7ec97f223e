"""A source that ends, again and again: one epoch after the other, in order or shuffled.

Shuffling cuts the samples into windows of neighbours. Every epoch has the windows in another order, and the samples of
each window in another order; so it costs a few large reads instead of many small ones. The order depends on seed and
epoch alone: every rank works it out by itself, whatever the batch and the replicas, and a run that resumes finds the
same order, in the middle of a window too::

    samples      0 1 2 | 3 4 5 | 6 7         8 samples, windows of 3
    epoch 0      7 6 | 1 0 2 | 5 3 4         windows 2 0 1, each in an order of its own
    epoch 1      4 3 5 | 6 7 | 2 0 1         another epoch, another order

A rank that reads a part of a window reads all of it and keeps it until it has read the next but one. A window of all
samples mixes all with all, and is kept once for all epochs.

Left out: a batch of samples from several windows, but where one ends.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from heterps_compile.errors import InputError

from .data_file import DataFile
from .identity import FromFiles, Part, digest_of, parts_of
from .sample_source import Source, check_range, join

_WINDOWS_KEPT = 2
_EPOCH_STRIDE = 0x9E3779B97F4A7C15  # golden ratio of 64 bits: neighbours in epoch or window get seeds far apart
_SEED_BITS = 2**63 - 1

K = TypeVar("K")
V = TypeVar("V")


class Epochs:
    """An endless source over one that ends.

    Attributes:
        source: What is repeated.
    """

    def __init__(self, source: Source, *, seed: int = 0, window_samples: int | None = None) -> None:
        """Repeat a source.

        Args:
            source: That has an end.
            seed: Of the order, where it is shuffled.
            window_samples: Neighbours that are mixed with one another; None keeps the order of the source.

        Raises:
            InputError: where the source has no end, or a window has no samples.
        """
        if source.samples is None:
            raise InputError("data that never end, or are read once from front to back, cannot be shuffled or repeated")
        if window_samples is not None and window_samples < 1:
            raise InputError(f"a window of {window_samples} samples cannot be shuffled; give it one at least")
        self.source = source
        self._length = source.samples
        self._seed = seed
        self._window = None if window_samples is None else min(window_samples, self._length)
        self._order: tuple[int, Tensor, Tensor] | None = None
        self._mixed: OrderedDict[tuple[int, int], Tensor] = OrderedDict()
        self._kept: OrderedDict[tuple[int, tuple[str, ...]], dict[str, Tensor]] = OrderedDict()

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
        if self._window is None:
            return inner
        return (Part(self._length, digest_of(self._seed, self._window, inner)),)

    def read(self, first: int, count: int, columns: Sequence[str]) -> dict[str, Tensor]:
        """Return a range of the endless row of epochs."""
        check_range(self, "the epochs", first, count, columns)
        parts = []
        while count > 0:
            epoch, place = divmod(first, self._length)
            here = min(count, self._length - place)
            if self._window is None:
                parts.append(self.source.read(place, here, columns))
            else:
                parts += self._shuffled(self._window, epoch, place, here, tuple(columns))
            first, count = first + here, count - here
        return join(parts)

    def _shuffled(
        self, window: int, epoch: int, place: int, count: int, columns: tuple[str, ...]
    ) -> Iterator[dict[str, Tensor]]:
        """Yield samples ``place`` on of an epoch, window by window."""
        windows, starts = self._order_of(window, epoch)
        index = int(torch.searchsorted(starts, place, right=True)) - 1
        while count > 0:
            offset, number = place - int(starts[index]), int(windows[index])
            size = int(starts[index + 1] - starts[index])
            here = min(count, size - offset)
            samples = self._mixed_order(epoch, number, size)[offset : offset + here]
            held = self._held(number, number * window, size, columns)
            yield {name: tensor[samples] for name, tensor in held.items()}
            index, place, count = index + 1, place + here, count - here

    def _order_of(self, window: int, epoch: int) -> tuple[Tensor, Tensor]:
        """Return the windows of an epoch in their order, and where each begins and the last ends."""
        if self._order is None or self._order[0] != epoch:
            count = -(-self._length // window)
            windows = windows_of_epoch(self._seed, epoch, count)
            sizes = (self._length - windows * window).clamp(max=window)
            self._order = epoch, windows, torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        return self._order[1:]

    def _mixed_order(self, epoch: int, number: int, size: int) -> Tensor:
        """Return the order of the samples of a window in an epoch."""
        key = epoch, number
        if key not in self._mixed:
            self._mixed[key] = torch.randperm(size, generator=_generator(self._seed, epoch, number + 1))
        return _last_used(self._mixed, key)

    def _held(self, number: int, first: int, size: int, columns: tuple[str, ...]) -> dict[str, Tensor]:
        """Return the samples of a window as the source has them, read once."""
        key = number, columns
        if key not in self._kept:
            while len(self._kept) >= _WINDOWS_KEPT:
                self._kept.popitem(last=False)
            self._kept[key] = self.source.read(first, size, columns)
        return _last_used(self._kept, key)


def windows_of_epoch(seed: int, epoch: int, count: int) -> Tensor:
    """Return so many windows in the order in which an epoch has them."""
    return torch.randperm(count, generator=_generator(seed, epoch, 0))


def _generator(seed: int, epoch: int, part: int) -> torch.Generator:
    mixed = (seed * _EPOCH_STRIDE + epoch) * _EPOCH_STRIDE + part
    return torch.Generator().manual_seed((mixed ^ (mixed >> 31)) & _SEED_BITS)


def _last_used(kept: OrderedDict[K, V], key: K) -> V:
    """Return a value, after which all but the few that were used last are dropped."""
    kept.move_to_end(key)
    while len(kept) > _WINDOWS_KEPT:
        kept.popitem(last=False)
    return kept[key]
