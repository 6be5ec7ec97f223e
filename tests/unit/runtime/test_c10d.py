"""What is private in PyTorch is used as it was looked at."""

import re
import tomllib
from pathlib import Path

from heterps_compile.runtime import c10d

ROOT = Path(__file__).parents[3]


def test_private_names_are_tried_in_the_version_that_is_pinned_and_the_range_is_that_of_the_package():
    """A new version here: look at every name of the table again, then say so there."""
    (pinned,) = re.findall(r"^torch==(\d+\.\d+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]["torch"]
    (least,) = [text.removeprefix("torch>=") for text in needed if text.startswith("torch>=")]
    said = " ".join(str(c10d.__doc__).split())
    assert f"tried in PyTorch {pinned}," in said
    assert f"({least} and later)" in said
