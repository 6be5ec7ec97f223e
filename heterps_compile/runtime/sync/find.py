"""Find what runs a rule: ours by name, and third parties' through entry points.

A third party's rule is two entry points of one name: one of ``heterps_compile.sync_rules``, which says what it costs,
and one of ``heterps_compile.sync_runtimes``: a class that inherits :class:`~.contract.Rule`.

Left out: rules as data (``sync_rules/rules.py``).
"""

from collections.abc import Mapping
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from heterps_compile.errors import PlugInError, RunError
from heterps_compile.plug_ins import load_plug_in, shown
from heterps_compile.sync_rules import adasum
from heterps_compile.sync_rules.rule import SyncRule

from .adasum import Adasum, AdasumOfSteps
from .adsaga import Adsaga
from .all_reduce import AllReduce
from .contract import Rule, Shared
from .local_steps import LocalSteps
from .power_sgd import PowerSGD
from .shadow import Shadow
from .top_k import TopK

GROUP = "heterps_compile.sync_runtimes"

RULES: Mapping[str, type[Rule]] = MappingProxyType(
    {
        "all-reduce": AllReduce,
        "topk": TopK,
        "adasum": Adasum,
        "shadow": Shadow,
        "local": LocalSteps,
        "powersgd": PowerSGD,
        "adsaga": Adsaga,
        "servers": AllReduce,
    }
)
"""Ours; of a stage whose tables lie on servers, what it holds itself is summed."""


def find_runtime(name: str) -> type[Rule]:
    """Return what runs the rule of a name.

    Raises:
        RunError: where nothing does.
        PlugInError: where a third party's does not load, or is no rule.
    """
    if name in RULES:
        return RULES[name]
    entry = next((entry for entry in entry_points(group=GROUP) if entry.name == name), None)
    if entry is None:
        raise RunError(
            f"nothing here runs the synchronisation rule {name!r}: it needs an entry point of the group {GROUP!r} with "
            f"that name; take one of {', '.join(RULES)} (--sync)"
        )
    found: Any = load_plug_in(entry)
    if not (isinstance(found, type) and issubclass(found, Rule)):
        raise PlugInError(f"{shown(entry)} is no class that inherits Rule of {Rule.__module__}; mend or uninstall it")
    return found


def make_rule(asked: SyncRule, shared: Shared) -> Rule:
    """Return what runs a rule on some parameters.

    Raises:
        RunError: where nothing does.
    """
    kind = AdasumOfSteps if isinstance(asked, adasum.Adasum) and asked.on == "step" else find_runtime(asked.name)
    return kind(shared, asked)
