"""A plan or a compiled model in a notebook: the picture of the report, and the lines that ``print`` gives.

The picture is an image with its bytes in its address, so that no style or id of it reaches another cell, and nothing
of it runs. It is dark where the notebook is (JupyterLab, VS Code), else where the reader likes it dark: the one rule
that says so names our own class alone.

Left out: the page (``html.py``).
"""

import base64
from html import escape

from heterps_compile.compiled_model import CompiledModel
from heterps_compile.plan.plan import Plan

from .findings import Findings
from .pictures.svg import safe
from .rows import layer_rows

_ALIGNED = "font-family:ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;overflow-x:auto"
"""Columns stay columns: JupyterLab gives such text the font of prose."""

_THEMES = "".join(
    f"{notebook} .heterps-compile img{{color-scheme:{scheme}}}"
    for notebook, scheme in (
        ("[data-jp-theme-light=true]", "light"),
        ("[data-jp-theme-light=false]", "dark"),
        (".vscode-light", "light"),
        (".vscode-dark", "dark"),
    )
)
"""An image is drawn in the scheme of the element that holds it."""


def html_of(value: Plan | CompiledModel) -> str:
    """Return a piece of HTML that stands by itself."""
    found = _findings(value)
    drawn = found.graph()
    address = base64.b64encode(drawn.svg.encode()).decode("ascii")
    image = f'<img alt="{safe(drawn.label)}" style="max-width:100%" src="data:image/svg+xml;base64,{address}"/>'
    told = f'<pre style="{_ALIGNED}">{escape(str(value))}</pre>'
    return f'<div class="heterps-compile"><style>{_THEMES}</style>{image}{told}</div>'


def _findings(value: Plan | CompiledModel) -> Findings:
    if isinstance(value, Plan):
        return Findings(value)
    if value.layers is None:
        return Findings(value.plan)
    return Findings(value.plan, layer_rows(value.plan, value.layers, value.costs), value.layers)
