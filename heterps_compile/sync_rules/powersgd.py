"""The rule ``powersgd``: of a gradient that is a matrix two thin factors are summed, whose product stands for the sum.

Legend: a gradient of n x m, rank r, P of n x r and Q of m x r, P = sum M Q made orthonormal, Q = sum M^T P, M ~ P Q^T.
A matrix is what is left of a tensor whose first dimension stays and whose others are joined. Its factors are summed
where 2 r (n + m) < n m, as PyTorch's hook does by default; other tensors, all of one dimension among them, are summed
whole. With U elements of these a step has three all-reduces, of U, of all P and of all Q (``all_reduce_rule.py``)::

    2 (k - 1) / k (U + sum of r (n + m)) elements of every replica

What the factors leave out is kept where ``feedback`` is on, and added to the next step's gradient.

Left out: the arithmetic of products and orthonormal columns, of which the traffic with memory counts; gradients of
embeddings, which count as whole matrices.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from heterps_compile.errors import InputError

from .all_reduce_rule import ring_exchange
from .amounts import Amounts
from .handling import Handling, Work, flat_gradients, summed
from .rule import ANY, BOUNDED, NOTHING, Exactness, Exchange, SyncGroup, SyncRule, TensorShape

_LEAST_RATE = 2
"""How many times fewer elements factors must have (the least compression rate of PyTorch's hook, by default)."""


@dataclass(frozen=True, slots=True)
class Factors:
    """What a tensor is sent as.

    Attributes:
        rows, columns: n and m.
        rank: r; 0 where it is summed whole.
    """

    rows: int
    columns: int
    rank: int

    @property
    def first_elements(self) -> int:
        """Return those of P."""
        return self.rows * self.rank

    @property
    def second_elements(self) -> int:
        """Return those of Q."""
        return self.columns * self.rank


@dataclass(frozen=True, slots=True)
class PowerSGD(SyncRule):
    """Sum thin factors of gradients.

    Attributes:
        rank: Of the factors, 1 or more; a matrix with fewer rows or columns has as many.
        feedback: Whether what they leave out is added to the next step's gradient.
    """

    rank: int = 2
    feedback: bool = True

    name: ClassVar[str] = "powersgd"
    example: ClassVar[str] = "powersgd(rank=2)"
    source: ClassVar[str] = "Vogels, Karimireddy and Jaggi, NeurIPS 2019, arXiv 1905.13727"

    def __post_init__(self) -> None:
        """Refuse a rank below 1.

        Raises:
            InputError: where it is.
        """
        if self.rank < 1:
            raise InputError(f"the rank of powersgd is {self.rank}; it must be 1 or more, such as {self.example}")

    @property
    def exactness(self) -> Exactness:
        """Return whether what is left out comes later."""
        return BOUNDED if self.feedback else ANY

    @property
    def uncounted(self) -> str:
        """Return that of products traffic alone is counted."""
        return (
            "of the products of powersgd the traffic with memory is counted and not the arithmetic, which takes a CPU "
            "core several times as long (docs/synchronisation.md)"
        )

    def factors(self, shape: tuple[int, ...]) -> Factors:
        """Return what a gradient of a shape is sent as."""
        rows = shape[0] if shape else 1
        columns = prod(shape[1:])
        rank = min(rows, columns, self.rank)
        is_thin = (rows + columns) * rank * _LEAST_RATE < rows * columns
        return Factors(rows, columns, rank if is_thin else 0)

    def exchange(self, group: SyncGroup) -> Exchange:
        """Return the three all-reduces."""
        if not group.agrees:
            return NOTHING
        parts = [ring_exchange(size_bytes, group.replicas, group.network) for size_bytes in self._summed_bytes(group)]
        return Exchange(
            sum(part.sent_bytes for part in parts),
            sum(part.card_bytes for part in parts),
            sum(part.bytes_s for part in parts),
            sum(part.hops_s for part in parts),
        )

    def extra_bytes(self, group: SyncGroup) -> int:
        """Return the bytes of what is sent, and with feedback of what is kept and of the gradient before it is left."""
        if not group.agrees:
            return 0
        return sum(self._summed_bytes(group)) + (2 * group.gradient_bytes if self.feedback else 0)

    def amounts(self, group: SyncGroup) -> Amounts | None:
        """Return what is summed, whole or as factors, and what is held; None where shapes are not known."""
        if group.gradient_bytes and not group.shapes:
            return None
        whole_bytes, *factors_bytes = self._summed_bytes(group)
        summed_bytes = whole_bytes + sum(factors_bytes)
        return Amounts(
            ring_bytes=summed_bytes,
            held_bytes=summed_bytes + (2 * group.gradient_bytes if self.feedback else 0),
            is_factored=any(factors_bytes),
            is_whole=whole_bytes > 0,
        )

    def handling(self, group: SyncGroup) -> Handling:
        """Return buffers that two products read and one writes, and what is kept beside; arithmetic is left out."""
        passes = 3 + (8 if self.feedback else 0)
        once = flat_gradients(group.gradient_bytes) + Work(moved=passes * group.gradient_bytes)
        return Handling(once, shared=summed(sum(self._summed_bytes(group))))

    def refusal(self, group: SyncGroup) -> str:
        """Refuse a group whose tensors' shapes nobody knows."""
        if group.agrees and not group.shapes:
            return "its bytes follow from the shapes of gradients, which are not known here; take another rule"
        return ""

    def _summed_bytes(self, group: SyncGroup) -> tuple[int, int, int]:
        """Return the bytes of what is summed whole, of all P and of all Q; all is whole where shapes are not known."""
        if not group.shapes:
            return group.gradient_bytes, 0, 0
        found = list(self._of_tensors(group.shapes))
        whole, first, second = (sum(sizes) for sizes in zip(*found, strict=True))
        return whole, first, second

    def _of_tensors(self, shapes: tuple[TensorShape, ...]) -> Iterator[tuple[int, int, int]]:
        for one in shapes:
            made = self.factors(one.shape)
            if made.rank:
                yield 0, made.first_elements * one.element_bytes, made.second_elements * one.element_bytes
            else:
                yield prod(one.shape) * one.element_bytes, 0, 0
