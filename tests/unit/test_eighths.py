"""Slow tests of one commit: every one is in one of eight parts, and what shares a fixture stays together."""

from pathlib import Path

import pytest
from eighths import chosen_eighth

pytest_plugins = ["pytester"]

SLOW = "import pytest\npytestmark = pytest.mark.slow\n"


@pytest.fixture
def selected(pytester: pytest.Pytester):
    """Return the tests that an eighth selects, of files with slow and fast ones."""
    tests = [f"def test_{number}({{0}}): pass\n" for number in range(40)]
    shared = "@pytest.fixture(scope='module')\ndef made(): pass\n" + "".join(tests).format("made")
    pytester.makepyfile(
        alone=SLOW + "".join(tests).format(""),
        shared=SLOW + shared,
        always=f"{SLOW}@pytest.mark.kill('x')\ndef test_killed(): pass\n",
        fast="def test_fast(): pass\n",
    )
    pytester.makeini("[pytest]\npython_files = *.py\nmarkers =\n    slow\n    kill\n")

    def of(eighth: int) -> list[str]:
        words = ("--collect-only", "-q", "-p", "eighths", "-p", "no:cacheprovider", "--eighth", str(eighth))
        (finished,) = pytester.inline_run(*words).getcalls("pytest_collection_finish")
        return [item.nodeid for item in finished.session.items]

    return of


def test_eight_eighths_have_every_slow_test_once(selected):
    eighths = [selected(number) for number in range(1, 9)]
    always = {"always.py::test_killed", "fast.py::test_fast"}
    assert all(always <= set(tests) for tests in eighths)
    rest = [test for tests in eighths for test in tests if test not in always]
    assert sorted(rest) == sorted(f"{file}.py::test_{number}" for file in ("alone", "shared") for number in range(40))
    assert [sum(test.startswith("shared") for test in tests) for tests in eighths].count(40) == 1
    assert all(any(test.startswith("alone") for test in tests) for tests in eighths)


def test_a_commit_draws_its_eighth(monkeypatch, tmp_path):
    root = Path(__file__).parents[2]
    if (root / ".git").exists():
        assert chosen_eighth("commit", root) in range(1, 9)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(pytest.UsageError, match="EIGHTH=N"):
        chosen_eighth("commit", tmp_path)
    with pytest.raises(pytest.UsageError, match=r"'9'.* 1 to 8"):
        chosen_eighth("9", root)
