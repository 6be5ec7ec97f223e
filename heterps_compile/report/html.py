"""The report that people look at: one HTML file with everything in it, which fetches nothing.

Three walls keep a hostile name a text: the template escapes what it inserts, pictures and embedded JSON are made of
escaped text, and the page's own policy lets no script run but the one whose hash it names.

Left out: what the pictures show (``pictures_*.py``), what is said of a layer (``html_layers.py``).
"""

import base64
import hashlib
from importlib import resources

from jinja2 import Environment
from markupsafe import Markup

from heterps_compile import __version__
from heterps_compile.escape import printable, shorten
from heterps_compile.plan_diff.sentences import change_of, sentences
from heterps_compile.plan_diff.sentences import notes as change_notes
from heterps_compile.units import format_bytes, format_money, format_rate, format_seconds

from .findings import Findings
from .html_layers import for_script, layer_facts
from .pictures import NAME_WIDTH, device_classes
from .tables import notes, plan_totals

_MOST_STAGES = 400  # rows of the table
_MOST_CHANGES = 200  # sentences
_MOST_TEXT = 600  # characters of a note


def html_report(findings: Findings) -> str:
    """Write the page.

    Args:
        findings: What is known of the plan; sections without anything to tell are left out.
    """
    plan = findings.plan
    script = _template("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["name"] = lambda text: shorten(printable(text), NAME_WIDTH)
    environment.filters["text"] = lambda text: shorten(printable(text), _MOST_TEXT)
    environment.filters["seconds"] = format_seconds
    environment.filters["bytes"] = format_bytes
    environment.filters["money"] = format_money
    environment.filters["rate"] = format_rate
    environment.filters["change"] = change_of
    changes = findings.changes
    return environment.from_string(
        _template("report.html")
    ).render(
        plan=plan,
        version=__version__,
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        style=Markup(_template("report.css")),  # noqa: S704 - the package's own file
        script=Markup(script),  # noqa: S704 - as above
        data=Markup(for_script(layer_facts(findings))),  # noqa: S704 - escaped for where it stands
        pictures=[(drawn, Markup(drawn.svg)) for drawn in findings.pictures()],  # noqa: S704 - made of escaped text
        totals=plan_totals(plan),
        notes=notes(plan),
        stages=plan.stages[:_MOST_STAGES],
        more_stages=max(0, len(plan.stages) - _MOST_STAGES),
        older=findings.older,
        has_facts=bool(findings.rows),
        changes=changes,
        change_sentences=[] if changes is None else sentences(changes, printable),
        change_notes=[] if changes is None else change_notes(changes, printable),
        most_changes=_MOST_CHANGES,
        colours=device_classes(stage.device for stage in plan.stages),
    )


def _template(name: str) -> str:
    return resources.files(f"{__package__}.templates").joinpath(name).read_text("utf-8")
