"""``tools/mutate.py`` on a package of two functions: what is tested is killed, the rest survives or is reported."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from wording import names

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from killed_shares import Record

TOOLS = Path(__file__).parents[2] / "tools"
FILES = {
    "heterps_compile/__init__.py": "",
    "heterps_compile/sums.py": "def total(a, b):\n    return a + b\n\n\ndef untested(a, b):\n    return a - b\n",
    "tests/unit/test_sums.py": "from heterps_compile.sums import *\ndef test_total():\n    assert total(2, 3) == 5\n",
    "pyproject.toml": "[tool.pytest.ini_options]\nmarkers = ['slow']\n",
    "tools/planted_bugs.toml": "\n".join(
        f"[[bug]]\ntitle = '{title}'\npath = '{path}'\nold = '{old}'\nnew = '{new}'\ntests = ['unit']"
        for title, path, old, new in (
            ("total: a sum -> a difference", "products.py", "a * b", "a / b"),
            ("total: a sum -> a product", "sums.py", "a + b", "a * b"),
        )
    ),
}


@pytest.mark.slow  # imports the libraries in three processes
def test_bugs_are_killed_survive_or_have_to_be_planted_again(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for tool in ("mutate", "drawn_bugs", "killed_shares", "planted_bugs", "relevant_tests", "tried_bugs"):
        shutil.copy(TOOLS / f"{tool}.py", tmp_path / "tools")
    as_author = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "two functions")):
        subprocess.run([*as_author, *words], cwd=tmp_path, check=True)

    def mutate(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "tools/mutate.py", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    planted = mutate("--quick")
    assert planted.returncode == 1, planted.stderr
    assert "make test     total: a sum -> a product (sums.py) tests/unit/test_sums.py::test_total" in planted.stdout
    assert names(planted.stderr, "a difference", "products.py")

    drawn = mutate("--draw", "9", "--write", "shares.json")
    assert drawn.returncode == 0, drawn.stderr
    folder = Record.read(tmp_path / "shares.json").folders["."]
    assert len(folder.killed) == 1
    assert [line.partition(" ")[2] for line in folder.survived] == ["sums.py:6: return a - b  ->  return a + b"]

    (tmp_path / "tests/unit/test_sums.py").write_text("def test_total():\n    assert 2 + 3 == 5\n")
    subprocess.run([*as_author, "commit", "-qam", "test nothing"], cwd=tmp_path, check=True)
    later = mutate("--draw", "9", "--against", "shares.json")
    assert later.returncode == 0, later.stderr  # one loss is no proof
    assert "was killed, survives: " in later.stdout
