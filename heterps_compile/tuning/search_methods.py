"""The search methods by name; none is imported before it is asked for."""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import cast

from heterps_compile.errors import UnknownNameError

from .ask_tell import Fidelity, Method
from .space import Space

METHODS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "random": ("random_search", "RandomSearch"),
        "hyperband": ("hyperband", "Hyperband"),
        "tpe": ("tpe", "Tpe"),
        "dehb": ("dehb", "Dehb"),
    }
)
"""Module and class of each."""


def make_search(name: str, space: Space, fidelity: Fidelity, seed: int) -> Method:
    """Return a search of a space by the method of a name.

    Raises:
        UnknownNameError: where there is no such method.
        MissingPackageError: where a package that it needs is not installed.
    """
    if name not in METHODS:
        raise UnknownNameError("search method", name, METHODS)
    module, cls = METHODS[name]
    return cast(Method, getattr(import_module(f".{module}", __package__), cls)(space, fidelity, seed))
