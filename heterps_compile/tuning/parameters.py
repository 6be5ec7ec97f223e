"""Parameters of a space: real numbers, whole numbers and choices, each a line from 0 to 1 for the methods.

A place ``u`` on the line stands for a value: in proportion on a linear or logarithmic scale, and for whole numbers and
choices in bins of equal width (of equal width on the scale, for whole numbers on a logarithmic one).

Left out: when a parameter is active (``space.py``), normal and beta distributions, weights of choices.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from heterps_compile.errors import InputError
from heterps_compile.escape import short

Value = str | bool | int | float
"""What a parameter may be set to."""

IN, NOT_IN, ABOVE, BELOW = "in", "not in", "above", "below"


_MOST = 2**53


def same(one: Value, other: Value) -> bool:
    """Return whether two values are one; True and 1 are two."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def as_value(where: str, given: object) -> Value:
    """Return what stands in a file, as a value.

    Args:
        where: What to call its place, as a sentence begins.
        given: What stands there.

    Raises:
        InputError: where it is no text, number or truth, or too large to be told from its neighbours.
    """
    if not isinstance(given, str | bool | int | float):
        raise InputError(f"{where}: {short(given)} is no value; values are texts, numbers, true and false")
    if isinstance(given, int) and abs(given) > _MOST:
        number = str(given) if abs(given) < _MOST**4 else "a number of very many digits"
        raise InputError(f"{where}: {number} is beyond 2**53, up to which floats tell whole numbers apart")
    return given


def among(value: Value, values: Sequence[Value]) -> bool:
    """Return whether a value is one of several."""
    return any(same(value, other) for other in values)


@dataclass(frozen=True, slots=True)
class Clause:
    """A test of one parameter's value.

    Attributes:
        name: The parameter's name.
        relation: ``in``, ``not in``, ``above`` or ``below``.
        values: What it is compared with; one value for ``above`` and ``below``.
    """

    name: str
    relation: str
    values: tuple[Value, ...]


Condition = tuple[tuple[Clause, ...], ...]
"""Alternatives, each of them clauses that all must hold; no alternative at all means "always"."""

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
        return min(max(_drawn(self._scale(), u, self.log), self.low), self.high)

    def place(self, value: Value) -> float:
        """Return the place of a value, from 0 to 1."""
        return _placed(self._scale(), value, self.log)

    def accepts(self, value: Value) -> bool:
        """Return whether the parameter can have the value."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and self.low <= float(value) <= self.high

    def order(self, value: Value) -> float:
        """Return what ``above`` and ``below`` compare."""
        return float(value)

    def restricted(self, clause: Clause) -> Self | None:
        """Return the parameter with the values that meet a clause; None where none does."""
        if clause.relation == NOT_IN:
            return self
        if clause.relation == IN:
            left = [type(self.low)(value) for value in clause.values if self.accepts(value)]
            return replace(self, low=min(left), high=max(left)) if left else None
        edge = self.order(clause.values[0])
        low = max(self.low, edge) if clause.relation == ABOVE else self.low
        high = min(self.high, edge) if clause.relation == BELOW else self.high
        return replace(self, low=low, high=high) if low < high else None

    def _scale(self) -> tuple[float, float]:
        return _number(self.low, self.log), _number(self.high, self.log)


@dataclass(frozen=True, slots=True)
class Integer(Float):
    """A whole number from ``low`` to ``high``, both of them possible, linear or on a logarithmic scale."""

    low: int
    high: int

    def at(self, u: float) -> int:
        """Return the value at a place from 0 to 1."""
        return min(max(round(_drawn(self._scale(), u, self.log)), self.low), self.high)

    def accepts(self, value: Value) -> bool:
        """Return whether the parameter can have the value."""
        return isinstance(value, int) and super(Integer, self).accepts(value)

    def restricted(self, clause: Clause) -> Self | None:
        """Narrow the parameter to the values that meet a clause; None if none does.

        Values that a clause excludes one by one leave the range as it is, unless they leave nothing of it.
        """
        if clause.relation == NOT_IN:
            named = sum(self.accepts(value) for value in clause.values)
            return self if self.high - self.low + 1 > named else None
        if clause.relation == IN:
            return super(Integer, self).restricted(clause)
        edge = self.order(clause.values[0])
        low = max(self.low, math.floor(edge) + 1) if clause.relation == ABOVE else self.low
        high = min(self.high, math.ceil(edge) - 1) if clause.relation == BELOW else self.high
        return replace(self, low=low, high=high) if low <= high else None

    def _scale(self) -> tuple[float, float]:
        return _number(self.low - 0.5, self.log), _number(self.high + 0.5, self.log)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several values; a constant is a choice of one.

    Attributes:
        name: The parameter's name.
        choices: The values.
        ordered: Whether their order means something, so that a clause may say ``above`` and ``below``.
        when: When the parameter is active.
    """

    name: str
    choices: tuple[Value, ...]
    ordered: bool = False
    when: Condition = ALWAYS

    def at(self, u: float) -> Value:
        """Return the value at a place from 0 to 1."""
        return self.choices[min(int(u * len(self.choices)), len(self.choices) - 1)]

    def place(self, value: Value) -> float:
        """Return the middle of the value's bin, from 0 to 1."""
        return (self.order(value) + 0.5) / len(self.choices)

    def accepts(self, value: Value) -> bool:
        """Return whether the parameter can have the value."""
        return among(value, self.choices)

    def order(self, value: Value) -> float:
        """Return what ``above`` and ``below`` compare: the position among the choices."""
        return next(at for at, choice in enumerate(self.choices) if same(choice, value))

    def restricted(self, clause: Clause) -> Self | None:
        """Return the parameter with the values that meet a clause; None where none does."""
        holds = holder(clause, self)
        left = tuple(choice for choice in self.choices if holds(choice))
        return replace(self, choices=left) if left else None


Parameter = Float | Integer | Choice


def holder(clause: Clause, parameter: Parameter) -> Callable[[Value], bool]:
    """Return the test of a clause as a function of the parameter's value."""
    if clause.relation == IN:
        return lambda value: among(value, clause.values)
    if clause.relation == NOT_IN:
        return lambda value: not among(value, clause.values)
    edge = parameter.order(clause.values[0])
    if clause.relation == ABOVE:
        return lambda value: parameter.order(value) > edge
    return lambda value: parameter.order(value) < edge


def _number(value: Value, log: bool) -> float:
    return math.log(float(value)) if log else float(value)


def _drawn(scale: tuple[float, float], u: float, log: bool) -> float:
    """Return the number at a place from 0 to 1 of a scale, which is of logarithms where ``log`` says so."""
    low, high = scale
    value = low + u * (high - low)
    return math.exp(value) if log else value


def _placed(scale: tuple[float, float], value: Value, log: bool) -> float:
    """Return the place of a number, the other way round."""
    low, high = scale
    return (_number(value, log) - low) / (high - low)
