"""How a plan looks in a notebook: a picture that keeps to itself, above the lines that ``print`` gives."""

import base64
import re
from dataclasses import replace
from html import unescape
from xml.etree import ElementTree as ET

from plans import PLAN

from heterps_compile.report.findings import Findings


def test_a_notebook_shows_the_picture_of_the_report_and_the_printed_lines():
    shown = PLAN._repr_html_()
    (address,) = re.findall(r'src="data:image/svg\+xml;base64,([\w+/=]+)"', shown)
    assert base64.b64decode(address).decode() == Findings(PLAN).graph().svg
    assert unescape(re.findall(r"<pre[^>]*>(.*)</pre>", shown, re.DOTALL)[0]) == str(PLAN)


def test_nothing_of_a_model_is_more_than_text():
    hostile = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
    stages = tuple(replace(stage, device=hostile, layers=(hostile, *stage.layers)) for stage in PLAN.stages)
    shown = replace(PLAN, model=hostile, stages=stages)._repr_html_()
    found = [(element.tag, sorted(element.attrib)) for element in ET.fromstring(shown).iter()]  # noqa: S314
    assert found == [("div", ["class"]), ("style", []), ("img", ["alt", "src", "style"]), ("pre", ["style"])]
