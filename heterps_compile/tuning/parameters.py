"""Parameters of a space: real numbers, whole numbers and choices, each a line from 0 to 1 for the methods.

A place ``u`` on the line stands for a value: in proportion on a linear or logarithmic scale, and for whole numbers and
choices in bins of equal width (of equal width on the scale, for whole numbers on a logarithmic one).

Not covered: normal and beta distributions, weights of choices.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

Value = str | bool | int | float
"""A value of a parameter."""


def among(value: Value, values: Sequence[Value]) -> bool:
    """Return whether a value is one of several; True and 1 are two."""
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in values)


@dataclass(frozen=True, slots=True)
class Clause:
    """A test of one parameter: it is active, and has one of some values."""

    name: str
    values: tuple[Value, ...]


Condition = tuple[Clause, ...]
"""Clauses that must all hold; none at all means "always"."""

ALWAYS: Condition = ()


@dataclass(frozen=True, slots=True)
class Float:
    """A real number from ``low`` to ``high``, linear or on a logarithmic scale."""

    name: str
    low: float
    high: float
    log: bool = False
    when: Condition = ALWAYS

    def at(self, u: float) -> float:
        """Return the value at a place from 0 to 1."""
        return min(max(self._drawn(u), self.low), self.high)

    def place(self, value: Value) -> float:
        """Return the place of a value, from 0 to 1."""
        low, high = self._ends()
        return (self._scaled(value) - low) / (high - low)

    def accepts(self, value: Value) -> bool:
        """Return whether the parameter can have the value."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and self.low <= float(value) <= self.high

    def _drawn(self, u: float) -> float:
        low, high = self._ends()
        value = low + u * (high - low)
        return math.exp(value) if self.log else value

    def _ends(self) -> tuple[float, float]:
        return self._scaled(self.low), self._scaled(self.high)

    def _scaled(self, value: Value) -> float:
        return math.log(float(value)) if self.log else float(value)


@dataclass(frozen=True, slots=True)
class Integer(Float):
    """A whole number from ``low`` to ``high``, both of them possible, linear or on a logarithmic scale."""

    low: int
    high: int

    def at(self, u: float) -> int:
        """Return the value at a place from 0 to 1."""
        return min(max(round(self._drawn(u)), self.low), self.high)

    def accepts(self, value: Value) -> bool:
        """Return whether the parameter can have the value."""
        return isinstance(value, int) and super(Integer, self).accepts(value)

    def _ends(self) -> tuple[float, float]:
        return self._scaled(self.low - 0.5), self._scaled(self.high + 0.5)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several values; a constant is a choice of one."""

    name: str
    choices: tuple[Value, ...]
    when: Condition = ALWAYS

    def at(self, u: float) -> Value:
        """Return the value at a place from 0 to 1."""
        return self.choices[min(int(u * len(self.choices)), len(self.choices) - 1)]

    def place(self, value: Value) -> float:
        """Return the middle of the value's bin, from 0 to 1."""
        return (self.index(value) + 0.5) / len(self.choices)

    def accepts(self, value: Value) -> bool:
        """Return whether the parameter can have the value."""
        return among(value, self.choices)

    def index(self, value: Value) -> int:
        """Return the position of a value among the choices."""
        return next(at for at, choice in enumerate(self.choices) if among(value, (choice,)))


Parameter = Float | Integer | Choice
