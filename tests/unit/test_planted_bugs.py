"""The list of bugs that ``tools/mutate.py`` plants fits the sources."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUGS = tomllib.loads((ROOT / "tools" / "planted_bugs.toml").read_text("utf-8"))["bug"]


def test_every_line_that_is_made_wrong_stands_where_the_list_says_once():
    places = [(bug["path"], bug["old"]) for bug in BUGS]
    assert [
        place for place in places if (ROOT / "heterps_compile" / place[0]).read_text("utf-8").count(place[1]) != 1
    ] == []
    assert [bug["path"] for bug in BUGS if bug["old"] == bug["new"]] == []


def test_the_tests_to_begin_with_are_there():
    assert [name for bug in BUGS for name in bug["tests"] if not (ROOT / "tests" / name).exists()] == []
