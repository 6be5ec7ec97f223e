"""The report that people look at: one HTML file with everything in it, which fetches nothing.

Three walls keep a hostile name a text: the template escapes what it inserts, pictures and embedded JSON are made of
escaped text, and the page's own policy lets no script run but the one whose hash it names.

Left out: what the pictures show (``pictures/``), how the page shows a layer that is chosen (``templates/report.js``).
"""

import base64
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from heterps_compile.columns.column import Medium
from heterps_compile.columns.html import html_pairs, html_table
from heterps_compile.cost.problem import Problem
from heterps_compile.escape import printable, shorten
from heterps_compile.packages import __version__
from heterps_compile.plan.idle_units import units_of
from heterps_compile.plan.plan import Plan, notes_of, what_the_bound_proves
from heterps_compile.plan.planned_stage import PlannedStage
from heterps_compile.plan.stage_columns import STAGES, stage_rows
from heterps_compile.plan.table_words import tables_in_words
from heterps_compile.plan.total_columns import HEAD, TOTALS, Summary, described
from heterps_compile.plan_diff.sentences import change_of, sentences
from heterps_compile.plan_diff.sentences import notes as change_notes
from heterps_compile.units import (
    counted,
    format_bytes,
    format_count,
    format_money,
    format_rate,
    format_seconds,
    format_share,
)

from .findings import Findings
from .pictures.layer_graph import LayerView
from .pictures.svg import NAME_WIDTH, NARROW, STYLE, device_classes

_MOST_STAGES = 400  # rows of the table
_MOST_CHANGES = 200  # sentences
_MOST_TEXT = 600  # characters of a note
_SLOWEST = 8  # layers in the panel, before one is chosen
_MOST_REASON = 400  # characters of why a layer is bound by what it is


