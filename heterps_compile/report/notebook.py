"""A plan or a compiled model in a notebook: the picture of the report above stages, totals, warnings and notes.

The picture is an image with its bytes in its address, so that no style or id of it reaches another cell, and nothing
of it runs. It is dark where the notebook is (JupyterLab, VS Code), else where the reader likes it dark: the one rule
that says so names our own class alone.

Left out: the page (``html.py``).
"""

import base64
from html import escape

from heterps_compile.columns.column import Medium
from heterps_compile.columns.html import html_pairs, html_table
from heterps_compile.compiled_model import CompiledModel
from heterps_compile.escape import printable
from heterps_compile.plan.plan import Plan, notes_of
from heterps_compile.plan.plan_notes import is_warning
from heterps_compile.plan.stage_columns import STAGES, stage_rows
from heterps_compile.plan.total_columns import HEAD, TOTALS, Summary
from heterps_compile.units import counted

from .findings import Findings
from .pictures.svg import safe
from .rows import layer_rows

_MOST_STAGES = 30

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
    """Return a piece of HTML that needs no other."""
    found, summary = _findings(value), Summary(value) if isinstance(value, Plan) else value.summary
    drawn, plan = found.graph(), summary.plan
    address = base64.b64encode(drawn.svg.encode()).decode("ascii")
    parts = (
        f"<style>{_THEMES}</style>",
        f'<img alt="{safe(drawn.label)}" style="max-width:100%" src="data:image/svg+xml;base64,{address}"/>',
        html_pairs(HEAD, summary, plan.currency, Medium.NOTEBOOK),
        _stages(plan),
        html_pairs(TOTALS, summary, plan.currency, Medium.NOTEBOOK),
        _notes(plan),
    )
    return f'<div class="heterps-compile">{"".join(parts)}</div>'


def _stages(plan: Plan) -> str:
    rows, hidden = stage_rows(plan), len(plan.stages) - _MOST_STAGES
    more = f"<p>{counted(hidden, 'more stage')} in the plan file</p>" if hidden > 0 else ""
    return html_table(STAGES, rows[:_MOST_STAGES], plan.currency, Medium.NOTEBOOK) + more


def _notes(plan: Plan) -> str:
    """Return warnings as paragraphs, and the other notes folded."""
    notes = notes_of(plan)
    warnings = "".join(f"<p>warning: {_text(note)}</p>" for note in notes if is_warning(note))
    others = [f"<li>{_text(note)}</li>" for note in notes if not is_warning(note)]
    summary = f"<summary>{counted(len(others), 'note')}</summary>"
    return warnings + (f"<details>{summary}<ul>{''.join(others)}</ul></details>" if others else "")


def _text(note: str) -> str:
    return escape(printable(note))


def _findings(value: Plan | CompiledModel) -> Findings:
    if isinstance(value, Plan):
        return Findings(value)
    if value.layers is None:
        return Findings(value.plan)
    return Findings(value.plan, layer_rows(value.plan, value.layers, value.costs), value.layers)
