"""Bugs that ``tools/mutate.py --draw`` plants: each is another program, and what is drawn follows from the seed."""

import ast
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from drawn_bugs import changes, draw_changes


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("a + b", {"a - b"}),
        ("(a) * (b)", {"(a) / (b)"}),
        ("a <= b", {"a < b"}),
        ("x is None", {"x is not None"}),
        ("a and b", {"a or b"}),
        ("not a", {"a"}),
        ("-a", {"a"}),
        ("numbers[0]", {"numbers[1]"}),
        ("a = max(b)", {"a = min(b)"}),
        ("a = table.min(axis)", {"a = table.max(axis)"}),
        ("total += a", {"total -= a"}),
        ("found.append(a)", {"pass"}),
        ("a if b else c", {"a if (not (b)) else c"}),
        ("'é' if b else a + c", {"'é' if (not (b)) else a + c", "'é' if b else a - c"}),
    ],
)
def test_a_change_is_one_operator_number_or_condition(source, wrong):
    assert {change.of(source) for change in changes(source)} == wrong


@pytest.mark.parametrize(
    "source",
    [
        "raise ValueError(1 + 2)",
        "assert a > 0",
        "def f(a: int = 3) -> Literal[2]: ...",
        "f'{a + b}'",
        "'a' + b",
        "[a] + b",
    ],
)
def test_what_is_said_is_left_alone(source):
    assert changes(source) == []


def test_the_same_seed_draws_the_same_changes_and_every_one_is_python(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("def least(a, b, c):\n    if a < b and not c:\n        b -= 1\n    return min(a + 2, b)\n")
    drawn = draw_changes([path], 4, 3)
    assert drawn == draw_changes([path], 4, 3)
    assert len(drawn) == 4
    right = path.read_text()
    for _, change in drawn:
        assert ast.dump(ast.parse(change.of(right))) != ast.dump(ast.parse(right))
    every = [change.of(right) for _, change in draw_changes([path], 99, 3)]
    assert len(every) == len(set(every)) > 4
