"""A source of training data: samples by their number, whatever they are stored in.

Every rank reads the ranges of its own micro-batches and nothing else. So sharding, resuming at a step, and going on
with other replica counts are all the same thing: reading from another number on.

Left out: which samples a step has (``runtime/pipeline``), order and repetition (``epochs.py``), reading ahead
(``prefetch.py``).
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from heterps_compile.errors import InputError, RunError, UnknownNameError
from heterps_compile.escape import printable


class Source(Protocol):
    """Samples 0, 1, 2 and so on, each a row of named columns.

    ``columns`` are the names there are; ``samples`` counts the samples, None where they never end or nobody knows.
    """

    @property
    def columns(self) -> tuple[str, ...]: ...  # noqa: D102 - above

    @property
    def samples(self) -> int | None: ...  # noqa: D102

    def read(self, first: int, count: int, columns: Sequence[str]) -> dict[str, Tensor]:
        """Return samples ``first`` to ``first + count - 1``: for every column a tensor [count, ...] of its own.

        Raises:
            UnknownNameError: where there is no such column.
            RunError: where the range does not lie inside the source, or what it reads changed since it was opened.
            InputError: where the data are not what they should be, naming place and fault.
        """
        ...


class TensorSource:
    """Samples that are held in memory."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Take a tensor [samples, ...] for every column.

        Raises:
            InputError: where there is none, or they differ in their number of samples.
        """
        lengths = {name: len(tensor) if tensor.dim() else -1 for name, tensor in tensors.items()}
        if not lengths or min(lengths.values()) < 1:
            empty = [name for name, length in lengths.items() if length < 1]
            raise InputError(
                f"column {printable(empty[0])!r} has no samples; give tensors [samples, ...]"
                if empty
                else "there are no columns; give a tensor [samples, ...] for each"
            )
        (first, samples), *others = lengths.items()
        for name, length in others:
            if length != samples:
                raise InputError(
                    f"column {printable(name)!r} has {length} samples and {printable(first)!r} has {samples}; give "
                    f"every column as many"
                )
        self._tensors = dict(tensors)
        self._samples = samples

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return tuple(self._tensors)

    @property
    def samples(self) -> int:
        """Return the number of samples."""
        return self._samples

    def read(self, first: int, count: int, columns: Sequence[str]) -> dict[str, Tensor]:
        """Return a range of samples."""
        check_range(self, "the tensors", first, count, columns)
        return join([{name: self._tensors[name][first : first + count] for name in columns}])


class Columns(dict[str, Tensor]):
    """The columns of a batch as a training file's functions see them: a missing one is refused with those there are."""

    def __missing__(self, name: str) -> Tensor:
        """Refuse a name, as ``batch["label"]`` asks for it.

        Raises:
            InputError: always, with the names there are.
        """
        there = ", ".join(repr(printable(column)) for column in self)
        raise InputError(
            f"the batch has no column {printable(str(name))!r} (it has {there}); name one of these, or make it in "
            f"prepare(batch)"
        )


def check_range(source: Source, what: str, first: int, count: int, columns: Sequence[str]) -> None:
    """Check what is asked of a source.

    Args:
        source: That it is asked of.
        what: The source is, for messages.
        first: Number of the first sample.
        count: Of samples.
        columns: Names wanted.

    Raises:
        UnknownNameError: where there is no such column.
        RunError: where the range does not lie inside the source.
    """
    for name in columns:
        if name not in source.columns:
            raise UnknownNameError(f"column of {what}:", printable(name), map(printable, source.columns))
    samples = source.samples
    if first < 0 or count < 1 or (samples is not None and first + count > samples):
        held = "" if samples is None else f", which has {samples:,}"
        raise RunError(f"samples {first:,} to {first + count - 1:,} cannot be read from {what}{held}")


def join(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Put ranges that follow one another into one, always in memory of its own: a batch may be changed in place.

    Raises:
        InputError: where a column's samples have different shapes.
    """
    joined = {}
    for name in parts[0]:
        tensors = [part[name] for part in parts]
        odd = next((t for t in tensors if t.shape[1:] != tensors[0].shape[1:]), None)
        if odd is not None:
            raise InputError(
                f"a sample of column {printable(name)!r} has shape {list(tensors[0].shape[1:])} in one place and "
                f"{list(odd.shape[1:])} in another; make them equal (pad, or cut)"
            )
        joined[name] = torch.cat(tensors)
    return joined
