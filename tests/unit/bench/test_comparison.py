"""Methods compared: a row each, the bound beside them, and a chart that escapes every name."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from light_models import path

from heterps_compile.bench.compare_methods import compare_methods
from heterps_compile.bench.comparison import Comparison
from heterps_compile.cost.problem import MethodResult
from heterps_compile.errors import UnknownNameError
from heterps_compile.report.pictures.method_bars import method_bars

RESULTS = (
    MethodResult("exact", 2.0, 10, 0.1),
    MethodResult("greedy", 3.0, 5, 0.01),
    MethodResult("brute", float("inf"), 0, 0.0, "too large"),
)
SAMPLE = Comparison("model", 3, 2, 2.0, "USD", "cost", 8, RESULTS)
SVG = "{http://www.w3.org/2000/svg}"


def test_the_chart_has_a_bar_for_every_plan_and_the_bound_as_a_line_on_each() -> None:
    chart = ET.fromstring(method_bars(SAMPLE).svg)  # noqa: S314 - our own text
    bars = [float(r.get("width", "0")) for r in chart.findall(f"{SVG}rect")[2:]]  # behind the paper and the legend
    assert bars[0] / bars[1] == pytest.approx(2 / 3, abs=1e-3)
    assert len(bars) == 2
    marks = [float(mark.get("x1", "0")) for mark in chart.findall(f"{SVG}line")]
    assert marks == [pytest.approx(140 + bars[0], abs=0.1)] * 2
    assert "no plan" in [text.text for text in chart.findall(f"{SVG}text")]


def test_a_hostile_name_is_text() -> None:
    chart = ET.fromstring(method_bars(replace(SAMPLE, model="</text><script>x</script>\x1b")).svg)  # noqa: S314 - as above
    assert not chart.findall(f".//{SVG}script")


def test_every_method_meets_the_bound_or_says_why_it_has_no_plan() -> None:
    comparison = compare_methods(path("squeezenet"), methods=["exact", "greedy", "gpu-only", "brute"])
    assert [row.method for row in comparison.results] == ["exact", "greedy", "gpu-only", "brute"]
    exact, greedy, gpu, brute = comparison.results
    assert exact.value == pytest.approx(comparison.bound)
    assert comparison.bound <= greedy.value <= gpu.value
    assert "its limit is" in brute.fault


def test_an_unknown_method_is_told_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="'greedy'"):
        compare_methods(tmp_path / "no.onnx", methods=["gredy"])
