"""What ``print`` and ``repr`` show of a plan."""

from dataclasses import replace
from typing import Any, cast

from plans import PLAN

from heterps_compile.compiled_model import CompiledModel
from heterps_compile.plan.plan import plan_in_lines

MANY = replace(
    PLAN, stages=tuple(replace(PLAN.stages[i % 2], index=i, layers=(f"fc{i}",)) for i in range(300))
)  # as many stages as nobody wants to read


def test_a_plan_is_printed_in_a_few_lines():
    assert str(PLAN).splitlines() == [
        "model            ctr, inference, batch 64, 3 layers in 2 stages",
        "  stage 0        12 x cpu, 4 ms: emb (1)",
        "  stage 1        1 x v100, 3 ms: fc1 … fc2 (2)",
        "steady state     16,000 samples/s, a batch every 4 ms, bubble 1.92 % (floor 1,000 samples/s, held here)",
        "one batch alone  7,111 samples/s, step 9 ms, bubble 56.4 %",
        "price            2.90 USD/h, 0.0503 USD per million samples (steady state)",
        "proven           no plan that keeps these 3 layers in this order is more than 0.69 % cheaper; "
        "in any order of them none is more than 4.66 % cheaper",
        "verified         largest difference 1.5e-07, 2.5e-07 of the output's scale",
    ]


def test_ten_lines_are_enough_for_any_plan():
    lines = plan_in_lines(MANY, "out").splitlines()
    assert len(lines) == 10
    assert lines[1:4] == [
        "  stage 0        12 x cpu, 4 ms: fc0 (1)",
        "  1 to 298       1788 x cpu, 149 x v100: 298 layers",
        "  stage 299      1 x v100, 3 ms: fc299 (1)",
    ]
    assert lines[-1] == "folder           out"


def test_a_repr_is_one_line():
    assert repr(PLAN) == "Plan('ctr', inference, 12 x cpu | 1 x v100, 2.90 USD/h)"
    assert repr(MANY).startswith("Plan('ctr', inference, 12 x cpu | 1 x v100 | 12 x cpu | 297 more, ")


def test_what_was_not_verified_is_said():
    assert "verified         no (--no-verify)" in str(replace(PLAN, verification=None))


def test_names_reach_a_terminal_escaped():
    hostile = replace(PLAN, model="a\x1b[31m\nb" + "x" * 300)
    assert "\x1b" not in str(hostile) + repr(hostile)
    assert str(hostile).splitlines()[0].startswith(r"model            a\x1b[31m\nbx")
    assert len(repr(hostile)) < 120


def test_a_compiled_model_is_printed_as_its_plan():
    compiled = CompiledModel(PLAN, (), signature=cast(Any, None))
    assert str(compiled) == str(PLAN)
    assert repr(compiled) == f"CompiledModel({PLAN!r})"
