"""The scripts of ``examples/`` run as they stand, each in this process, and print what their users come for."""

import re
import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"

PRINTED = {
    "practitioner": [
        r"^ +0  cpu-core .*emb",
        r"^ +1  v100 .*linear",
        r"^on v100 alone: \S+ USD per million samples, 1\.\d\d times as much$",
        r"^the stages of the folder differ from the model by at most (0|\de-0[6-9])$",
    ],
    "library_author": [
        r"^\[-{11}\] reading$",
        r"^\[#{11}\] done$",
        r"^{'stages': {0: '1 x cpu-core'}, 'price_per_hour': [\d.]+, 'notes': \(\)}$",
        r"^a throughput of .* cannot be reached: .*; the best reachable throughput is ",
        r"^cancelled; nothing was written$",
    ],
    "reviewer": [
        r"^placement  2 layers .* moved from a10g to t4$",
        r"price of a10g is 2\.02 USD/h, was 1\.01 USD/h$",
        r"^refused: the price rises by more than 5 %$",
    ],
}
"""Lines of each script, in their order."""


def test_every_script_is_tested_and_short():
    lengths = {path.stem: len(path.read_text("utf-8").splitlines()) for path in FOLDER.glob("*.py")}
    assert set(lengths) == set(PRINTED)
    assert {name: lines for name, lines in lengths.items() if lines >= 60} == {}


@pytest.mark.parametrize("name", PRINTED)
def test_a_script_runs(name, capsys):
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    out, err = capsys.readouterr()
    assert err == ""
    found = [re.search(line, out, re.MULTILINE) for line in PRINTED[name]]
    assert [line for line, there in zip(PRINTED[name], found, strict=True) if there is None] == [], out
    places = [there.start() for there in found if there is not None]
    assert places == sorted(places), out
