"""Plug-ins: entry points of other packages, loaded so that a fault of theirs is told as theirs.

Left out: what a plug-in of a group must have (the callers say).
"""

import inspect
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

from heterps_compile.errors import PlugInError
from heterps_compile.escape import one_line


def load_plug_in(entry: EntryPoint) -> Any:
    """Import what an entry point names.

    Raises:
        PlugInError: where that fails, whatever the reason.
    """
    try:
        return entry.load()
    except (Exception, SystemExit) as error:
        raise PlugInError(f"{shown(entry)} cannot be loaded: {_reason(error)}; {_way_out(entry)}") from error


def load_module(entry: EntryPoint) -> ModuleType:
    """Import the module that an entry point names; what it brings, it registers while it is imported.

    Raises:
        PlugInError: where that fails, or it is no module.
    """
    found = load_plug_in(entry)
    if not isinstance(found, ModuleType):
        raise PlugInError(
            f"{shown(entry)} is {_what(found)}, and must be a module that registers ops when it is imported; "
            f"{_way_out(entry)}"
        )
    return found


def make_plug_in(entry: EntryPoint, attributes: Sequence[str], call: Sequence[str] = ()) -> Any:
    """Load what an entry point names, call it, and check what it gives.

    Args:
        entry: The entry point; it names a callable without parameters, such as a class.
        attributes: What the object must have.
        call: Names of the keywords that the object must take when it is called with one value; empty where it is not.

    Raises:
        PlugInError: naming what is missing.
    """
    factory = load_plug_in(entry)
    if not callable(factory):
        raise PlugInError(f"{shown(entry)} is {_what(factory)}, and must be a class or a function; {_way_out(entry)}")
    try:
        made = factory()
    except (Exception, SystemExit) as error:
        raise PlugInError(f"{shown(entry)} cannot be made: {_reason(error)}; {_way_out(entry)}") from error
    missing = [name for name in attributes if not hasattr(made, name)]
    if missing:
        raise PlugInError(f"{shown(entry)} gives {_what(made)} without {', '.join(missing)}; {_way_out(entry)}")
    if call:
        _check_call(entry, made, call)
    return made


def shown(entry: EntryPoint) -> str:
    """Print an entry point: its name, group, package and what it points to."""
    package = getattr(getattr(entry, "dist", None), "name", None) or "an unknown package"
    name, value = getattr(entry, "name", "?"), getattr(entry, "value", "?")
    return f"the plug-in {name!r} ({value}, of {package}, group {getattr(entry, 'group', '?')})"


def _check_call(entry: EntryPoint, made: Any, keywords: Sequence[str]) -> None:
    fault = "cannot be called"
    if callable(made):
        try:
            inspect.signature(made).bind(None, **dict.fromkeys(keywords))
        except TypeError as error:
            fault = f"does not take (problem, {', '.join(f'{name}=' for name in keywords)}): {error}"
        except ValueError:
            return  # of a compiled object: calling it will tell
        else:
            return
    raise PlugInError(f"{shown(entry)} gives {_what(made)}, which {fault}; {_way_out(entry)}")


def _reason(error: BaseException) -> str:
    return one_line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def _what(value: Any) -> str:
    return f"a {type(value).__name__}"


def _way_out(entry: EntryPoint) -> str:
    package = getattr(getattr(entry, "dist", None), "name", None)
    return "mend or uninstall it" + (f" (pip uninstall {package})" if package else "")
