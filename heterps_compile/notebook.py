"""Views of plans and compiled models for notebooks and ``print``, loaded by name from the modules above.

Left out: the views (``report/notebook.py``, ``plan/plan_view.py``).
"""

from importlib import import_module
from typing import Any

_DRAWER = "heterps_compile.report.notebook"


def html_of(value: Any) -> str:
    """Render a plan or a compiled model as HTML: picture, stages and totals."""
    drawn: str = import_module(_DRAWER).html_of(value)
    return drawn


def text_of(plan: Any) -> str:
    """Render a plan as ``print`` shows it, 80 columns wide."""
    view = import_module("heterps_compile.plan.plan_view")
    text: str = view.plan_text(view.Summary(plan))
    return text
