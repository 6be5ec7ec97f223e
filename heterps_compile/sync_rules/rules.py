"""The rules by name.

A third party adds one as an entry point of the group ``heterps_compile.sync_rules``: its name, and a subclass of
:class:`~.rule.SyncRule` of that name, a frozen dataclass. The names here cannot be taken. What runs it is found in the
same way (``runtime/sync/``).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any

from heterps_compile.errors import HeterpsError, PlugInError, UnknownNameError
from heterps_compile.escape import one_line
from heterps_compile.plug_ins import load_plug_in, shown

from .adasum import Adasum
from .adsaga import Adsaga
from .all_reduce_rule import AllReduce
from .local_steps import LocalSteps
from .powersgd import PowerSGD
from .rule import SyncRule
from .shadow import Shadow
from .through_servers import Servers
from .topk import TopK

ENTRY_POINT_GROUP = "heterps_compile.sync_rules"

RULES: Mapping[str, type[SyncRule]] = MappingProxyType(
    {rule.name: rule for rule in (AllReduce, TopK, Adasum, Shadow, Servers, LocalSteps, PowerSGD, Adsaga)}
)
"""Ours, the default first."""

ALIASES: Mapping[str, str] = MappingProxyType({"parameter-server": Servers.name})
"""Names that earlier versions had."""

USUAL = AllReduce()
"""The rule of a stage for which none is asked."""


COMPARED: tuple[SyncRule, ...] = (USUAL, TopK(0.01), LocalSteps(4), Adasum(), Shadow(5), Servers())
"""Rules with options that are usual: what ``sync`` compares, and what the planner chooses from with ``auto``, but for
those that need servers."""

COMPARED_BESIDES: tuple[SyncRule, ...] = (PowerSGD(),)
"""What ``sync`` compares besides, and ``auto`` does not choose: its arithmetic is not counted."""

_FROM_PACKAGES = (
    f"other rules come with packages, by the entry points {ENTRY_POINT_GROUP!r}, and none that is installed has this "
    f"one"
)


def find_rule(name: str) -> type[SyncRule]:
    """Return the type of the rule of a name.

    Raises:
        UnknownNameError: with the known names, those of third parties included, and the nearest.
        PlugInError: where a third party's does not load, or is no rule of that name.
    """
    name = ALIASES.get(name, name)
    if name in RULES:
        return RULES[name]
    others = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in others:
        raise UnknownNameError("synchronisation rule", name, [*RULES, *sorted(others)], others=_FROM_PACKAGES)
    return _checked(others[name])


@contextmanager
def faults_of(rule: type[SyncRule]) -> Iterator[None]:
    """Tell what fails in a third party's rule as theirs; in ours it is a bug.

    Raises:
        PlugInError: naming the rule.
    """
    try:
        yield
    except HeterpsError:
        raise
    except Exception as error:
        if rule in RULES.values():
            raise
        raise PlugInError(
            f"the synchronisation rule {rule.name!r} fails: {one_line(f'{type(error).__name__}: {error}')}; mend it, "
            f"or take another"
        ) from error


def _checked(entry: EntryPoint) -> type[SyncRule]:
    found: Any = load_plug_in(entry)
    if not (isinstance(found, type) and issubclass(found, SyncRule) and is_dataclass(found)):
        raise PlugInError(f"{shown(entry)} is no frozen dataclass that inherits SyncRule; mend or uninstall it")
    if getattr(found, "name", None) != entry.name:
        raise PlugInError(
            f"{shown(entry)} gives the rule {getattr(found, 'name', None)!r}; both must have one name; mend or "
            f"uninstall it"
        )
    return found
