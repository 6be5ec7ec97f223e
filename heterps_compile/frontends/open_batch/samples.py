"""Where the samples of a batch lie in values, and what ops of ONNX and of PyTorch alike do with them.

Left out: how an op is written in either (:mod:`.node_view`, :mod:`.call_view`), and which rule it has
(:mod:`.rules`, :mod:`.aten_rules`).
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import NoReturn

from heterps_compile.escape import shorten

Dims = tuple[int | str | None, ...]
"""A shape: numbers, dynamic dimensions by name, None for what is not known."""

_NAME_SHOWN = 80
_STATE_RANK = 3  # states of recurrent layers are (layers, batch, width)


class MixesError(Exception):
    """Samples of a batch do not stay apart in a node, or it is not proven; caught where the batch is opened."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Where a value has its samples. A value without it is the same for all samples.

    Attributes:
        axis: Along which they lie: in each round all samples, of each its rows side by side.
        rows: Of each sample in a round.
        rounds: How many times all samples come round along the axis.
    """

    axis: int
    rows: int = 1
    rounds: int = 1

    def at(self, axis: int) -> "Samples":
        """Return the same along another axis."""
        return Samples(axis, self.rows, self.rounds)

    @property
    def per_sample(self) -> int:
        """Return how long the axis is for each sample."""
        return self.rounds * self.rows


def readings(shapes: Sequence[Dims], fixed: int) -> Iterator[tuple[Samples | None, ...]]:
    """Yield where inputs of these shapes may have their samples, the likeliest first."""
    choices = [tuple(_choices(shape, fixed)) for shape in shapes]
    open_ = [i for i, either in enumerate(choices) if len(either) > 1]
    for count in range(len(open_) + 1):
        for others in combinations(open_, count):
            found = tuple(either[i in others] for i, either in enumerate(choices))
            if any(samples is not None and samples.axis == 0 for samples in found):
                yield found


def _choices(shape: Dims, fixed: int) -> Iterator[Samples | None]:
    """Yield where an input may have its samples: one place, or two of which the first is likelier."""
    if not shape or shape[0] != fixed:
        if len(shape) >= _STATE_RANK and shape[1] == fixed:
            yield Samples(1)
        yield None
        return
    yield Samples(0)
    if len(shape) == 1:
        yield None
    elif shape[1] == fixed:
        yield Samples(1)


class Operands(ABC):
    """The tensors that a node reads, by position: where they have their samples, and what a node may do with them."""

    __slots__ = ()

    fixed: int
    """The batch that the model fixes."""

    @abstractmethod
    def samples(self, position: int) -> Samples | None:
        """Return where an operand has its samples, None where it is the same for all, or not given."""

    @abstractmethod
    def shape(self, position: int) -> Dims:
        """Return the shape of an operand, as far as it is known, at the batch that the model fixes."""

    @abstractmethod
    def label(self, position: int) -> str:
        """Return the name of an operand, in quotes."""

    @property
    @abstractmethod
    def given(self) -> Sequence[int]:
        """Return the positions of the operands that are given."""

    @abstractmethod
    def widen(self, position: int, axis: int, like: int, samples: Samples) -> None:
        """Repeat an operand that is the same for all samples along an axis, as often as another has samples."""

    @abstractmethod
    def repeat_rows(self, position: int, axis: int, like: int, samples: Samples) -> None:
        """Repeat the rows that an operand without samples has along an axis, as often as another has samples."""

    def refuse(self, why: str) -> NoReturn:
        """Stop: the batch cannot be opened here."""
        raise MixesError(why)

    def rank(self, position: int) -> int:
        """Return the number of dimensions of an operand."""
        return len(self.shape(position))

    def only(self, *positions: int) -> Samples | None:
        """Return where the first of these operands has its samples; no operand besides may have some."""
        for i in self.given:
            if i not in positions and self.samples(i) is not None:
                self.refuse(f"its input {self.label(i)} would differ from sample to sample, and may not")
        return self.samples(positions[0])

    def numbers(self, shape: Dims) -> tuple[int, ...]:
        """Return a shape that has numbers only."""
        found = tuple(dim for dim in shape if isinstance(dim, int))
        if len(found) < len(shape):
            open_ = next((dim for dim in shape if isinstance(dim, str)), "")
            of = f" {_quote(open_)}" if open_ else ""
            self.refuse(f"it works on sizes, and one of them is the dynamic dimension{of}")
        return found

    def placed(self, samples: Samples, shape: Dims, made: Dims) -> Samples:
        """Return where samples lie when the elements are given another shape in the same order.

        Dimensions of length 1 leave several places. The batch by itself is the likeliest, then where it was.
        """
        if 0 in made:
            self.refuse("it makes a value without elements")
        before = _product(shape[: samples.axis])
        found = []
        for axis, dim in enumerate(made):
            passed = _product(made[:axis])
            if before is None or passed is None or passed[1] != before[1] or not isinstance(dim, int):
                continue
            rounds, rest = divmod(before[0] * samples.rounds, passed[0])
            if rest == 0 and dim % (rounds * self.fixed) == 0:
                found.append(Samples(axis, dim // (rounds * self.fixed), rounds))
        if not found:
            self.refuse(f"it tears samples apart: {shown(shape)} becomes {shown(made)}")

        def unlike(one: Samples) -> tuple[int | bool, ...]:
            is_shifted = one.axis - len(made) != samples.axis - len(shape)
            is_plain, is_same = one.per_sample == 1, one.at(0) == samples.at(0)
            is_last = one.axis == len(made) - 1  # where features lie
            return not is_plain, not is_same, is_last, one.rounds, one.axis != samples.axis, is_shifted, one.axis

        return min(found, key=unlike)

    def joined(self, samples: Samples, shape: Dims, begin: int, end: int) -> Samples:
        """Return how samples lie in one axis made of some, theirs among them."""
        rounds, rows = (
            prod(self.numbers(part)) for part in (shape[begin : samples.axis], shape[samples.axis + 1 : end])
        )
        return Samples(begin, samples.rows * rows, samples.rounds * rounds)

    def is_better_written(self, joined: Samples, samples: Samples, shape: Dims, made: Dims) -> bool:
        """Say whether a shape that is written down keeps the batch by itself, which is joined with others else."""
        is_open = joined.per_sample == 1 or not all(isinstance(dim, int) for dim in made)
        return not is_open and self.placed(samples, shape, made).per_sample == 1

    def aligned(self, positions: Iterable[int], behind: int = 0) -> Samples | None:
        """Return where samples lie in operands that are broadcast, the axis counted from the end.

        Args:
            positions: Of the operands.
            behind: So many dimensions at the end are not broadcast.
        """
        operands = list(positions)
        found: Samples | None = None
        for i in operands:
            samples = self.samples(i)
            if samples is not None:
                place = samples.at(samples.axis - self.rank(i))
                if found not in (None, place):
                    self.refuse("its operands have their samples along different axes, so that it pairs each with each")
                found = place
        if found is None:
            return None
        if found.axis >= -behind:
            self.refuse("one of its operands has its samples where the other has none")
        like = next(i for i in operands if self.samples(i) is not None)
        for i in operands:
            if self.samples(i) is None:
                self._fit(i, found.axis, like)
        return found

    def _fit(self, position: int, place: int, like: int) -> None:
        """Have an operand without samples be one row, or none, along an axis counted from the end, or those of each."""
        samples = self.samples(like)
        assert samples is not None  # noqa: S101 - of an operand that has some
        shape = self.shape(position)
        if self._are_of_each(samples, shape[place] if len(shape) >= -place else 1):
            self.repeat_rows(position, place + len(shape), like, samples)
        else:
            self.check_same(position, place)

    def _are_of_each(self, samples: Samples, rows: int | str | None) -> bool:
        """Say whether so many rows, the same for all samples, are the rows of each."""
        return samples.rounds == 1 and samples.rows > 1 and self.fixed == 1 and rows == samples.rows

    def check_same(self, position: int, place: int) -> None:
        """Have an operand without samples be one row, or none, along an axis counted from the end."""
        shape = self.shape(position)
        if len(shape) >= -place and shape[place] != 1:
            rows = shape[place] if isinstance(shape[place], int) else "several"
            self.refuse(
                f"its input {self.label(position)} of shape {shown(shape)} has {rows} rows where the batch lies"
            )

    def check_wide(self, position: int, axis: int, samples: Samples) -> None:
        """Have an operand be one that can be repeated for each sample."""
        self.check_same(position, axis - self.rank(position))
        if samples.per_sample != 1:
            self.refuse("what is the same for all samples would have to be repeated for the rows of each")

    def broadcast(self, positions: Sequence[int], made: int) -> Samples | None:
        """Compute element by element on operands that are broadcast to a rank."""
        found = self.aligned(positions)
        if found is None:
            return None
        if made != max(self.rank(i) for i in positions):
            self.refuse("it makes another shape than that of its operands")
        return found.at(made + found.axis)

    def first_axis(self, samples: Samples | None) -> Samples | None:
        """Work on images, or rows, that lie along the first axis."""
        if samples is not None and samples.axis != 0:
            self.refuse(f"it takes its samples along axis 0, and the batch lies along axis {samples.axis}")
        return samples

    def product(self, a: int, b: int, made: int) -> Samples | None:
        """Multiply stacks of matrices to a rank; rows of the one, columns of the other, or stacks are samples."""
        one, other = self.samples(a), self.samples(b)
        if one is None and other is None:
            return None
        rank_a, rank_b = self.rank(a), self.rank(b)
        is_sum = (one is not None and one.axis == rank_a - 1) or (
            other is not None and other.axis == max(rank_b - 2, 0)
        )
        if is_sum:
            self.refuse("it sums over the batch")
        if other is None and one is not None and one.axis == rank_a - 2:
            return one.at(made - (1 if rank_b == 1 else 2))
        if one is None and other is not None and other.axis == rank_b - 1:
            return other.at(made - 1)
        found = self.aligned((a, b), behind=2)
        assert found is not None  # noqa: S101 - one operand has samples
        return found.at(made + found.axis + (rank_a == 1) + (rank_b == 1))

    def einsum(self, equation: str, positions: Sequence[int]) -> Samples | None:
        """Have one letter for the samples, in the result too."""
        if all(self.samples(i) is None for i in positions):
            return None
        left, arrow, right = equation.replace(" ", "").partition("->")
        if "." in equation or not arrow:
            self.refuse(f"its equation {equation!r} does not say which letter is the batch")
        letters: set[tuple[str, Samples]] = set()
        terms = list(zip(left.split(","), positions, strict=True))
        for term, i in terms:
            samples = self.samples(i)
            if samples is not None:
                letters.add((term[samples.axis], samples.at(0)))
        (letter, samples), *others = letters
        if others or letter not in right:
            self.refuse(f"its equation {equation!r} sums over the batch, or pairs each sample with each")
        for term, i in terms:
            if term.count(letter) > (0 if self.samples(i) is None else 1):
                self.refuse(f"its equation {equation!r} has the letter of the batch in an operand without samples")
        return samples.at(right.index(letter))

    def without(self, samples: Samples, axes: Collection[int], *, is_kept: bool) -> Samples:
        """Bring some axes together, and keep them with length 1 or drop them."""
        if samples.axis in axes:
            self.refuse("it brings the samples of the batch together")
        return samples if is_kept else samples.at(samples.axis - sum(a < samples.axis for a in axes))

    def beside(self, positions: Sequence[int], axis: int, why: str) -> Samples | None:
        """Have operands of one rank with their samples along one axis, which is not ``axis``; widen those without."""
        found = {samples for i in positions if (samples := self.samples(i)) is not None}
        if not found:
            return None
        samples, *others = found
        if others:
            self.refuse("its operands have their samples along different axes")
        if samples.axis == axis:
            self.refuse(why)
        like = next(i for i in positions if self.samples(i) is not None)
        for i in positions:
            if self.samples(i) is None:
                if self._are_of_each(samples, self.shape(i)[samples.axis]):
                    self.repeat_rows(i, samples.axis, like, samples)
                else:
                    self.widen(i, samples.axis, like, samples)
        return samples

    def apart(self, samples: Samples | None, axes: Collection[int], why: str) -> Samples | None:
        """Leave every value where it is; work along some axes, none of which is the batch."""
        if samples is not None and samples.axis in axes:
            self.refuse(why)
        return samples

    def looked_up(self, data: int, places: int, axis: int) -> Samples | None:
        """Look up rows: of samples that each have all they need, or at places of samples in a table for all.

        Raises:
            MixesError: where the rows that it picks are samples, among others.
        """
        table, found = self.samples(data), self.samples(places)
        if table is not None and found is not None:
            self.refuse("it looks up places of each sample in a table of each, which pairs each with each")
        if found is not None:
            return found.at(axis + found.axis)
        if table is None or table.axis < axis:
            return table
        if table.axis == axis:
            self.refuse("it picks samples out of the batch")
        return table.at(table.axis - 1 + self.rank(places))


def normal(axis: int, rank: int) -> int:
    """Return an axis counted from the front."""
    return axis + rank if axis < 0 else axis


def _product(dims: Sequence[int | str | None]) -> tuple[int, tuple[str, ...]] | None:
    """Return a product of sizes, the dynamic ones by name; None where one is not known."""
    if any(dim is None for dim in dims):
        return None
    return prod(d for d in dims if isinstance(d, int)), tuple(sorted(d for d in dims if isinstance(d, str)))


def shown(shape: Dims) -> str:
    """Return a shape for a message."""
    dims = ("?" if dim is None else str(dim) if isinstance(dim, int) else _quote(dim)[1:-1] for dim in shape)
    return f"[{', '.join(dims)}]"


def _quote(name: str) -> str:
    return repr(shorten(name, _NAME_SHOWN))
