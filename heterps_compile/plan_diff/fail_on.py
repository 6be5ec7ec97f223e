"""What counts as a failure in a diff: ``--fail-on placement,stages,replicas,price>5%,throughput<-2%``.

A word names a kind of change and counts whenever there is one; a number's name may have a limit on its change in
percent of the old number: above one, or below one.

Left out: the exit code (``cli/diff.py``).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from types import MappingProxyType

from heterps_compile.errors import InputError, UnknownNameError

from .compare_plans import PlanDiff
from .numbers import NUMBERS

KINDS: Mapping[str, Callable[[PlanDiff], int]] = MappingProxyType(
    {
        "placement": lambda changes: len(changes.moved),
        "stages": lambda changes: len(changes.events) + len(changes.regrouped),
        "replicas": lambda changes: len(changes.replicas),
        "rules": lambda changes: len(changes.rules),
        "layers": lambda changes: len(changes.added) + len(changes.removed) + len(changes.altered),
        "settings": lambda changes: len(changes.settings),
    }
)
"""Kinds of changes by name, each with how many a diff has."""

NOTHING = "nothing"
"""The word for what never counts: changes are told alone."""

_LIMIT = re.compile(r"([a-z]+)\s*([<>])\s*([-+]?(?:\d+\.?\d*|\.\d+))\s*%")


@dataclass(frozen=True, slots=True)
class Criterion:
    """One thing that counts.

    Attributes:
        text: As it was written.
        name: A key of :data:`KINDS`, or one of ``numbers.NUMBERS``.
        sign: ``">"`` or ``"<"`` for a limit; "" where any change counts.
        percent: The limit.
    """

    text: str
    name: str
    sign: str = ""
    percent: float = 0.0

    def is_met(self, changes: PlanDiff) -> bool:
        """Whether the diff has such a change; prices in different currencies count as changed beyond any limit."""
        if self.name in KINDS:
            return KINDS[self.name](changes) > 0
        (number,) = (number for number in changes.numbers if number.name == self.name)
        if not self.sign or isnan(number.percent):
            return number.has_changed
        return number.percent > self.percent if self.sign == ">" else number.percent < self.percent


def parse_criteria(text: str) -> tuple[Criterion, ...]:
    """Read criteria from a list with commas; the word ``nothing`` alone is none of them.

    Raises:
        InputError: where a part is none.
        UnknownNameError: where it names nothing that changes.
    """
    return () if text.strip() == NOTHING else tuple(_parse(part.strip()) for part in text.split(","))


def _parse(text: str) -> Criterion:
    match = _LIMIT.fullmatch(text)
    name, sign, percent = (match[1], match[2], float(match[3])) if match else (text, "", 0.0)
    if not match and not re.fullmatch("[a-z]+", name):
        raise InputError(f"{text!r} is nothing to fail on; give a word such as placement, or a limit such as price>5%")
    if name not in (*KINDS, *NUMBERS):
        raise UnknownNameError("change to fail on", name, (*KINDS, *NUMBERS))
    if match and name in KINDS:
        raise InputError(
            f"{text!r}: {name} has no number to compare; give the word alone, or limit {', '.join(NUMBERS)}"
        )
    return Criterion(text, name, sign, percent)


def met(criteria: Sequence[Criterion], changes: PlanDiff) -> list[str]:
    """Return the criteria that a diff meets, as they were written."""
    return [criterion.text for criterion in criteria if criterion.is_met(changes)]
