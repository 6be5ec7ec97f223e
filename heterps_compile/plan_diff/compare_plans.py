"""What changed from one plan to another: a patch of its decisions, and its estimates side by side.

Layers are paired whatever they are called (``match_layers.py``), stages by the layers they share::

    old   0 v100: a b c d          1 cpu: e f
    new   0 v100: a b     1 cpu: c     2 v100: d     3 cpu: e f

    moved   c, from v100 to cpu              the only layer whose device type changed
    split   old stage 0 into 0 and 2         d has another stage, and the split says why
    new     stage 1

A stage continues the one on the same device type that it shares the most layers with; the others are new, or pieces
of a split; old stages that nothing continues are gone, or were merged into another.

Left out: how a diff looks (``sentences.py``, ``formats.py``), what counts as a failure (``fail_on.py``), values that
cross.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike, fspath
from types import MappingProxyType

from heterps_compile.errors import StalePlanError
from heterps_compile.plan.match_layers import match_layers
from heterps_compile.plan.plan import Plan

from .decisions import Decisions, Setting, StageDecisions, decisions, settings
from .numbers import NumberChange, compare_numbers
from .pool_changes import PoolChange, compare_pools


@dataclass(frozen=True, slots=True)
class PlacedLayer:
    """A layer that one of the plans lacks, where the other has it."""

    layer: str
    device: str
    stage: int


@dataclass(frozen=True, slots=True)
class LayerChange:
    """A layer of both plans that has another device type or another stage.

    Attributes:
        layer: Its name in the new plan.
        old_name: In the old one.
        old_device, new_device: Names of its device types.
        old_stage, new_stage: Indices of its stages in their plans.
    """

    layer: str
    old_name: str
    old_device: str
    new_device: str
    old_stage: int
    new_stage: int


@dataclass(frozen=True, slots=True)
class StageChange:
    """A stage of the new plan, and the one it continues.

    Attributes:
        index: Of the stage in the new plan.
        origin: Index of the stage it continues in the old plan; None for a new
            one.
        old: What that was; None for a new one.
        new: What it is now, layers left out.
    """

    index: int
    origin: int | None
    old: StageDecisions | None
    new: StageDecisions


@dataclass(frozen=True, slots=True)
class StageEvent:
    """Stages that came, went, were divided or made one.

    Attributes:
        kind: ``"split"``, ``"merged"``, ``"new"`` or ``"gone"``.
        old: Indices in the old plan; one for a split, none for a new stage.
        new: Indices in the new plan; one where stages merged, none for a stage
            that is gone.
        device: Of the one stage.
    """

    kind: str
    old: tuple[int, ...]
    new: tuple[int, ...]
    device: str


@dataclass(frozen=True, slots=True)
class SettingChange:
    """An option of the whole plan that changed."""

    name: str
    old: Setting
    new: Setting


@dataclass(frozen=True)
class PlanDiff:
    """What changed; a patch that :func:`apply` turns the old decisions into the new ones with.

    Attributes:
        matched: Name in the new plan of every layer that both have, by its
            name in the old one.
        removed, added: Layers of one plan alone.
        altered: Names in the new plan of layers that are another computation
            under an old name.
        moved: Layers on another device type.
        restaged: Layers whose stage is none that continues their old one.
        stages: Every stage of the new plan.
        events: What became of stages.
        settings: Options that changed.
        numbers: Throughput, prices, times and memory of both plans.
        pool: What their pools say otherwise; nothing where a plan of an older
            version does not tell.
        hashes: Names of the hashes that differ.
        titles: What layers of either plan are whose names are made up, by
            name.
    """

    matched: Mapping[str, str]
    removed: tuple[PlacedLayer, ...]
    added: tuple[PlacedLayer, ...]
    altered: tuple[str, ...]
    moved: tuple[LayerChange, ...]
    restaged: tuple[LayerChange, ...]
    stages: tuple[StageChange, ...]
    events: tuple[StageEvent, ...]
    settings: tuple[SettingChange, ...]
    numbers: tuple[NumberChange, ...]
    pool: tuple[PoolChange, ...]
    hashes: tuple[str, ...]
    titles: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @cached_property
    def renamed(self) -> Mapping[str, str]:
        """Return the layers with another name, new name by old; a name alone is no change."""
        return {old: new for old, new in self.matched.items() if old != new}

    @cached_property
    def regrouped(self) -> tuple[LayerChange, ...]:
        """Return the layers that went to another stage of their device type, and that no split or merger explains."""
        explained = {
            (old, new)
            for event in self.events
            for old in event.old
            for new in event.new
            if event.kind in ("split", "merged")
        }
        moved = {change.layer for change in self.moved}
        return tuple(
            change
            for change in self.restaged
            if change.layer not in moved and (change.old_stage, change.new_stage) not in explained
        )

    @cached_property
    def replicas(self) -> tuple[StageChange, ...]:
        """Return the stages that continue an old one with another number of replicas."""
        return tuple(s for s in self.stages if s.old is not None and s.old.counts != s.new.counts)

    @cached_property
    def rebuilt(self) -> tuple[StageChange, ...]:
        """Return the stages that continue an old one on another device type, with another backend or recomputation."""

        def built(stage: StageDecisions) -> tuple[str, str, bool]:
            return stage.devices, stage.backend, stage.recompute

        return tuple(s for s in self.stages if s.old is not None and built(s.old) != built(s.new))

    @cached_property
    def rules(self) -> tuple[StageChange, ...]:
        """Return the stages that continue an old one and whose replicas agree by another rule."""
        return tuple(s for s in self.stages if s.old is not None and s.old.rule != s.new.rule)

    @property
    def is_empty(self) -> bool:
        """Whether nothing changed but names; hashes alone are no change of the plan."""
        changes: Iterable[object] = (
            self.removed,
            self.added,
            self.altered,
            self.moved,
            self.restaged,
            self.events,
            self.replicas,
            self.rebuilt,
            self.rules,
            self.settings,
            any(number.has_changed for number in self.numbers),
        )
        return not any(changes)


def diff(old: Plan | str | PathLike[str], new: Plan | str | PathLike[str]) -> PlanDiff:
    """Compare two plans.

    Args:
        old: A plan, or where one is: a ``plan.json``, a compiled folder, or
            ``git:REV:PATH``.
        new: The same.

    Raises:
        InputError: where there is no plan to read.
        PlanError: where a plan is wrong, naming the JSON path.
    """
    before, after = _read(old), _read(new)
    matched = match_layers(_fingerprints(before), _fingerprints(after))
    old_home, new_home = _homes(before), _homes(after)
    shared = Counter((old_home[a], new_home[b]) for a, b in matched.items())
    origins = _origins(before, after, shared)
    continued = {origin: index for index, origin in origins.items()}
    changes = [
        LayerChange(
            b,
            a,
            before.stages[old_home[a]].device,
            after.stages[new_home[b]].device,
            old_home[a],
            new_home[b],
        )
        for a, b in matched.items()
    ]
    then, now = decisions(before), decisions(after)
    return PlanDiff(
        matched=matched,
        removed=_placed(before, old_home, matched),
        added=_placed(after, new_home, set(matched.values())),
        altered=_altered(before, after, matched),
        moved=tuple(change for change in changes if change.old_device != change.new_device),
        restaged=tuple(change for change in changes if continued.get(change.old_stage) != change.new_stage),
        stages=tuple(
            StageChange(index, origin, None if origin is None else _bare(then.stages[origin]), _bare(now.stages[index]))
            for index in range(len(after.stages))
            for origin in [origins.get(index)]
        ),
        events=tuple(_events(before, after, shared, origins)),
        settings=tuple(
            SettingChange(name, then.settings[name], value)
            for name, value in now.settings.items()
            if then.settings[name] != value
        ),
        numbers=compare_numbers(before, after),
        pool=() if before.pool is None or after.pool is None else compare_pools(before.pool, after.pool),
        hashes=tuple(n for n in sorted({*before.hashes, *after.hashes}) if before.hashes.get(n) != after.hashes.get(n)),
        titles={**before.titles, **after.titles},
    )


def apply(changes: PlanDiff, plan: Plan) -> Decisions:
    """Return the decisions of the new plan, from the old plan and what changed.

    Raises:
        StalePlanError: where the plan is not the one the diff begins with.
    """
    homes = _homes(plan)
    if homes.keys() != {*changes.matched, *(gone.layer for gone in changes.removed)} or any(
        stage.origin is not None and stage.origin >= len(plan.stages) for stage in changes.stages
    ):
        raise StalePlanError("the diff begins with another plan: its layers are not those of this one; diff again")
    layers: list[set[str]] = [set() for _ in changes.stages]
    continued = {stage.origin: stage.index for stage in changes.stages}
    elsewhere = {change.old_name: change.new_stage for change in changes.restaged}
    for old, new in changes.matched.items():
        layers[elsewhere[old] if old in elsewhere else continued[homes[old]]].add(new)
    for added in changes.added:
        layers[added.stage].add(added.layer)
    stages = tuple(replace(s.new, layers=frozenset(layers[s.index])) for s in changes.stages)
    return Decisions(stages, settings(plan) | {change.name: change.new for change in changes.settings})


def _read(plan: Plan | str | PathLike[str]) -> Plan:
    if isinstance(plan, Plan):
        return plan
    from heterps_compile.plan.source import read_plan  # noqa: PLC0415 - pydantic only where a file is read

    return read_plan(fspath(plan))


def _fingerprints(plan: Plan) -> dict[str, str]:
    return {name: plan.fingerprints.get(name, "") for stage in plan.stages for name in stage.layers}


def _homes(plan: Plan) -> dict[str, int]:
    return {name: stage.index for stage in plan.stages for name in stage.layers}


def _placed(plan: Plan, homes: Mapping[str, int], matched: Mapping[str, str] | set[str]) -> tuple[PlacedLayer, ...]:
    return tuple(
        PlacedLayer(name, plan.stages[stage].device, stage) for name, stage in homes.items() if name not in matched
    )


def _altered(old: Plan, new: Plan, matched: Mapping[str, str]) -> tuple[str, ...]:
    """Return the layers whose own ops or shapes changed; none at another batch, where all shapes do."""
    if (old.batch, dict(old.bindings)) != (new.batch, dict(new.bindings)):
        return ()
    pairs = ((b, old.fingerprints.get(a, ""), new.fingerprints.get(b, "")) for a, b in matched.items())
    return tuple(name for name, was, now in pairs if was and now and _is_altered(was.split("-"), now.split("-")))


def _is_altered(was: Sequence[str], now: Sequence[str]) -> bool:
    """Whether a layer is another computation; not where only cheap nodes went from one layer to another."""
    return was[0] != now[0] and was[1:] != now[1:]


def _bare(stage: StageDecisions) -> StageDecisions:
    return replace(stage, layers=frozenset())


def _origins(old: Plan, new: Plan, shared: Counter[tuple[int, int]]) -> dict[int, int]:
    """Return the old stage that each new one continues: of the same device type first, then of the most layers."""

    def rank(pair: tuple[int, int]) -> tuple[bool, int, tuple[int, int]]:
        return old.stages[pair[0]].device != new.stages[pair[1]].device, -shared[pair], pair

    found: dict[int, int] = {}
    taken: set[int] = set()
    for origin, index in sorted(shared, key=rank):
        if index not in found and origin not in taken:
            found[index] = origin
            taken.add(origin)
    return found


def _events(old: Plan, new: Plan, shared: Counter[tuple[int, int]], origins: Mapping[int, int]) -> Iterable[StageEvent]:
    continued = {origin: index for index, origin in origins.items()}
    pieces: dict[int, list[int]] = {}
    sources: dict[int, list[int]] = {}
    fresh, gone = [], []
    for stage in new.stages:
        parents = [pair for pair in shared if pair[1] == stage.index]
        parent = max(parents, key=lambda pair: (shared[pair], -pair[0]), default=None)
        if stage.index in origins:
            continue
        if parent is not None and old.stages[parent[0]].device == stage.device:
            pieces.setdefault(parent[0], []).append(stage.index)
        else:
            fresh.append(StageEvent("new", (), (stage.index,), stage.device))
    for was in old.stages:
        if was.index in continued:
            continue
        heirs = [pair for pair in shared if pair[0] == was.index]
        heir = max(heirs, key=lambda pair: (shared[pair], -pair[1]), default=None)
        if heir is not None and new.stages[heir[1]].device == was.device:
            sources.setdefault(heir[1], []).append(was.index)
        else:
            gone.append(StageEvent("gone", (was.index,), (), was.device))
    for index, parts in sorted(pieces.items()):
        kept = [continued[index]] if index in continued else []
        yield StageEvent("split", (index,), tuple(sorted([*kept, *parts])), old.stages[index].device)
    for index, parts in sorted(sources.items()):
        kept = [origins[index]] if index in origins else []
        yield StageEvent("merged", tuple(sorted([*kept, *parts])), (index,), new.stages[index].device)
    yield from fresh
    yield from gone