def html_report(findings: Findings) -> str:
    """Write the page.

    Args:
        findings: What is known of the plan; sections without anything to tell are left out.
    """
    plan = findings.plan  # the page leaves out the time spent, which is not over while it is written
    script = _template("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["name"] = lambda text: shorten(printable(text), NAME_WIDTH)
    environment.filters["text"] = lambda text: shorten(printable(text), _MOST_TEXT)
    environment.filters["seconds"] = format_seconds
    environment.filters["bytes"] = format_bytes
    environment.filters["money"] = format_money
    environment.filters["rate"] = format_rate
    environment.filters["share"] = format_share
    environment.filters["change"] = change_of
    changes, servers = findings.changes, plan.parameter_servers.count
    colours = device_classes([*(stage.device_words for stage in plan.stages), *units_of(plan.stages)])
    return environment.from_string(
        _template("report.html")
    ).render(
        plan=plan,
        version=__version__,
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        style=Markup(_template("report.css")),  # noqa: S704 - the package's own file
        script=Markup(script),  # noqa: S704 - as above
        data=Markup(for_script(layer_facts(findings))),  # noqa: S704 - escaped for where it stands
        picture_style=Markup(STYLE),  # noqa: S704 - the package's own
        pictures=[
            (drawn, Markup(drawn.element), Markup(narrow.element))  # noqa: S704 - made of escaped text
            for drawn, narrow in zip(findings.pictures(), findings.pictures(NARROW), strict=True)
        ],
        slowest=slowest_layers(findings),
        units=units_of(plan.stages),
        stages_in_all=counted(len(plan.stages), "stage"),
        tables=tables_in_words(plan),
        servers=f", and {counted(servers, 'parameter server core')}" if servers else "",
        bound=described(plan, plan.bound) if plan.bound > 0 else "",
        proves=what_the_bound_proves(plan),
        firsts=list(_firsts(plan))[:_MOST_STAGES],
        totals=Markup(html_pairs((*HEAD, *TOTALS), Summary(plan), plan.currency, Medium.PAGE)),  # noqa: S704 - escaped
        notes=notes_of(plan),
        stages=Markup(_stages(plan, colours)),  # noqa: S704 - as above
        more_stages=max(0, len(plan.stages) - _MOST_STAGES),
        older=findings.older,
        old_numbers={} if changes is None else {number.name: number.old_text for number in changes.numbers},
        has_facts=bool(findings.rows),
        changes=changes,
        change_sentences=[] if changes is None else sentences(changes, printable),
        change_notes=[] if changes is None else change_notes(changes, printable),
        most_changes=_MOST_CHANGES,
        colours=colours,
    )


def _template(name: str) -> str:
    return resources.files(f"{__package__}.templates").joinpath(name).read_text("utf-8")


def _stages(plan: Plan, colours: Mapping[str, int]) -> str:
    """Return the stage table; each device type has the colour of the pictures."""
    rows = stage_rows(plan)[:_MOST_STAGES]
    return html_table(STAGES, rows, plan.currency, Medium.PAGE, lambda device: f"c{colours[device]}")


def _firsts(plan: Plan) -> Iterator[tuple[int, PlannedStage]]:
    """Yield every stage with the index of its first layer."""
    first = 0
    for stage in plan.stages:
        yield first, stage
        first += len(stage.layers)


def slowest_layers(findings: Findings) -> list[tuple[int, LayerView, str]]:
    """Return the layers that take longest on the device type they are on, with the time of a batch.

    None where the times of layers are not known.
    """
    problem = findings.problem
    if problem is None or problem.layer_count != len(findings.views):
        return []
    times_s = [
        float(max(problem.compute_s[i, t], problem.data_s[i, t]))
        for i, view in enumerate(findings.views)
        for t in [problem.type_names.index(view.device)]
    ]
    order = sorted(range(len(times_s)), key=lambda i: -times_s[i])[:_SLOWEST]
    return [(i, findings.views[i], format_seconds(times_s[i])) for i in order]


def layer_facts(findings: Findings) -> dict[str, Any]:
    """Return what is embedded in the page: per layer its facts, its device types, and the edges of all."""
    plan = findings.plan
    layers = [
        {"name": _shown(view.name), "stage": view.stage, "device": _shown(view.device), "facts": []}
        for view in findings.views
    ]
    for entry, view in zip(layers, findings.views, strict=True):
        if view.change:
            entry["change"] = _shown(view.change)
    for entry, row in zip(layers, findings.rows, strict=False):
        cost = row.cost
        entry["facts"] = [
            ["kind", _shown(row.what or row.kind)],
            ["parameters", format_count(row.parameters)],
            ["weights", format_bytes(cost.parameter_bytes)],
            ["computation", f"{format_count(cost.flops)}FLOP a batch"],
            ["memory traffic", f"{format_bytes(cost.moved_bytes)} a batch"],
            ["intensity", f"{cost.flop_per_byte:.3g} FLOP a byte"],
            ["bound by", cost.label],
            ["because", shorten(printable(cost.reason), _MOST_REASON)],
        ]
    if findings.problem is not None and findings.problem.layer_count == len(layers):
        for index, entry in enumerate(layers):
            entry["types"] = list(_types(findings.problem, index, plan.currency))
    joins = [_shown(view.join) for view in findings.views]
    edges = [
        [edge.producer, edge.consumer, format_bytes(size), joins[edge.consumer] if edge.into_join else ""]
        for edge, size in findings.edges
    ]
    return {"layers": layers, "edges": edges, "currency": plan.currency}


def _types(problem: Problem, layer: int, currency: str) -> Iterator[list[str]]:
    """Yield name, computation, data and price of a layer on every type: alone on one unit that it keeps busy."""
    for index, name in enumerate(problem.type_names):
        compute_s, data_s = float(problem.compute_s[layer, index]), float(problem.data_s[layer, index])
        if not math.isfinite(compute_s) or not problem.allowed[layer, index]:
            yield [_shown(name), "cannot run it" if not math.isfinite(compute_s) else "not allowed", "", ""]
            continue
        paid = max(compute_s, data_s) * float(problem.price_per_hour[index]) / 3600 / problem.batch * 1e6
        yield [_shown(name), format_seconds(compute_s), format_seconds(data_s), f"{format_money(paid)} {currency}"]


def _shown(name: str) -> str:
    return shorten(printable(name), NAME_WIDTH)


def for_script(value: Any) -> str:
    """Return JSON that may stand between script tags: no character of it can end them or begin a comment."""
    plain = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
