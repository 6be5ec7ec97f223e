"""The search methods by name; none is imported before it is asked for."""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import cast

from heterps_compile.errors import UnknownNameError

from .ask_tell import Fidelity, Method
from .space import Space

METHODS: Mapping[str, tuple[str, str, bool]] = MappingProxyType(
    {
        "random": ("random_search", "RandomSearch", False),
        "hyperband": ("hyperband", "Hyperband", True),
        "tpe": ("tpe", "Tpe", False),
        "dehb": ("dehb", "Dehb", True),
    }
)
"""Module and class of each, and whether its trials differ in length."""


def lengths_of(name: str, fidelity: Fidelity) -> tuple[float, ...]:
    """List the lengths of a method's trials, ascending."""
    return fidelity.levels if METHODS[name][2] else (fidelity.most,)


def make_search(name: str, space: Space, fidelity: Fidelity, seed: int) -> Method:
    """Return a search of a space by the method of a name.

    Raises:
        UnknownNameError: where there is no such method.
        MissingPackageError: where a package that it needs is not installed.
    """
    if name not in METHODS:
        raise UnknownNameError("search method", name, METHODS)
    module, cls, _ = METHODS[name]
    return cast(Method, getattr(import_module(f".{module}", __package__), cls)(space, fidelity, seed))
