"""Find a backend by name: the built-in ones, and third parties' through entry points.

A backend's module is imported only when it is asked for.
"""

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType

from heterps_compile.errors import UnknownNameError

from .contract import Backend

GROUP = "heterps_compile.backends"

BACKENDS: Mapping[str, str] = MappingProxyType(
    {
        "onnxruntime": "heterps_compile.backends.onnxruntime.backend:OnnxRuntimeBackend",
        "torch": "heterps_compile.backends.torch.backend:TorchBackend",
    }
)
"""Built-in backends by name; the first that takes a model's family is its default."""


def find_backend(name: str) -> Backend:
    """Give a backend by name.

    Raises:
        UnknownNameError: with the known names and the nearest.
    """
    if name in BACKENDS:
        module, _, cls = BACKENDS[name].partition(":")
        made: Backend = getattr(import_module(module), cls)()
        return made
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in found:
        raise UnknownNameError("backend", name, {*BACKENDS, *found})
    third_party: Backend = found[name].load()()
    return third_party
