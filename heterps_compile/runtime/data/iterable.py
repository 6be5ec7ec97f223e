"""Any iterable of samples or batches as a source: read from front to back, again and again.

Samples are numbered as they come. A rank goes past those of others; it may go back by ``keep_samples`` (the stages of
one rank may read the same micro-batch at different times), and no further.

Left out: random access (an iterable has none; so it cannot be shuffled here), reading in other processes.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import length_hint
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heterps_compile.errors import InputError, RunError
from heterps_compile.escape import printable

from .identity import Part, digest_of
from .sample_source import check_range, join

_KNOWN_BY = 8192  # numbers of a column

_COUNT_S = 30.0

KEEP_SAMPLES = 8192
"""How far an iterable may be read backwards, unless told otherwise."""


class IterableSource:
    """Samples out of an iterable of dicts.

    An iterable that can be gone through again (a list, a DataLoader) begins again when it ends. An iterator ends,
    unless ``make_again`` makes another one.
    """

    def __init__(
        self,
        items: Iterable[Mapping[str, Any]],
        *,
        is_batched: bool,
        keep_samples: int = KEEP_SAMPLES,
        make_again: Callable[[], Iterable[Mapping[str, Any]]] | None = None,
    ) -> None:
        """Take an iterable and its first item.

        Args:
            items: Each a dict of columns: tensors, arrays, numbers or lists of numbers.
            is_batched: Whether an item is a batch, columns [n, ...] with n of its own, or one sample.
            keep_samples: How many samples behind the foremost one can be read again; the batch at least.
            make_again: Makes the items again after the end of an iterator; None for an iterator that ends.

        Raises:
            InputError: where it is no iterable, there is no item, or it is no dict of columns.
        """
        self._items = items
        self._is_batched = is_batched
        self._keep = keep_samples
        if not isinstance(items, Iterable):
            raise InputError(f"the data are a {type(items).__name__}, which gives no items; give an iterable of dicts")
        self._iterator: Iterator[Mapping[str, Any]] = iter(items)
        self._make_again = make_again if self._iterator is items else lambda: items
        self._window: deque[tuple[int, dict[str, Tensor]]] = deque()  # (number of its first sample, batch)
        self._end = 0  # samples taken out of the iterable so far
        self._columns: tuple[str, ...] = ()
        self._take()
        self._first = Part(None, _digest(self._window[0][1]))

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns: those of the first item."""
        return self._columns

    @property
    def samples(self) -> None:
        """Give None: an iterable does not tell."""
        return

    def parts(self) -> tuple[Part, ...]:
        """Return what it is known by: its first item; another one means another order, or other data."""
        return (self._first,)

    def read(self, first: int, count: int, columns: Sequence[str]) -> dict[str, Tensor]:
        """Return a range of samples; those before it by more than ``keep_samples`` are forgotten."""
        check_range(self, "the iterable", first, count, columns)
        begin = self._window[0][0]
        if first < begin:
            raise RunError(
                f"sample {first:,} of the iterable was read before and is forgotten, the oldest that is kept is "
                f"{begin:,}; keep more than {self._keep:,} samples (keep_samples=), or use files"
            )
        while self._end < first + count:
            self._take()
            self._forget(min(self._end - self._keep, first))
        parts = []
        for start, batch in self._window:
            low, high = max(first - start, 0), min(first + count - start, _length(batch))
            if low < high:
                parts.append({name: batch[name][low:high] for name in columns})
        return join(parts)

    def count(self) -> int:
        """Read to the end, of which such a source is for nothing else afterwards, and return the number of samples.

        Raises:
            RunError: if items without a length have not ended within half a minute.
        """
        until_s = math.inf if length_hint(self._items, -1) >= 0 else time.monotonic() + _COUNT_S
        while (item := self._next()) is not None:
            self._end += _length(self._batch(item))
            if time.monotonic() > until_s:
                raise RunError(
                    f"the data gave {self._end:,} samples in {_COUNT_S:g} s without an end; expected one. "
                    "Fix: give the number of steps (--steps N), or data with a length"
                )
        return self._end

    def _take(self) -> None:
        """Take the next item, or begin again."""
        item = self._next()
        if item is None and self._make_again is not None and self._end:
            self._iterator = iter(self._make_again())
            item = self._next()
        if item is None:
            if self._end:
                raise RunError(
                    f"the data are an iterator that ended after {self._end:,} samples; expected an iterable. "
                    "Fix: return an iterable, not an iterator (a list, a DataLoader), or give fewer steps"
                )
            raise InputError("the iterable has no items")
        batch = self._batch(item)
        self._window.append((self._end, batch))
        self._end += _length(batch)

    def _next(self) -> Mapping[str, Any] | None:
        try:
            return next(self._iterator, None)
        except Exception as error:
            error.add_note(f"where the data went on after {self._end:,} samples")
            raise

    def _forget(self, number: int) -> None:
        """Drop the batches that end at or before a sample."""
        while self._window[0][0] + _length(self._window[0][1]) <= number:
            self._window.popleft()

    def _batch(self, item: Any) -> dict[str, Tensor]:
        place = f"item with sample {self._end:,} of the iterable"
        if not isinstance(item, Mapping) or not item or not all(isinstance(name, str) for name in item):
            raise InputError(f"the {place} is a {type(item).__name__}; give a dict of columns by name")
        self._columns = self._columns or tuple(item)
        if set(item) != set(self._columns):
            odd = sorted(set(item) ^ set(self._columns))[0]
            raise InputError(f"the {place} and the first one do not both have the column {printable(odd)!r}")
        batch = {name: _tensor(name, value, place) for name, value in item.items()}
        if not self._is_batched:
            return {name: tensor[None] for name, tensor in batch.items()}
        lengths = {len(tensor) if tensor.dim() else 0 for tensor in batch.values()}
        if len(lengths) > 1 or not min(lengths):
            shapes = ", ".join(f"{printable(name)!r} {list(tensor.shape)}" for name, tensor in batch.items())
            raise InputError(f"the {place} is no batch: {shapes}; every column must be [samples, ...], as many in each")
        return batch


def _digest(batch: Mapping[str, Tensor]) -> str:
    columns = sorted(batch.items())
    heads = (tensor.detach().cpu().reshape(-1)[:_KNOWN_BY].contiguous() for _, tensor in columns)
    content = (head.view(torch.uint8).numpy().tobytes() for head in heads)
    return digest_of([(name, str(tensor.dtype), tuple(tensor.shape)) for name, tensor in columns], content=content)


def _length(batch: Mapping[str, Tensor]) -> int:
    return len(next(iter(batch.values())))


def _tensor(name: str, value: Any, place: str) -> Tensor:
    """Return a column's value as a tensor; Python's floats become float32, as a model's numbers mostly are."""
    if isinstance(value, Tensor):
        return value.detach()
    try:
        array = np.asarray(value)
        is_python = not isinstance(value, (np.ndarray, np.generic))
        return torch.from_numpy(np.array(array, np.float32 if is_python and array.dtype.kind == "f" else array.dtype))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"column {printable(name)!r} of the {place} is a {type(value).__name__} that makes no tensor; give "
            f"tensors, arrays or numbers"
        ) from error
