"""Find a backend by name: the built-in ones, and third parties' through entry points.

A backend's module is imported only when it is asked for.
"""

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType

from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.plug_ins import make_plug_in

from .contract import Backend

GROUP = "heterps_compile.backends"

BACKEND_MEMBERS = tuple(sorted(name for name in vars(Backend) if not name.startswith("_")))
"""What the contract asks a backend to have."""

BACKENDS: Mapping[str, str] = MappingProxyType(
    {
        "onnxruntime": "heterps_compile.backends.onnxruntime.backend:OnnxRuntimeBackend",
        "torch": "heterps_compile.backends.torch.backend:TorchBackend",
        "jax": "heterps_compile.backends.jax.backend:JaxBackend",
    }
)
"""Built-in backends by name."""

_OWN: Mapping[str, str] = MappingProxyType({"onnx": "onnxruntime", "torch": "torch"})


def own_backend(family: str) -> Backend:
    """Return the backend that runs models of a family as they are: their default, and the oracle of all others.

    Raises:
        InputError: where the family has none.
    """
    if family not in _OWN:
        raise InputError(f"no backend takes models of the family {family!r}; families with one: {', '.join(_OWN)}")
    return find_backend(_OWN[family])


def find_backend(name: str) -> Backend:
    """Return a backend by name, or one for each device type: ``cpu=onnxruntime,v100=torch``.

    Raises:
        UnknownNameError: with the known names and the nearest.
        PlugInError: where a third party's does not load, or is no backend.
        InputError: where the device types are not written so.
    """
    if "=" in name:
        from .mixed import parse_backends  # noqa: PLC0415 - it finds its backends here

        return parse_backends(name)
    if name in BACKENDS:
        module, _, cls = BACKENDS[name].partition(":")
        made: Backend = getattr(import_module(module), cls)()
        return made
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in found:
        raise UnknownNameError("backend", name, {*BACKENDS, *found})
    third_party: Backend = make_plug_in(found[name], BACKEND_MEMBERS)
    return third_party
