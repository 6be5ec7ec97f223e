"""Find a backend by name: the built-in ones, and third parties' through entry points.

What the built-in ones can do stands here, so that it is known where their packages are not installed; a backend's
module is imported only when it is asked for.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from heterps_compile.errors import InputError, MissingPackageError, PlugInError, UnknownNameError
from heterps_compile.ir.graph import ONNX, TORCH
from heterps_compile.packages import need, need_all
from heterps_compile.plug_ins import make_plug_in

from .contract import Backend, Capabilities, StageDevice

GROUP = "heterps_compile.backends"

BACKEND_MEMBERS = tuple(sorted({"name", "families", *Backend.__abstractmethods__}))
"""What the contract asks a backend to have."""


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A backend that ships with the package.

    Attributes:
        home: Module and class.
        extra: The extra that installs what it runs on.
        families: The graph families it can take.
        capabilities: What its stages can do.
    """

    home: str
    extra: str
    families: tuple[str, ...]
    capabilities: Capabilities


BACKENDS: Mapping[str, BuiltIn] = MappingProxyType(
    {
        "onnxruntime": BuiltIn(
            "heterps_compile.backends.onnxruntime.backend:OnnxRuntimeBackend",
            "onnx",
            (ONNX, TORCH),
            Capabilities(stages_are_data=True),
        ),
        "torch": BuiltIn(
            "heterps_compile.backends.torch.backend:TorchBackend",
            "torch",
            (TORCH, ONNX),
            Capabilities(trains=True, is_module=True, draws_as=(TORCH,), recomputes=True, sparse_gradients=True),
        ),
        "jax": BuiltIn(
            "heterps_compile.backends.jax.backend:JaxBackend",
            "jax",
            (ONNX, TORCH),
            Capabilities(trains=True, own_threads=True, exports=("stablehlo",), recomputes=True),
        ),
    }
)
"""Built-in backends by name."""

_OWN: Mapping[str, str] = MappingProxyType({ONNX: "onnxruntime", TORCH: "torch"})
_DIFFERENTIATES = "torch"


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
        MissingPackageError: where what it runs on is not installed.
        PlugInError: where a third party's does not load, or is no backend.
        InputError: where the device types are not written so.
    """
    if "=" in name:
        return _find_by_device(name)
    if name in BACKENDS:
        need(f"the backend {name!r}", BACKENDS[name].extra)
        module, _, cls = BACKENDS[name].home.partition(":")
        made: Backend = getattr(import_module(module), cls)()
        return made
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in found:
        raise UnknownNameError("backend", name, {*BACKENDS, *found})
    return _adapted(make_plug_in(found[name], BACKEND_MEMBERS))


def _find_by_device(text: str) -> Backend:
    """Find the backends of ``cpu=onnxruntime,v100=torch``, by the name or the kind of a device type.

    Raises:
        InputError: showing what is not of that form.
        UnknownNameError: naming an unknown backend.
        MissingPackageError: naming all packages that some of them need and that are not installed.
    """
    from .mixed import MixedBackend  # noqa: PLC0415 - numpy, which completing a name does without

    names: dict[str, str] = {}
    for part in text.split(","):
        device, _, name = (piece.strip() for piece in part.rpartition("="))
        if not device or not name:
            raise InputError(f"{part!r} is not DEVICE=BACKEND, such as cpu=onnxruntime; write one for each device type")
        if device in names:
            raise InputError(f"{device!r} is given two backends, {names[device]!r} and {name!r}; give it one")
        names[device] = name
    need_all([partial(find_backend, name) for name in dict.fromkeys(names.values())])
    return MixedBackend({device: find_backend(name) for device, name in names.items()})


def differentiating_backend() -> Backend:
    """Return the backend that trains models of every family: the oracle of gradients where a family has none."""
    return find_backend(_DIFFERENTIATES)


def trains(name: str) -> bool:
    """Say whether the stages of a backend train; those of a third party's that is not installed here do not."""
    return _capabilities(name).trains


def makes_sparse_gradients(name: str) -> bool:
    """Say whether look-ups make sparse gradients in the stages of a backend; likewise."""
    return _capabilities(name).sparse_gradients


def splits_backward(name: str) -> bool:
    """Check if the stages of a backend compute gradients of inputs before those of weights; False if not installed."""
    return _capabilities(name).splits_backward


def _capabilities(name: str) -> Capabilities:
    """Return what the stages of a backend can do; nothing where it is a third party's that is not installed here."""
    if name in BACKENDS:
        return BACKENDS[name].capabilities
    try:
        return find_backend(name).capabilities
    except (UnknownNameError, PlugInError, MissingPackageError):
        return Capabilities()


def training_backends() -> tuple[str, ...]:
    """Return the names of the built-in backends whose stages train."""
    return tuple(name for name in BACKENDS if trains(name))


def exporting_backends(form: str) -> tuple[str, ...]:
    """Return the names of the built-in backends that write a format besides their own."""
    return tuple(name for name in BACKENDS if form in BACKENDS[name].capabilities.exports)


def _adapted(made: Any) -> Backend:
    adapted: Any = made if isinstance(made, Backend) else _KeepsContract(made)
    backend: Backend = adapted
    return backend


class _KeepsContract:
    """An object that has what the contract asks for and does not inherit it: the rest is as the contract has it."""

    def __init__(self, own: Any) -> None:
        self.own = own

    def __getattr__(self, name: str) -> Any:
        if hasattr(self.own, name):
            return getattr(self.own, name)
        default = inspect.getattr_static(Backend, name)
        return default.__get__(self, type(self)) if hasattr(default, "__get__") else default

    @property
    def capabilities(self) -> Capabilities:
        """Return what it says of its stages, here or in members of its own."""
        said = {name: getattr(self.own, name) for name in ("stages_are_data", "own_threads") if hasattr(self.own, name)}
        found: Capabilities = getattr(self.own, "capabilities", Capabilities(**said))
        return found

    def on(self, stages: Sequence[StageDevice]) -> Backend:
        """Return the backend that knows which device each stage is for."""
        return _adapted(self.own.on(stages)) if hasattr(self.own, "on") else _adapted(self.own)
