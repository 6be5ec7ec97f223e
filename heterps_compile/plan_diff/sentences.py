"""A diff of two plans in sentences, one a change, for whatever shows it.

Names go through the escape function of the format, the sentences themselves hold no markup.

Left out: the formats, JSON among them (``formats.py``).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType

from heterps_compile.escape import Escape
from heterps_compile.units import format_money, format_percent, format_rate, format_seconds

from .compare_plans import LayerChange, PlacedLayer, PlanDiff, SettingChange, StageChange, StageEvent
from .decisions import Setting
from .numbers import NumberChange
from .pool_changes import told_together

NAMES_SHOWN = 12
_TITLED = 3  # of so many layers it is said what they are
_UNITS: Mapping[str, Callable[[float], str]] = MappingProxyType(
    {
        "min_throughput": format_rate,
        "budget_per_hour": lambda price: f"{format_money(price)} an hour",
        "time_limit_s": format_seconds,
    }
)
"""How the options that are amounts are told."""
HASHED = {
    "model": "the model's structure",
    "weights": "the weights",
    "cluster": "the pool",
    "profile": "the profile",
    "options": "the options",
}


@dataclass(frozen=True, slots=True)
class Sentence:
    """One change in words.

    Attributes:
        kind: ``"placement"``, ``"layers"``, ``"stages"``, ``"replicas"``, ``"rules"`` or ``"settings"``.
        text: The sentence, without a full stop.
        layer: Name in the new plan of the first layer it is about, as it is; "" for none.
    """

    kind: str
    text: str
    layer: str = ""


def sentences(changes: PlanDiff, escape: Escape) -> list[Sentence]:
    """Tell every change but the numbers, the most important first."""
    return [*_moves(changes, escape), *_layers(changes, escape), *_stages(changes, escape), *_settings(changes, escape)]


def _titled(changes: PlanDiff, escape: Escape) -> Escape:
    """Return what escapes a layer's name, and says what the layer is where the name is made up."""

    def titled(name: str) -> str:
        title = changes.titles.get(name, "")
        return f"{escape(name)} ({escape(title)})" if title else escape(name)

    return titled


def notes(changes: PlanDiff, escape: Escape) -> list[str]:
    """Tell what is no change of the plan, but good to know."""
    found = []
    if changes.renamed:
        count = len(changes.renamed)
        shown = [f"{escape(old)} → {escape(new)}" for old, new in list(changes.renamed.items())[:3]]
        more = f" and {count - 3:,} more" if count > 3 else ""
        found.append(f"{_count(count, 'layer')} renamed, which is no change of the plan: {', '.join(shown)}{more}")
    if changes.pool:
        found.append(f"the pool changed: {told_together(changes.pool, escape)}")
    if changes.hashes:
        names = ", ".join(HASHED.get(name, escape(name)) for name in changes.hashes)
        found.append(f"made from something else: the hash of {names} differs")
    return found


def change_of(number: NumberChange) -> str:
    """Tell how a number changed: ``"+5.3 %"``, or "" where it did not or cannot be compared."""
    if not number.has_changed or not isfinite(number.percent):
        return ""
    return f"{'+' if number.percent > 0 else ''}{format_percent(number.percent)}"


def as_sentence(text: str) -> str:
    """Return words as a sentence of their own."""
    return f"{text[:1].upper()}{text[1:]}."


def _moves(changes: PlanDiff, escape: Escape) -> Iterator[Sentence]:
    yield from _grouped(changes, changes.moved, escape, "placement", "moved from {} to {}")


def _grouped(
    plans: PlanDiff, changes: Sequence[LayerChange], escape: Escape, kind: str, said: str
) -> Iterator[Sentence]:
    """Tell of layers that went the same way in one sentence."""
    groups: dict[tuple[str, str], list[str]] = {}
    for change in changes:
        way = (change.old_device, change.new_device)
        if kind == "stages":
            way = (f"old stage {change.old_stage}", f"stage {change.new_stage} on {change.new_device}")
        groups.setdefault(way, []).append(change.layer)
    for (start, end), names in groups.items():
        yield Sentence(kind, f"{_named(plans, names, escape)} {said.format(escape(start), escape(end))}", names[0])


def _layers(changes: PlanDiff, escape: Escape) -> Iterator[Sentence]:
    def placed(layers: Sequence[PlacedLayer], said: str, *, is_new: bool) -> Iterator[Sentence]:
        groups: dict[str, list[str]] = {}
        for layer in layers:
            groups.setdefault(layer.device, []).append(layer.layer)
        for device, names in groups.items():
            verb = "is" if len(names) == 1 else "are"
            text = f"{_named(changes, names, escape)} {verb} {said} {escape(device)}"
            yield Sentence("layers", text, names[0] if is_new else "")

    yield from placed(changes.added, "new, on", is_new=True)
    yield from placed(changes.removed, "gone from", is_new=False)
    if changes.altered:
        text = f"{_named(changes, changes.altered, escape)} changed in ops or shapes"
        yield Sentence("layers", text, changes.altered[0])


