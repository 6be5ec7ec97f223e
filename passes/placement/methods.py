"""The placement methods by name; none is imported before it is asked for.

A third party adds a method as an entry point of the group ``heterps_compile.methods``: its name, and a callable that
gives a :class:`~.method.PlacementMethod`. The names below cannot be taken.

Left out: which method is the default (``plan/request.py``).
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import cast

from heterps_compile.errors import UnknownNameError
from heterps_compile.plug_ins import make_plug_in

from .method import PlacementMethod

ENTRY_POINT_GROUP = "heterps_compile.methods"


def _lazy(module: str, cls: str) -> Callable[[], PlacementMethod]:
    def build() -> PlacementMethod:
        return cast(PlacementMethod, getattr(import_module(f".{module}", __package__), cls)())

    return build


METHODS: Mapping[str, Callable[[], PlacementMethod]] = MappingProxyType(
    {
        "rl": _lazy("learned.rl", "Rl"),
        "rl-rnn": _lazy("learned.rl", "RlRnn"),
        "exact": _lazy("proof.exact", "Exact"),
        "brute": _lazy("baselines.brute", "Brute"),
        "greedy": _lazy("baselines.greedy", "Greedy"),
        "genetic": _lazy("baselines.genetic", "Genetic"),
        "bayes": _lazy("baselines.bayes", "Bayes"),
        "cpu-only": _lazy("baselines.fixed", "CpuOnly"),
        "gpu-only": _lazy("baselines.fixed", "GpuOnly"),
        "heuristic": _lazy("baselines.fixed", "Heuristic"),
    }
)


def find_method(name: str) -> PlacementMethod:
    """Return the method of a name, with its default options.

    Raises:
        UnknownNameError: with the known names, those of third parties included, and the nearest.
        PlugInError: where a third party's does not load, or is no method.
    """
    if name in METHODS:
        return METHODS[name]()
    others = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    if name in others:
        return cast(PlacementMethod, make_plug_in(others[name], ("name",), ("seed", "time_limit_s", "warm_start")))
    raise UnknownNameError("placement method", name, [*METHODS, *sorted(others)])
