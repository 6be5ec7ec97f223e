"""`tools/prose.py` sees a figure rise, names the lines that raise it, and never records a rise."""

import sys
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from prose import compare, find_first_lines, lower

SOURCE = '''"""What the module is: not counted."""


class Table:
    """Rows, and what is in them."""

    def size(self) -> int:
        """Return the number of rows.

        Not what is in them.
        """
        """So many."""

    def add(self, row: str) -> None:
        r"""Add a row."""


def total() -> int:
    return "Nobody"
'''


def first_lines(tmp_path, source):
    path = tmp_path / "heterps_compile/ir/graph.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return find_first_lines(tmp_path)


def test_every_risen_figure_is_named_with_its_lines(tmp_path):
    lines = first_lines(tmp_path, SOURCE)
    assert [line.text for line in lines["ir"]] == [
        "Rows, and what is in them.", "Return the number of rows.", "Add a row.",
    ]  # fmt: skip
    holds = {"private_percent": 33.3, "mean_words": 4.7, "return_percent": 33.3}
    assert compare(lines, {"ir": holds}) == []
    (risen,) = compare(lines, {"ir": holds | {"private_percent": 33.2}})
    assert all(word in risen for word in ("ir", "33.3", "33.2", "graph.py:5: Rows, and what is in them."))
    assert "graph.py:8" not in risen
    (risen,) = compare(lines, {"ir": holds | {"return_percent": 0.0}})
    assert "graph.py:8: Return the number of rows." in risen
    (risen,) = compare(lines, {"ir": holds | {"mean_words": 4.6}})
    assert "graph.py:5" in risen
    assert "graph.py:14" not in risen


def test_an_update_lowers_figures_alone(tmp_path):
    lines = first_lines(tmp_path, SOURCE)
    recorded = {"ir": {"private_percent": 20.0, "mean_words": 9.0, "return_percent": 40.0}}
    assert tomllib.loads(lower(lines, recorded)) == {
        "ir": {"private_percent": 20.0, "mean_words": 4.7, "return_percent": 33.3}
    }
