"""Find an engine by name: the built-in ones, and third parties' through entry points.

Left out: their options (``launch_options.py``).
"""

from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any

from heterps_compile.errors import InputError, PlugInError, UnknownNameError
from heterps_compile.escape import one_line
from heterps_compile.options import Asked
from heterps_compile.plug_ins import load_plug_in, shown

from .contract import Engine
from .launch_options import BY_HAND

GROUP = "heterps_compile.engines"

_HERE = "heterps_compile.runtime.engines"
ENGINES: Mapping[str, str] = MappingProxyType(
    {
        BY_HAND: f"{_HERE}.by_hand:ByHand",
        "ssh": f"{_HERE}.ssh:Ssh",
        "slurm": f"{_HERE}.slurm:Slurm",
        "ray": f"{_HERE}.ray_cluster:Ray",
        "kubernetes": f"{_HERE}.kubernetes:Kubernetes",
        "skypilot": f"{_HERE}.skypilot:SkyPilot",
    }
)
"""Module and class of the built-in engines."""


def find_engine(asked: Asked) -> Engine:
    """Return the engine that is asked for, with its options.

    Raises:
        UnknownNameError: with the known names and the nearest.
        PlugInError: where a third party's does not load, or is no engine.
        InputError: where a third party's does not take an option.
    """
    name = asked["on"]
    if name in ENGINES:
        module, _, attribute = ENGINES[name].partition(":")
        kind = getattr(import_module(module), attribute)
        made: Engine = kind(**{one.name: asked[one.name] for one in fields(kind)})
        return made
    others = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in others:
        raise UnknownNameError("engine", name, [*ENGINES, *others])
    return _make(others[name], dict(asked["engine_options"]))


def _make(entry: EntryPoint, options: dict[str, str]) -> Engine:
    kind: Any = load_plug_in(entry)
    if not (isinstance(kind, type) and issubclass(kind, Engine)):
        raise PlugInError(
            f"{shown(entry)} is no class that inherits Engine of {Engine.__module__}; mend or uninstall it"
        )
    try:
        return kind(**options)
    except TypeError as error:
        raise InputError(
            f"{shown(entry)} cannot be made: {one_line(str(error))}; look at its --engine-option"
        ) from error