def _stages(changes: PlanDiff, escape: Escape) -> Iterator[Sentence]:
    for event in changes.events:
        yield Sentence("stages", _event(event, escape))
    yield from _grouped(changes, changes.regrouped, escape, "stages", "went from {} to {}")
    for stage in changes.rebuilt:
        assert stage.old is not None  # noqa: S101 - a rebuilt stage has an origin; this tells the type checker
        if stage.old.devices != stage.new.devices:
            text = f"{_stage(stage)} is on {escape(stage.new.devices)}, was on {escape(stage.old.devices)}"
            yield Sentence("stages", text)
        elif stage.old.backend != stage.new.backend:
            text = f"{_stage(stage)} runs with {escape(stage.new.backend)}, ran with {escape(stage.old.backend)}"
            yield Sentence("stages", text)
        if stage.old.recompute != stage.new.recompute:
            how = ("keeps its activations", "computes its activations again in the backward")[stage.new.recompute]
            yield Sentence("stages", f"{_stage(stage)} {how}, which it did not")
    for stage in changes.replicas:
        assert stage.old is not None  # noqa: S101 - as above
        new, old = (" + ".join(map(str, each.counts)) for each in (stage.new, stage.old))
        text = f"{_stage(stage)} on {escape(stage.new.devices)} has {new} {'replica' if new == '1' else 'replicas'}"
        yield Sentence("replicas", f"{text}, had {old}")
    for stage in changes.rules:
        assert stage.old is not None  # noqa: S101 - as above
        yield Sentence(
            "rules", f"{_stage(stage)} agrees by {escape(stage.new.rule)}, agreed by {escape(stage.old.rule)}"
        )


def _stage(stage: StageChange) -> str:
    """Name a stage, and the number it had where that was another."""
    return f"stage {stage.index}" + ("" if stage.origin == stage.index else f" (old stage {stage.origin})")


def _event(event: StageEvent, escape: Escape) -> str:
    device = escape(event.device)
    if event.kind == "split":
        return f"old stage {event.old[0]} on {device} was split into stages {_listed(event.new)}"
    if event.kind == "merged":
        return f"old stages {_listed(event.old)} were merged into stage {event.new[0]} on {device}"
    if event.kind == "new":
        return f"stage {event.new[0]} on {device} is new"
    return f"old stage {event.old[0]} on {device} is gone"


def _settings(changes: PlanDiff, escape: Escape) -> Iterator[Sentence]:
    for change in changes.settings:
        yield Sentence("settings", told_setting(change, escape))


def told_setting(change: SettingChange, escape: Escape) -> str:
    """Tell what an option is, and what it was."""
    old, new = (_setting(change.name, value, escape) for value in (change.old, change.new))
    return f"{change.name.replace('_', ' ')} is {new}, was {old}"


def _setting(name: str, value: Setting, escape: Escape) -> str:
    """Tell the value of an option, a number with its unit."""
    if value in (None, ""):
        return "none"
    if name in _UNITS and isinstance(value, int | float):
        return _UNITS[name](float(value))
    return escape(str(value))


def _named(changes: PlanDiff, names: Sequence[str], escape: Escape) -> str:
    """Name layers; few of them with what they are where a name is made up."""
    titled = _titled(changes, escape)
    if len(names) == 1:
        return f"layer {titled(names[0])}"
    shown = ", ".join(map(titled if len(names) <= _TITLED else escape, names[:NAMES_SHOWN]))
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"{_count(len(names), 'layer')} ({shown}{more})"


def _listed(numbers: Sequence[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def words_of_new_layers(changes: PlanDiff) -> dict[str, str]:
    """Return the layers of the new plan that are different in the old one, by name."""
    return {
        **{change.layer: f"was in stage {change.old_stage}" for change in changes.regrouped},
        **dict.fromkeys(changes.altered, "another computation"),
        **{change.layer: f"was on {change.old_device}" for change in changes.moved},
        **{layer.layer: "new" for layer in changes.added},
    }


def words_of_old_layers(changes: PlanDiff) -> dict[str, str]:
    """Return the layers of the old plan that are different in the new one, by name."""
    return {
        **{change.old_name: f"went to stage {change.new_stage}" for change in changes.regrouped},
        **{change.old_name: f"moved to {change.new_device}" for change in changes.moved},
        **{layer.layer: "gone" for layer in changes.removed},
    }
