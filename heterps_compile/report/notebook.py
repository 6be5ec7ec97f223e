"""A plan or a compiled model in a notebook: the picture of the report, and the lines that ``print`` gives.

The picture is an image with its bytes in its address: its colours are its own, dark and light, whatever the notebook's,
its style reaches no other cell, and nothing of it runs.

Left out: the page (``html.py``).
"""

import base64
from html import escape

from heterps_compile.compiled_model import CompiledModel
from heterps_compile.plan.plan import Plan

from .findings import Findings
from .pictures.svg import safe
from .rows import layer_rows


def html_of(value: Plan | CompiledModel) -> str:
    """Return a piece of HTML that stands by itself."""
    found = _findings(value)
    drawn = found.graph()
    address = base64.b64encode(drawn.svg.encode()).decode("ascii")
    image = f'<img alt="{safe(drawn.label)}" style="max-width:100%" src="data:image/svg+xml;base64,{address}"/>'
    return f"<div>{image}<pre>{escape(str(value))}</pre></div>"


def _findings(value: Plan | CompiledModel) -> Findings:
    if isinstance(value, Plan):
        return Findings(value)
    if value.layers is None:
        return Findings(value.plan)
    return Findings(value.plan, layer_rows(value.plan, value.layers, value.costs), value.layers)
