"""The tutorial: its commands are run in order in an empty folder, and what they print is what the page says."""

from pathlib import Path

import pytest
from typed_pages import check_page, commands, without_times

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


@pytest.mark.slow  # a tutorial, line by line
def test_the_tutorial_prints_what_it_says(tmp_path, pytestconfig):
    check_page(PAGE, tmp_path, update=pytestconfig.getoption("--update-golden"))


def test_the_rule_for_times_spares_every_other_number():
    said = "method     exact, placements tried 4, in 17.9 ms\ntime spent  1.11 s   \nstep 280 us, in 3 stages\n"
    assert without_times(said) == (
        "method     exact, placements tried 4, in (time)\ntime spent  (time)\nstep 280 us, in 3 stages"
    )


def test_the_tutorial_shows_every_command_of_a_reviewer():
    used = {line.split()[1] for line in commands(PAGE.read_text("utf-8")) if line.startswith("heterps-compile ")}
    assert {"click.onnx", "clusters", "show", "explain", "diff", "check", "simulate"} <= used
