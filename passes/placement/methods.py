"""The placement methods by name; none is imported before it is asked for.

A third party adds a method as an entry point of the group ``heterps_compile.methods``: its name, and a callable that
gives a :class:`~.method.PlacementMethod`. The names below cannot be taken.

Left out: which method is the default (``plan/request.py``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import cast

from heterps_compile.errors import UnknownNameError
from heterps_compile.packages import SEARCH, has, need
from heterps_compile.plug_ins import make_plug_in

from .method import PlacementMethod

_PLAIN = "best"  # needs no more than every search does
ENTRY_POINT_GROUP = "heterps_compile.methods"


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A method that ships with the package.

    Attributes:
        module: Of this package.
        cls: The class there; it is made without arguments.
        extras: What it needs besides the proof that follows every method.
    """

    module: str
    cls: str
    extras: tuple[str, ...] = ()


METHODS: Mapping[str, BuiltIn] = MappingProxyType(
    {
        "best": BuiltIn("best", "Best"),
        "rl": BuiltIn("learned.rl", "Rl", ("torch",)),
        "rl-rnn": BuiltIn("learned.rl", "RlRnn", ("torch",)),
        "exact": BuiltIn("proof.exact", "Exact"),
        "brute": BuiltIn("baselines.brute", "Brute"),
        "greedy": BuiltIn("baselines.greedy", "Greedy"),
        "genetic": BuiltIn("baselines.genetic", "Genetic"),
        "bayes": BuiltIn("baselines.bayes", "Bayes", ("bayes",)),
        "cpu-only": BuiltIn("baselines.fixed", "CpuOnly"),
        "gpu-only": BuiltIn("baselines.fixed", "GpuOnly"),
        "heuristic": BuiltIn("baselines.fixed", "Heuristic"),
    }
)


def find_method(name: str) -> PlacementMethod:
    """Return the method of a name, with its default options.

    Raises:
        UnknownNameError: with the known names, those of third parties included, and the nearest.
        MissingPackageError: where what it needs is not installed.
        PlugInError: where a third party's does not load, or is no method.
    """
    if name in METHODS:
        made = METHODS[name]
        unlike = f", unlike {_PLAIN!r}," if has(SEARCH) and made.extras else ""
        need(f"the placement method {name!r}{unlike}", SEARCH, *made.extras)
        return cast(PlacementMethod, getattr(import_module(f".{made.module}", __package__), made.cls)())
    others = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    if name in others:
        return cast(PlacementMethod, make_plug_in(others[name], ("name",), ("seed", "time_limit_s", "warm_start")))
    raise UnknownNameError("placement method", name, [*METHODS, *sorted(others)])
