"""Find what runs a rule, and what it can be combined with: ours by name, third parties' through entry points.

A rule's module is imported only when the rule runs: the process that starts a run checks rules without PyTorch.

A third party's rule is two entry points of one name: one of ``heterps_compile.sync_rules``, which says what it costs,
and one of ``heterps_compile.sync_runtimes``: a class that inherits :class:`~.contract.Rule`.

Left out: rules as data (``sync_rules/rules.py``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from heterps_compile.errors import PlugInError, RunError
from heterps_compile.plug_ins import load_plug_in, shown
from heterps_compile.sync_rules.adasum import Adasum
from heterps_compile.sync_rules.rule import SyncRule

from . import capabilities
from .capabilities import Capabilities

if TYPE_CHECKING:
    from .contract import Rule, Shared

GROUP = "heterps_compile.sync_runtimes"


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """What runs a rule of this package.

    Attributes:
        home: Module in this folder, and class.
        can: What it can be combined with, as the class says too.
    """

    home: str
    can: Capabilities


RULES: Mapping[str, BuiltIn] = MappingProxyType(
    {
        "all-reduce": BuiltIn("all_reduce:AllReduce", capabilities.ALL_REDUCE),
        "topk": BuiltIn("top_k:TopK", capabilities.TOPK),
        "adasum": BuiltIn("adasum:Adasum", capabilities.ADASUM),
        "shadow": BuiltIn("shadow:Shadow", capabilities.SHADOW),
        "local": BuiltIn("local_steps:LocalSteps", capabilities.LOCAL),
        "powersgd": BuiltIn("power_sgd:PowerSGD", capabilities.POWERSGD),
        "adsaga": BuiltIn("adsaga:Adsaga", capabilities.ADSAGA),
        "servers": BuiltIn("all_reduce:AllReduce", capabilities.ALL_REDUCE),
    }
)
"""Ours by name; of a stage whose tables are on servers, the parameters that it stores itself are summed."""

_ADASUM_OF_STEPS = BuiltIn("adasum:AdasumOfSteps", capabilities.ADASUM_OF_STEPS)


def _built_in(rule: SyncRule) -> BuiltIn | None:
    return _ADASUM_OF_STEPS if isinstance(rule, Adasum) and rule.on == "step" else RULES.get(rule.name)


def find_runtime(rule: SyncRule) -> "type[Rule]":
    """Import the class that runs a rule.

    Raises:
        RunError: if there is none.
        PlugInError: if a third party's does not load, or is no rule.
    """
    from .contract import Rule  # noqa: PLC0415 - PyTorch, see the module

    ours = _built_in(rule)
    if ours is not None:
        module, _, name = ours.home.partition(":")
        own: type[Rule] = getattr(import_module(f"{__package__}.{module}"), name)
        return own
    entry = next((entry for entry in entry_points(group=GROUP) if entry.name == rule.name), None)
    if entry is None:
        raise RunError(
            f"nothing here runs the synchronisation rule {rule.name!r}: it needs an entry point of the group {GROUP!r} "
            f"with that name; take one of {', '.join(RULES)} (--sync)"
        )
    found: Any = load_plug_in(entry)
    if not (isinstance(found, type) and issubclass(found, Rule)):
        raise PlugInError(f"{shown(entry)} is no class that inherits Rule of {Rule.__module__}; mend or uninstall it")
    return found


def make_rule(asked: SyncRule, shared: "Shared") -> "Rule":
    """Make what runs a rule on some parameters.

    Raises:
        RunError: if nothing runs it.
        PlugInError: if a third party's does not load.
    """
    return find_runtime(asked)(shared, asked)


def capabilities_of(rule: SyncRule) -> Capabilities:
    """Look up what a rule can be combined with; a third party's class is loaded for it.

    Raises:
        RunError: if nothing runs it.
        PlugInError: if a third party's does not load.
    """
    ours = _built_in(rule)
    return find_runtime(rule).can if ours is None else ours.can
