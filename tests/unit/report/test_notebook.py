"""How a plan looks in a notebook: a picture that keeps to itself, above stages and totals."""

import base64
import re
from dataclasses import replace
from xml.etree import ElementTree as ET

from plans import PLAN

from heterps_compile.columns.column import Medium, pairs
from heterps_compile.plan.plan import notes_of
from heterps_compile.plan.total_columns import TOTALS, Summary
from heterps_compile.report.findings import Findings


def test_a_notebook_shows_the_picture_of_the_report_stages_totals_and_notes():
    shown = PLAN._repr_html_()
    (address,) = re.findall(r'src="data:image/svg\+xml;base64,([\w+/=]+)"', shown)
    assert base64.b64decode(address).decode() == Findings(PLAN).graph().svg
    root = ET.fromstring(shown)  # noqa: S314 - our own text
    rows = [["".join(cell.itertext()) for cell in row] for row in root.iter("tr")]
    assert rows[0] == ["stage", "device", "replicas", "layers", "batch every", "samples/s", "memory", "USD/h"]
    assert rows[2] == ["1", "v100", "1", "fc1, fc2 (2)", "3 ms", "21,333", "2.31 MiB", "2.42"]
    labels, texts = ([each.text for each in root.iter(tag)] for tag in ("dt", "dd"))
    glance = dict(pairs(TOTALS, Summary(PLAN), Medium.GLANCE, "USD"))
    assert glance.items() <= dict(zip(labels, texts, strict=True)).items()
    assert [each.text for each in root.iter("li")] == notes_of(PLAN)


def test_nothing_of_a_model_is_more_than_text():
    hostile = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
    stages = tuple(replace(stage, device=hostile, layers=(hostile, *stage.layers)) for stage in PLAN.stages)
    shown = replace(PLAN, model=hostile, stages=stages, notes=(hostile,))._repr_html_()
    root = ET.fromstring(shown)  # noqa: S314 - as above
    plain = ET.fromstring(PLAN._repr_html_())  # noqa: S314 - as above
    assert [(each.tag, sorted(each.attrib)) for each in root.iter()] == [
        (each.tag, sorted(each.attrib)) for each in plain.iter()
    ]
