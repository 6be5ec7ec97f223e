"""The packages that plans and profiles depend on, and their installed versions.

Left out: backends, which may be named as the package they run on (``backends/find.py``).
"""

from collections.abc import Sequence
from importlib import metadata

PYTORCH = "torch"
SHAPE_PLANS = ("heterps-compile", "numpy", "onnx", "onnxruntime", PYTORCH)
"""What a plan depends on."""
RUN_LAYERS = ("heterps-compile", PYTORCH, "onnxruntime", "jax", "numpy")
"""What a measured time depends on."""


def installed_versions(names: Sequence[str]) -> dict[str, str]:
    """Return the version of each distribution, ``"not installed"`` of one that is not here."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
