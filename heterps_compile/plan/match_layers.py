"""Which layer of one plan is which of another, although names and numbers may have changed.

Layers are paired in rounds, from the surest sign to the least; in every round layers that share the sign are paired by
equal names first, then in the order they stand in::

    1. the whole fingerprint            nothing changed but perhaps the name
    2. before and after                 cheap nodes went to another layer
    3. own and before, own and after    something changed below the layer, or above it
    4. before, after                    that, and cheap nodes went to another layer
    5. own                              something changed on both sides
    6. the name alone                   the layer itself changed, or no fingerprints are known

A name is the last sign, not the first: a front end that numbers unnamed nodes gives ``Conv_4`` to what was ``Conv_3``
as soon as a layer is put in before them.

Left out: layers that were divided in two or made one of two (one of them is paired, the other is new or gone).
"""

from collections.abc import Mapping, Sequence

from .planned_stage import PlannedStage

_OWN, _BEFORE, _AFTER = range(3)
_ROUNDS = (
    (_OWN, _BEFORE, _AFTER),
    (_BEFORE, _AFTER),
    (_OWN, _BEFORE),
    (_OWN, _AFTER),
    (_BEFORE,),
    (_AFTER,),
    (_OWN,),
)


def match_layers(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """Pair layers, each at most once; O(layers).

    Args:
        old: Fingerprint ("" for unknown) by name, in the order of the plan.
        new: The same of the other plan.

    Returns:
        Name in the new plan by name in the old one, in the order of the old plan.
    """
    pairs: dict[str, str] = {}
    left, right = dict.fromkeys(old), dict.fromkeys(new)
    for places in _ROUNDS:
        alike = _grouped(right, new, places)
        for sign, names in _grouped(left, old, places).items():
            pairs |= _pair(names, alike.get(sign, []))
        left, right = _unpaired(left, pairs), _unpaired(right, set(pairs.values()))
    pairs |= {name: name for name in left if name in right}
    return {name: pairs[name] for name in old if name in pairs}


def with_names_of_today(stages: Sequence[PlannedStage], matched: Mapping[str, str]) -> tuple[PlannedStage, ...]:
    """Return the stages of an old plan with the names that their layers have today; layers without one are left out."""
    return tuple(
        PlannedStage(
            stage.index,
            stage.device,
            tuple(matched[name] for name in stage.layers if name in matched),
            replicas=stage.replicas,
        )
        for stage in stages
    )


def _grouped(
    names: Mapping[str, None], fingerprints: Mapping[str, str], places: tuple[int, ...]
) -> dict[tuple[str, ...], list[str]]:
    """Group names by some parts of their fingerprints; what has none is in no group."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        if fingerprints[name]:
            parts = fingerprints[name].split("-")
            groups.setdefault(tuple(parts[place] for place in places), []).append(name)
    return groups


def _pair(old: list[str], new: list[str]) -> dict[str, str]:
    """Pair equal names first, then what is left in order."""
    pairs = {name: name for name in set(old) & set(new)}
    rest = zip((name for name in old if name not in pairs), (name for name in new if name not in pairs), strict=False)
    return pairs | dict(rest)


def _unpaired(names: Mapping[str, None], paired: Mapping[str, str] | set[str]) -> dict[str, None]:
    return {name: None for name in names if name not in paired}
