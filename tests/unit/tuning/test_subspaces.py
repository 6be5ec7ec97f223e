"""Disjoint parts of a space."""

import tomllib

import numpy as np
import pytest
from search_states import subspace_of

from heterps_compile.errors import InputError
from heterps_compile.tuning.parameters import Choice
from heterps_compile.tuning.space import Space
from heterps_compile.tuning.space_file import parse_space
from heterps_compile.tuning.subspaces import split_space

SVM = """
[model.kernel]
exclusive = true
[model.kernel.linear]
C = { float = [0.03125, 32768], log = true }
[model.kernel.rbf]
C = { float = [0.03125, 32768], log = true }
gamma = { float = [1e-3, 1e3], log = true }
[model.kernel.poly]
C = { float = [0.03125, 32768], log = true }
degree = { integer = [2, 15] }
"""
"""Kernels of the paper's first experiment."""


def space(text: str) -> Space:
    return parse_space(tomllib.loads(text))


def test_what_makes_no_difference_stays_together():
    parts = split_space(
        space(
            """
            [train]
            optimizer = { choice = ["adam", "adamw", "sgd"] }
            momentum = { float = [0, 1], when = { "train.optimizer" = "sgd" } }
            [model.dropout]
            optional = true
            rate = { float = [0, 1] }
            """
        )
    )
    assert [part.name for part in parts] == [
        "train.optimizer = adam or adamw, model.dropout = no",
        "train.optimizer = adam or adamw, model.dropout = yes",
        "train.optimizer = sgd, model.dropout = no",
        "train.optimizer = sgd, model.dropout = yes",
    ]
    assert "train.momentum" not in parts[0].space.by_name
    assert parts[0].space.by_name["train.optimizer"] == Choice(
        "train.optimizer",
        (
            "adam",
            "adamw",
        ),
    )


def test_numbers_do_not_split():
    (whole,) = split_space(
        space('[model]\ndepth = { integer = [1, 6] }\nw = { float = [0, 1], when = { "model.depth" = [4, 5, 6] } }')
    )
    assert whole.name == "all"


def test_every_configuration_lies_in_exactly_one_part():
    text = (
        SVM
        + '[train]\nlr = { float = [0, 1] }\n[[forbidden]]\n"model.kernel" = "poly"\n"model.kernel.poly.degree" = 2\n'
    )
    whole = space(text)
    parts = split_space(whole)
    random = np.random.default_rng(1)
    for _ in range(100):
        config = whole.config_at(whole.draw(random))
        parts[subspace_of(parts, config)].space.check(config)
        held = [
            all(c[name] == v for name, v in [("model.kernel", config["model.kernel"])])
            for c in (part.space.config_at(part.space.draw(random)) for part in parts)
        ]
        assert sum(held) == 1
    for index, part in enumerate(parts):
        for _ in range(20):
            config = part.space.config_at(part.space.draw(random))
            whole.check(config)
            assert subspace_of(parts, config) == index


def test_a_part_that_is_forbidden_is_none():
    text = SVM + '[[forbidden]]\n"model.kernel" = "linear"\n'
    assert [part.name for part in split_space(space(text))] == ["model.kernel = rbf", "model.kernel = poly"]
    with pytest.raises(InputError, match="empty"):
        split_space(space(SVM + '[[forbidden]]\n"model.kernel" = ["linear", "rbf", "poly"]\n'))


def test_too_many_parts_are_refused():
    groups = "".join(f"[model.g{i}]\noptional = true\nx = 1\n" for i in range(9))
    with pytest.raises(InputError, match="256"):
        split_space(space(groups))
