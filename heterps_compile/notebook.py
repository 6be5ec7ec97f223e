"""How values look in a notebook: the drawer is found by its name, since pictures stand above what they show.

This is the one place that loads what stands above it, and only when a notebook asks; a test sees to that.

Left out: the drawing (``report/notebook.py``).
"""

from importlib import import_module
from typing import Any

_DRAWER = "heterps_compile.report.notebook"


def html_of(value: Any) -> str:
    """Return a plan or a compiled model as a piece of HTML: the report's picture above stages and totals."""
    drawn: str = import_module(_DRAWER).html_of(value)
    return drawn
