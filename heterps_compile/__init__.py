"""heterps-compile: cut a neural network into stages, and give each the hardware it suits at the lowest price.

The public face; every name is loaded when it is first used, so that importing the package costs nothing. It imports
nothing by itself, so that the command heeds Ctrl-C from its first moment on (``__main__.py``).
"""

TYPE_CHECKING = False  # what type checkers take for true, as they take typing's
if TYPE_CHECKING:
    from typing import Any

    from heterps_compile.plan_diff.compare_plans import diff

    from .api import compile  # noqa: A004 - the product's verb
    from .cluster.devices import Cluster, DeviceType
    from .cluster.load import load_cluster
    from .compiled_model import CompiledModel, load
    from .errors import HeterpsError
    from .ir.graph import Graph
    from .packages import __version__ as __version__
    from .plan.plan import Plan
    from .runtime.data.hashed_ids import hash_ids
    from .runtime.export.export_checkpoint import export_checkpoint
    from .runtime.launch.run_api import run
    from .runtime.launch.run_view import RunView
    from .runtime.launch.training_file import Training

__all__ = [
    "Cluster",
    "CompiledModel",
    "DeviceType",
    "Graph",
    "HeterpsError",
    "Plan",
    "RunView",
    "Training",
    "compile",
    "diff",
    "export_checkpoint",
    "hash_ids",
    "load",
    "load_cluster",
    "run",
]

_HOMES = {
    "Cluster": ".cluster.devices",
    "CompiledModel": ".compiled_model",
    "DeviceType": ".cluster.devices",
    "Graph": ".ir.graph",
    "HeterpsError": ".errors",
    "Plan": ".plan.plan",
    "RunView": ".runtime.launch.run_view",
    "__version__": ".packages",
    "Training": ".runtime.launch.training_file",
    "compile": ".api",
    "diff": ".plan_diff.compare_plans",
    "export_checkpoint": ".runtime.export.export_checkpoint",
    "hash_ids": ".runtime.data.hashed_ids",
    "load": ".compiled_model",
    "load_cluster": ".cluster.load",
    "run": ".runtime.launch.run_api",
}


def __getattr__(name: str) -> "Any":
    """Load a public name from its home (PEP 562)."""
    from importlib import import_module  # noqa: PLC0415 - see above

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted([*__all__, "__version__"])
