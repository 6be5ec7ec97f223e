"""Bugs that ``tools/mutate.py --draw`` plants: each is another program, drawn by the seed, known in another commit.

The shares of them that tests kill, per folder, compared with those of before; and which tests are run.
"""

import ast
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from drawn_bugs import changes, draw_changes
from killed_shares import FolderShare, Record, fallen, lost_bugs
from relevant_tests import RelevantTests, sources


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("a + b", {"a - b"}),
        ("a <= b", {"a < b"}),
        ("x is None", {"x is not None"}),
        ("a and b", {"a or b"}),
        ("not a", {"a"}),
        ("total += a", {"total -= a"}),
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


LEAST = "def least(a, b, c):\n    if a < b and not c:\n        b -= 1\n    return min(a + 2, b)\n"
MOST = "def most(a, b):\n    return max(a, b - 1)\n"


def test_the_same_seed_draws_the_same_bugs_and_every_one_is_python():
    drawn = draw_changes({"a.py": LEAST}, 4, 3)
    assert drawn == draw_changes({"a.py": LEAST}, 4, 3)
    assert len(drawn) == 4
    every = [bug.change.of(LEAST) for bug in draw_changes({"a.py": LEAST}, 99, 3)]
    assert len(every) == len(set(every)) > 4
    for wrong in every:
        assert ast.dump(ast.parse(wrong)) != ast.dump(ast.parse(LEAST))


def test_a_smaller_draw_is_part_of_a_larger_one_and_of_one_with_more_code():
    """Bugs keep their keys and their order where lines move and files come elsewhere."""

    def keys(texts: dict[str, str], number: int) -> set[str]:
        return {bug.key for bug in draw_changes(texts, number, 0)}

    assert keys({"a/a.py": LEAST}, 3) < keys({"a/a.py": LEAST}, 6)
    assert keys({"a/a.py": LEAST}, 3) == keys({"a/a.py": "import b\n\n" + LEAST}, 3)
    both = {"a/a.py": LEAST, "b/b.py": MOST}
    of_a, of_b = len(changes(LEAST)), len(changes(MOST))
    assert keys(both, of_a + of_b) == keys({"a/a.py": LEAST}, of_a) | keys({"b/b.py": MOST}, of_b)


def record(**folders: str) -> Record:
    """Return a record; a letter is a bug: capital where it was killed."""
    shares = {
        name: FolderShare([c.lower() for c in bugs if c.isupper()], [f"{c} in {name}" for c in bugs if c.islower()])
        for name, bugs in folders.items()
    }
    return Record(seed=0, asked=9, commit="", timed_out=0, cut_short=0, cpu_s_per_bug=1.0, folders=shares)


def test_a_share_falls_where_more_bugs_are_lost_than_chance_allows():
    before = record(cost="ABCDEFgh", ir="IJ")
    assert fallen(before, before) == []
    assert fallen(before, record(cost="ABCDefgh", ir="Ij")) == []
    assert lost_bugs(before, record(cost="ABCDefgh", ir="Ij")) == ["e in cost", "f in cost", "j in ir"]
    assert [said.partition(":")[0] for said in fallen(before, record(cost="AbcdefGH", ir="IJ"))] == []
    assert [said.partition(":")[0] for said in fallen(before, record(cost="Abcdefgh", ir="IJ"))] == ["cost", "all"]
    assert [said.partition(":")[0] for said in fallen(before, record(cost="Abcdgh"))] == []


def test_the_share_of_rewritten_code_falls_where_its_sample_is_worse_than_chance_allows():
    before = record(cost="ABCDEF")
    assert fallen(before, record(cost="UVWxyz")) == []
    assert [said.partition(":")[0] for said in fallen(before, record(cost="Uvwxyz"))] == ["cost", "all"]


def test_the_tests_of_a_bug_begin_with_the_mirror_of_its_file_then_those_that_use_it(tmp_path):
    files = {
        "heterps_compile/cost/rows.py": "class Rows:\n    def pull(self, share):\n        return share + 1\n",
        "passes/search.py": "def search(): ...\n",
        "tests/small_rows.py": "from heterps_compile.cost.rows import Rows\n",
        "tests/unit/cost/test_rows.py": "",
        "tests/unit/cost/test_other.py": "nothing = 0\n",
        "tests/unit/plan/test_far.py": "nothing = 0\n",
        "tests/unit/plan/test_by_words.py": "Rows().pull(share)\n",
        "tests/unit/plan/test_by_import.py": "from heterps_compile.cost import rows\nrows.Rows().pull(share)\n",
        "tests/property/test_by_helper.py": "import small_rows\nsmall_rows.Rows().pull(share)\n",
        "tests/unit/test_planted_bugs.py": "Rows().pull(share)\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "heterps_compile" / "passes").symlink_to("../passes")
    assert {path for path, _ in sources(tmp_path)} == {"cost/rows.py", "passes/search.py"}
    tests = RelevantTests(tmp_path)
    asked = tests.files("cost/rows.py", 3)
    assert asked[:4] == [
        "unit/cost/test_rows.py",
        "unit/plan/test_by_import.py",
        "property/test_by_helper.py",
        "unit/plan/test_by_words.py",
    ]
    assert set(asked[4:]) == {"unit/cost/test_other.py", "unit/plan/test_far.py"}
    assert tests.within(["unit/cost"], "cost/rows.py", 3) == ["unit/cost/test_rows.py", "unit/cost/test_other.py"]
