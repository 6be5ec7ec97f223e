"""Packages: the version of this one, which part needs which others, what to type to install them, their versions.

The core reviews plans and needs none of these. A part that needs some asks for them by the name of their extra
(``need``) before it imports them, so that an installation without them refuses in one sentence that says what to type.

Left out: backends, which may be named as the package they run on (``backends/find.py``).
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from types import MappingProxyType

from .errors import MissingPackageError

__version__ = "0.1.0"

PYTORCH = "torch"
SEARCH = "search"
SHAPE_PLANS = ("heterps-compile", "numpy", "onnx", "onnxruntime", PYTORCH)
"""What a plan depends on."""
RUN_LAYERS = ("heterps-compile", PYTORCH, "onnxruntime", "jax", "numpy")
"""What a measured time depends on."""

EXTRAS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        SEARCH: ("highspy", "networkx", "numba"),
        "onnx": ("onnx", "onnx-ir", "onnxruntime"),
        PYTORCH: ("safetensors", PYTORCH),
        "jax": ("jax", "safetensors"),
        "export": ("onnxscript",),
        "bayes": ("optuna",),
        "tune": ("optuna",),
        "plots": ("resvg-py",),
        "data": ("pyarrow",),
        "tensorboard": ("tensorboard",),
        "remote": ("fsspec",),
        "ray": ("ray",),
    }
)
"""The packages of every extra, as in ``pyproject.toml``."""

INCLUDES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "onnx": (SEARCH,),
        PYTORCH: (SEARCH,),
        "jax": ("onnx", SEARCH),
        "export": ("onnx", SEARCH, PYTORCH),
        "tune": (SEARCH, PYTORCH, "ray"),
    }
)
"""The other extras that come with an extra, as in ``pyproject.toml``."""


def installed_versions(names: Sequence[str]) -> dict[str, str]:
    """Return the version of each distribution, ``"not installed"`` of one that is not here."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def need(what: str, *extras: str) -> None:
    """Refuse what needs packages that are not installed; nothing is imported to find out.

    Args:
        what: What needs them, as a sentence begins: "reading an ONNX model".
        extras: Names of :data:`EXTRAS`.

    Raises:
        MissingPackageError: naming what, the packages, and what to type.
    """
    missing = tuple(extra for extra in extras if not has(extra))
    if missing:
        raise _refusal({what: missing})


def need_all(asked: Iterable[Callable[[], object]]) -> None:
    """Call functions that may refuse for want of packages, and refuse once for all of them: one command helps then.

    Raises:
        MissingPackageError: naming what all of them need.
    """
    errors = []
    for call in asked:
        try:
            call()
        except MissingPackageError as error:
            errors.append(error)
    if errors:
        raise join(errors)


def join(errors: Iterable[MissingPackageError]) -> MissingPackageError:
    """Return one refusal for several."""
    return _refusal({what: extras for error in errors for what, extras in error.needs.items()})


def not_installed(error: ModuleNotFoundError) -> MissingPackageError | None:
    """Return the refusal that stands for an import that failed; None where the package is of no extra."""
    package = (error.name or "").partition(".")[0].replace("_", "-")
    extra = next((name for name, packages in EXTRAS.items() if package in packages), None)
    return None if extra is None or has(extra) else _refusal({"what was asked for": (extra,)})


def _refusal(needs: Mapping[str, tuple[str, ...]]) -> MissingPackageError:
    absent = {what: _absent(extras) for what, extras in needs.items()}
    told = "; ".join(f"{what} needs {_listed(packages)}" for what, packages in absent.items())
    are = "is" if sum(map(len, absent.values())) == 1 else "are"
    typed = command(extra for extras in needs.values() for extra in extras)
    so = f", which {are}" if len(absent) == 1 else "; these are"
    return MissingPackageError(f"{told}{so} not installed: {typed}", needs)


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def has(extra: str) -> bool:
    """Whether all packages of an extra are installed."""
    return not _absent([extra])


def command(extras: Iterable[str]) -> str:
    """Return what to type to install some extras."""
    wanted = dict.fromkeys(extras)
    brought = {other for extra in wanted for other in INCLUDES.get(extra, ())}
    return f"pip install 'heterps-compile[{','.join(sorted(wanted.keys() - brought))}]'"


def _absent(extras: Iterable[str]) -> list[str]:
    packages = dict.fromkeys(package for extra in extras for package in EXTRAS[extra])
    return [package for package in packages if not _is_installed(package.replace("-", "_"))]


def _is_installed(module: str) -> bool:
    if module in sys.modules:
        return sys.modules[module] is not None
    return find_spec(module) is not None
