"""Which stage has which rule, as text: ``embedding=servers(staleness=4), *=topk(density=0.01)``.

Entries are ``PATTERN=RULE`` with commas between, and the first that matches a stage is its rule; what none matches has
``all-reduce``. A rule alone is ``*=RULE``. A pattern is one of::

    *                   every stage
    stage 2             the stage of that number, of a plan that there is; planning refuses it
    embedding           stages with a layer of that kind, or with the layer of that name
    data-intensive      stages with such a layer; or compute-intensive
    block*              stages with a layer whose name matches the shell pattern
    "a name, with =("   a pattern with signs that mean something here, as a JSON string

A stage has one rule for all it holds, also where just one of its layers matches.

``auto``, or ``auto(RULE, RULE)`` with the rules to choose from, leaves the rules to the planner.

Left out: what rules cost (``rule.py``), and which of them the planner chooses (``passes/choose_rules.py``).
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.escape import short

from .rule import SyncRule
from .rule_text import RULE, parse_options, rule_text
from .rules import USUAL, faults_of, find_rule

AUTO = "auto"
"""Leaves the rules to the planner."""
EVERY = "*"
EXAMPLE = "embedding=servers(staleness=4), *=topk(density=0.01)"

_PATTERN = re.compile(r'\s*(?:"((?:[^"\\]|\\.){0,1000})"|([^,()="]{1,1000}?))\s*=', re.DOTALL)
_PLAIN = re.compile(r'[^\s,()="](?:[^,()="]*[^\s,()="])?')
_CHOICE = re.compile(rf"\s*{AUTO}\s*(?:\((.*)\)\s*)?", re.DOTALL)
_STAGE = re.compile(r"stage\s+(\d{1,9})", re.ASCII)
_LONGEST = 100_000
_MOST_ENTRIES = 1000


@dataclass(frozen=True, slots=True)
class LayerWords:
    """What a pattern may call a layer.

    Attributes:
        name: Its own.
        kind: Its kind.
        intensity: ``data`` or ``compute``; "" where it is not known.
    """

    name: str
    kind: str
    intensity: str = ""


@dataclass(frozen=True, slots=True)
class RuleEntry:
    """One entry: the rule of the stages that a pattern matches."""

    pattern: str
    rule: SyncRule

    @property
    def names_stage(self) -> bool:
        """Return whether it is for a stage by number."""
        return _STAGE.fullmatch(self.pattern) is not None

    def __str__(self) -> str:
        """Return the entry as text."""
        if self.pattern == EVERY:
            return f"{EVERY}={rule_text(self.rule)}"
        is_plain = _PLAIN.fullmatch(self.pattern) is not None
        return f"{self.pattern if is_plain else json.dumps(self.pattern)}={rule_text(self.rule)}"


@dataclass(frozen=True, slots=True)
class Assignment:
    """Which stages have which rule; the first entry that matches counts."""

    entries: tuple[RuleEntry, ...] = ()

    def __str__(self) -> str:
        """Return it as text that :func:`parse_assignment` reads: a rule alone where it is that of all stages."""
        if not self.entries:
            return rule_text(USUAL)
        if len(self.entries) == 1 and self.entries[0].pattern == EVERY:
            return rule_text(self.entries[0].rule)
        return ", ".join(map(str, self.entries))

    @property
    def rules(self) -> tuple[SyncRule, ...]:
        """Return all rules that a stage may get by it, each once."""
        is_total = any(entry.pattern == EVERY for entry in self.entries)
        return tuple(dict.fromkeys([*(entry.rule for entry in self.entries), *(() if is_total else (USUAL,))]))

    @property
    def is_usual(self) -> bool:
        """Return whether every stage has the default."""
        return self.rules == (USUAL,)

    @property
    def uses_servers(self) -> bool:
        """Return whether some stage may agree through servers."""
        return any(rule.uses_servers for rule in self.rules)

    def of_stages(self, stages: Sequence[Sequence[LayerWords]], *, is_strict: bool = True) -> tuple[SyncRule, ...]:
        """Return the rule of every stage.

        Args:
            stages: The layers of each.
            is_strict: Refuse a pattern that matches no stage.

        Raises:
            UnknownNameError: for a pattern that matches no stage, with the nearest name.
        """
        found: list[SyncRule] = [USUAL for _ in stages]
        for entry in reversed(self.entries):
            matching = _matching(entry.pattern, stages)
            if is_strict and not matching:
                raise _unmatched(entry.pattern, stages)
            for index in matching:
                found[index] = entry.rule
        return tuple(found)

    def first_entries(self, layers: Sequence[LayerWords]) -> tuple[int, ...]:
        """Return for every layer the first entry that names it; the number of entries where none does.

        A stage has the rule of the first of its layers' entries, unless one for its number comes before that; entries
        for stages by number name no layer.
        """
        found, alone = [len(self.entries)] * len(layers), [[layer] for layer in layers]
        for place, entry in reversed(tuple(enumerate(self.entries))):
            for index in () if entry.names_stage else _matching(entry.pattern, alone):
                found[index] = place
        return tuple(found)

    def refuse_unknown(self, layers: Sequence[LayerWords]) -> None:
        """Refuse patterns that match no layer, whatever the stages will be; stages by number are looked at later.

        Raises:
            UnknownNameError: with the nearest name.
        """
        alone = [[layer] for layer in layers]
        for entry in self.entries:
            if not entry.names_stage and not _matching(entry.pattern, alone):
                raise _unmatched(entry.pattern, alone)


def _matching(pattern: str, stages: Sequence[Sequence[LayerWords]]) -> list[int]:
    if pattern == EVERY:
        return list(range(len(stages)))
    for matches in _FORMS:
        found = [i for i, layers in enumerate(stages) if any(matches(pattern, i, layer) for layer in layers)]
        if found:
            return found
    return []


def _unmatched(pattern: str, stages: Sequence[Sequence[LayerWords]]) -> UnknownNameError:
    layers = [layer for stage in stages for layer in stage]
    known = [
        EVERY,
        *(f"stage {index}" for index in range(len(stages))),
        *(layer.kind for layer in layers),
        *(f"{layer.intensity}-intensive" for layer in layers if layer.intensity),
        *(layer.name for layer in layers),
    ]
    return UnknownNameError("stage, layer or kind of layer in the synchronisation rules", pattern, known)


def _is_stage(pattern: str, index: int, _layer: LayerWords) -> bool:
    match = _STAGE.fullmatch(pattern)
    return match is not None and int(match[1]) == index


def _is_called(pattern: str, _index: int, layer: LayerWords) -> bool:
    return pattern in (layer.name, layer.kind)


def _is_as_intensive(pattern: str, _index: int, layer: LayerWords) -> bool:
    return pattern == f"{layer.intensity}-intensive"


def _is_like(pattern: str, _index: int, layer: LayerWords) -> bool:
    return fnmatchcase(layer.name, pattern)


_FORMS = (_is_stage, _is_called, _is_as_intensive, _is_like)
"""The forms of a pattern in the order in which they are tried."""


def parse_rule(text: str) -> SyncRule:
    """Return the rule of a text.

    Raises:
        InputError: where it is none.
        UnknownNameError: for an unknown rule or option, with the nearest.
        PlugInError: where a third party's does not load.
    """
    match = RULE.fullmatch(text)
    if match is None:
        raise InputError(f"{short(text)} is no synchronisation rule; write one such as topk(density=0.01)")
    return _rule_of(match)


def parse_assignment(text: str) -> Assignment:
    """Return the rules of a text.

    Raises:
        InputError: where it is no list of rules.
        UnknownNameError: for an unknown rule or option, with the nearest.
        PlugInError: where a third party's does not load.
    """
    if len(text) > _LONGEST:
        raise InputError(f"the synchronisation rules have {len(text):,} characters; give {_LONGEST:,} or fewer")
    entries, place = [], 0
    while True:
        pattern = _PATTERN.match(text, place)
        place = pattern.end() if pattern else place
        rule = RULE.match(text, place)
        if rule is None or (rule.end() < len(text) and text[rule.end()] != ","):
            left = text[place if rule is None else rule.end() :].strip()
            raise InputError(
                f"the synchronisation rules have {short(left) if left else 'an end'} where "
                f"{'a rule' if rule is None else 'a comma'} is expected; write them like {EXAMPLE}"
            )
        entries.append(RuleEntry(_pattern_of(pattern), _rule_of(rule)))
        if len(entries) > _MOST_ENTRIES:
            raise InputError(f"more than {_MOST_ENTRIES} synchronisation rules are given; give fewer")
        place = rule.end() + 1
        if rule.end() == len(text):
            return Assignment(tuple(entries))


def parse_choice(text: str) -> tuple[SyncRule, ...] | None:
    """Return the rules that ``auto(RULE, ...)`` names to choose from, none for ``auto`` alone; None for other text.

    Raises:
        InputError: where what is in the parentheses is no list of rules.
        UnknownNameError: for an unknown rule or option, with the nearest.
        PlugInError: where a third party's does not load.
    """
    match = _CHOICE.fullmatch(text)
    if match is None:
        return None
    if match[1] is None:
        return ()
    entries = parse_assignment(match[1]).entries
    for entry in entries:
        if entry.pattern != EVERY:
            raise InputError(
                f"{short(str(entry))} is in the parentheses of {AUTO}, which chooses for all stages; name rules alone, "
                f"such as {AUTO}(topk(density=0.02), local(steps=8))"
            )
    return tuple(dict.fromkeys(entry.rule for entry in entries))


def choice_text(rules: Sequence[SyncRule]) -> str:
    """Return the text that :func:`parse_choice` reads."""
    return f"{AUTO}({', '.join(map(rule_text, rules))})" if rules else AUTO


def _rule_of(match: "re.Match[str]") -> SyncRule:
    kind = find_rule(match[1])
    with faults_of(kind):
        return parse_options(kind, match[2])


def _pattern_of(match: "re.Match[str] | None") -> str:
    if match is None:
        return EVERY
    if match[1] is None:
        pattern = match[2].strip()
    else:
        try:
            pattern = json.loads(f'"{match[1]}"')
        except ValueError as error:
            raise InputError(
                f'{short(match[1])} is no text in quotes; escape it as JSON does, such as "a\\"b"'
            ) from error
    if not pattern:
        raise InputError(f"a synchronisation rule has no pattern before its '='; write them like {EXAMPLE}")
    return str(pattern)
