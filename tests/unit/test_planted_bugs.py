"""The list of bugs that ``tools/mutate.py`` plants fits the sources; one that no longer does is reported."""

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from planted_bugs import Bug, read_bugs

ROOT = Path(__file__).parents[2]
BUGS, GONE = read_bugs()


def test_every_concept_has_one_title_which_says_what_goes_wrong():
    titles = Counter(each.title for each in [*BUGS, *GONE])
    assert [title for title, count in titles.items() if count > 1] == []
    assert [bug.title for bug in BUGS if not (": " in bug.title and " -> " in bug.title)] == []
    assert [bug.title for bug in BUGS if bug.path in bug.title or Path(bug.path).name in bug.title] == []


def test_what_is_gone_has_a_reason():
    assert [each.title for each in GONE if not each.reason] == []


def test_every_bug_can_be_planted_and_leaves_python():
    assert {bug.title: said for bug in BUGS if (said := bug.misfit(ROOT))} == {}
    for bug in BUGS:
        right = (ROOT / "heterps_compile" / bug.path).read_text("utf-8")
        assert bug.new != bug.old, bug.title
        compile(right.replace(bug.old, bug.new), bug.path, "exec")


def test_the_tests_to_begin_with_exist():
    assert {bug.title: lost for bug in BUGS if (lost := bug.lost_tests(ROOT))} == {}


def test_a_bug_whose_place_is_gone_is_reported(tmp_path):
    source = tmp_path / "heterps_compile" / "ir" / "graph.py"
    source.parent.mkdir(parents=True)
    source.write_text("a = b + 1\na = b + 2\n")

    def misfit(path: str, old: str) -> str:
        return Bug("sum: plus -> minus", path, old, "", ["unit/ir"]).misfit(tmp_path)

    assert misfit("ir/graph.py", "+ 1") == ""
    assert "ir/graph.py" in misfit("ir/graph.py", "+ 3")
    assert "2" in misfit("ir/graph.py", "b +")
    assert "ir/layers.py" in misfit("ir/layers.py", "+ 1")
    assert Bug("sum: plus -> minus", "ir/graph.py", "+ 1", "", ["unit/ir"]).lost_tests(tmp_path) == ["unit/ir"]
