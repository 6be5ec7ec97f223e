"""Spaces of ConfigSpace: the file that the package wrote is read, and what is written is what the package writes."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from heterps_compile.errors import InputError
from heterps_compile.tuning.configspace import from_configspace, to_configspace
from heterps_compile.tuning.make_space import make_space
from heterps_compile.tuning.parameters import ABOVE, Choice, Clause, Float
from heterps_compile.tuning.space_file import read_space

WRITTEN = Path(__file__).parents[2] / "golden/tuning/configspace-1.2.2.json"
"""``ConfigurationSpace.to_json`` of ConfigSpace 1.2.2: every type, relation and kind of join that is read."""


def given() -> dict[str, Any]:
    return json.loads(WRITTEN.read_text("utf-8"))


def test_what_the_package_wrote_comes_back_as_it_was():
    ours: dict[str, Any] = to_configspace(read_space(WRITTEN))
    theirs = given()
    for written in (ours, theirs):
        written["hyperparameters"].sort(key=lambda each: each["name"])
        written["conditions"].sort(key=lambda each: each["child"])
        for each in written["hyperparameters"]:
            if "default_value" in each and isinstance(each["default_value"], float):
                each["default_value"] = pytest.approx(each["default_value"], rel=1e-9)
    assert ours == theirs


def test_what_is_read_is_written_and_read_again():
    space = read_space(WRITTEN)
    assert from_configspace(json.loads(json.dumps(to_configspace(space)))) == space
    assert space.by_name["model.other"].when == (
        (Clause("train.optimizer", "not in", ("adam",)),),
        (Clause("model.width", "below", (64,)),),
    )


def parameter(**changes: object):
    def change(space: dict) -> None:
        space["hyperparameters"][0].update(changes)

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda s: s.update(format_version=0.2),
            "the format_version is 0.2; 0.4 is read, which ConfigSpace 1.x writes",
        ),
        (parameter(type="normal_float"), "parameter 'model.depth' is of the type 'normal_float'; read are uniform_fl"),
        (parameter(type="categorical", weights=[1, 2]), "parameter 'model.depth' has weights, which no method here he"),
        (parameter(type="categorical", choices=3), "parameter 'model.depth': 3 must be a list of values"),
        (parameter(lower="1"), "parameter 'model.depth': lower and upper must be numbers, log true or false"),
        (parameter(lower=1.5), "parameter 'model.depth' runs from 1.5 to 6; both must be whole numbers"),
        (parameter(name=3), "a hyperparameter is called 3; names are texts"),
        (lambda s: s["conditions"][0].update(type="XOR"), "a condition is of the type 'XOR'; read are AND, OR, EQ, IN"),
        (lambda s: s["conditions"][0].update(child="z"), "a condition is on parameter 'z', which is not there"),
        (lambda s: s["conditions"].append(s["conditions"][0]), "parameter 'model.extra' has two conditions; join them"),
        (lambda s: s["forbiddens"][0].update(type="LT"), "something forbidden is of the type 'LT'; read are AND, EQUA"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(change, sentence):
    changed = copy.deepcopy(given())
    change(changed)
    with pytest.raises(InputError) as told:
        from_configspace(changed)
    assert str(told.value).startswith(sentence)


def test_a_forbidden_bound_cannot_be_written():
    space = make_space([Float("train.lr", 0, 1), Choice("train.a", (1, 2))], [(Clause("train.lr", ABOVE, (0.5,)),)])
    with pytest.raises(InputError, match=r"'train\.lr'.*0\.5.*ConfigSpace"):
        to_configspace(space)
