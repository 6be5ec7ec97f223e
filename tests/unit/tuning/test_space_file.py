"""Spaces as their users write them: what is read, and what is refused in one sentence."""

import tomllib

import numpy as np
import pytest

from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.tuning.parameters import Choice, Float, Integer
from heterps_compile.tuning.space import Space, split_parts
from heterps_compile.tuning.space_file import parse_space, read_space

WHOLE = """
[train]
lr = { float = [1e-4, 1e-1], log = true }
epochs = 3
batch = { integer = [256, 8192], log = true, when = { "model.depth" = [1, 2, 3] } }

[train.optimizer]
exclusive = true
adam = {}

[train.optimizer.sgd]
momentum = { float = [0.0, 0.99] }

[model]
depth = { integer = [1, 6] }
size = { choice = ["s", "m", "l"] }

[model.dropout]
optional = true
when = { "model.size" = ["m", "l"] }
rate = { float = [0.1, 0.5] }

[plan]
micro_batches = { choice = [1, 2, 4, 8] }

[[forbidden]]
"train.optimizer" = "sgd"
"model.depth" = [5, 6]
"""


def space(text: str) -> Space:
    return parse_space(tomllib.loads(text))


def told(text: str) -> str:
    with pytest.raises(InputError) as error:
        space(text)
    assert "\n" not in str(error.value)
    return str(error.value)


def drawn(of: Space, count: int = 200, seed: int = 0) -> list[dict]:
    random = np.random.default_rng(seed)
    return [dict(of.config_at(of.draw(random))) for _ in range(count)]


def test_groups_become_parameters_with_conditions():
    names = [parameter.name for parameter in space(WHOLE).parameters]
    assert sorted(names) == [
        "model.depth",
        "model.dropout",
        "model.dropout.rate",
        "model.size",
        "plan.micro_batches",
        "train.batch",
        "train.epochs",
        "train.lr",
        "train.optimizer",
        "train.optimizer.sgd.momentum",
    ]
    by_name = space(WHOLE).by_name
    assert by_name["train.lr"] == Float("train.lr", 1e-4, 1e-1, log=True)
    assert by_name["train.epochs"] == Choice("train.epochs", (3,))
    assert by_name["model.depth"] == Integer("model.depth", 1, 6)
    assert by_name["train.optimizer"] == Choice("train.optimizer", ("adam", "sgd"))


def test_what_is_drawn_keeps_every_condition():
    configs = drawn(space(WHOLE))
    for config in configs:
        assert ("train.optimizer.sgd.momentum" in config) == (config["train.optimizer"] == "sgd")
        assert ("model.dropout" in config) == (config["model.size"] in ("m", "l"))
        assert ("model.dropout.rate" in config) == config.get("model.dropout", False)
        assert ("train.batch" in config) == (config["model.depth"] < 4)
        assert not (config["train.optimizer"] == "sgd" and config["model.depth"] in (5, 6))
        space(WHOLE).check(config)
    assert {config["model.depth"] for config in configs} == {1, 2, 3, 4, 5, 6}
    assert {config["model.size"] for config in configs} == {"s", "m", "l"}
    assert 0.3 < np.mean([config["train.lr"] < 10**-2.5 for config in configs]) < 0.7  # half of it, on a log scale


def test_a_configuration_and_its_vector_are_one():
    whole = space(WHOLE)
    for config in drawn(whole, 50):
        again = dict(whole.config_at(whole.vector_of(config)))
        assert {k: v for k, v in again.items() if not isinstance(v, float)} == {
            k: v for k, v in config.items() if not isinstance(v, float)
        }
        assert [again[k] for k, v in config.items() if isinstance(v, float)] == pytest.approx(
            [v for v in config.values() if isinstance(v, float)]
        )


def test_a_configuration_falls_into_its_parts():
    config = {"train.optimizer.sgd.momentum": 0.9, "train.lr": 0.1, "model.depth": 2, "plan.micro_batches": 4}
    assert split_parts(config) == {
        "train": {"optimizer.sgd.momentum": 0.9, "lr": 0.1},
        "model": {"depth": 2},
        "plan": {"micro_batches": 4},
    }
    with pytest.raises(InputError, match="'lr'"):
        split_parts({"lr": 0.1})


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ({"train.lr": 0.01}, "'train.optimizer'.*active"),
        ({"train.lr": 1.0, "train.optimizer": "adam"}, "'train.lr'.* 1.0\\b"),
        ({"train.lr": 0.01, "train.optimizer": "adam", "train.x": 1}, "'train.x'"),
        ({"train.lr": 0.01, "train.optimizer": True}, "'train.optimizer'.*True"),
    ],
)
def test_a_configuration_of_another_space_is_refused(config, fault):
    small = space('[train]\nlr = { float = [1e-4, 1e-1] }\noptimizer = { choice = ["adam", "sgd"] }')
    with pytest.raises(InputError, match=fault):
        small.check(config)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the space is empty; give it a parameter"),
        ("[train]", "'train' is an empty group; put parameters into it"),
        ("train = 3", "'train' is 3; it must be a table of parameters"),
        (
            "[training]\nlr = 1",
            "'training' is no part of a space; put parameters under train, model and plan; did you mean train?",
        ),
        (
            "[plan]\nmicrobatches = 2",
            "'plan.microbatches': of the plan only micro_batches, precision, replicas and schedule can be tuned; "
            "did you mean micro_batches?",
        ),
        (
            "[train]\nlr = { float = [0.1, nan] }",
            "parameter 'train.lr' runs from 0.1 to nan; both must be finite, and so must their distance",
        ),
        (
            "[train]\nlr = { float = [0.1, inf] }",
            "parameter 'train.lr' runs from 0.1 to inf; both must be finite, and so must their distance",
        ),
        (
            "[train]\nlr = { float = [0.1, 0.1] }",
            "parameter 'train.lr' runs from 0.1 to 0.1; the first must be the smaller",
        ),
        (
            "[train]\nlr = { float = [0.0, 0.1], log = true }",
            "parameter 'train.lr' runs from 0 on a logarithmic scale; it must begin above 0",
        ),
        (
            "[train]\nlr = { float = [0.1] }",
            "'train.lr': float is [0.1]; it must be two numbers, the least and the most",
        ),
        (
            "[train]\nb = { integer = [1, 2.5] }",
            "'train.b': integer is [1, 2.5]; it must be two whole numbers, the least and the most",
        ),
        (
            "[train]\nb = { integer = [true, 2] }",
            "'train.b': integer is [True, 2]; it must be two whole numbers, the least and the most",
        ),
        (
            "[train]\nlr = { float = [0.1, 1], lg = true }",
            "'train.lr' has the key 'lg'; with float go log and when; did you mean log?",
        ),
        (
            "[train]\nlr = { float = [0.1, 1], choice = [1] }",
            "'train.lr' has both float and choice; it can be one of them",
        ),
        ("[train]\nlr = { float = [0.1, 1], log = 1 }", "'train.lr': log is 1; it must be true or false"),
        ("[train]\nlr = [0.1, 1]", "'train.lr' is a list; write { choice = [0.1, 1] }"),
        ("[train]\no = { choice = [] }", "parameter 'train.o' has 0 choices; expected 1 to 10,000"),
        ("[train]\no = { choice = [1, 1.0] }", "parameter 'train.o' has the choice 1.0 twice"),
        (
            "[train]\no = { choice = [2026-01-01] }",
            "'train.o': datetime.date(2026, 1, 1) is no value; values are texts, numbers, true and false",
        ),
        (
            '[train]\n"a b" = 1',
            "'train': 'a b' is no name; names have up to 64 letters, digits, dashes and underscores and "
            "begin with a letter",
        ),
        (
            "[train.o]\nexclusive = true\noptional = true\na = 1",
            "'train.o' is exclusive and optional; put the exclusive group into an optional one",
        ),
        (
            '[train]\na = { float = [0, 1], when = { "train.b" = 1 } }',
            "parameter 'train.a' is active when 'train.b' has a value, and there is no such parameter",
        ),
        (
            '[train]\nb = { choice = [1, 2] }\na = { float = [0, 1], when = { "train.b" = 3 } }',
            "parameter 'train.a' is active when 'train.b' is 3, and 3 is none of its values",
        ),
        (
            '[train]\nb = { choice = [1, 2] }\na = { float = [0, 1], when = { "train.b" = { above = 1 } } }',
            "'train.b': {'above': 1} is no value; values are texts, numbers, true and false",
        ),
        ("[train]\nb = { ordered = [1, 2] }", "'train.b.ordered' is a list; write { choice = [1, 2] }"),
        (
            '[train]\na = { float = [0, 1], when = { "train.a" = 1 } }',
            "parameter 'train.a' is active depending on itself; break the circle",
        ),
        (
            "[train]\nn = { integer = [1, 9] }\n"
            'b = { float = [0, 1], when = { "train.n" = [5, 6] } }\n'
            'a = { float = [0, 1], when = { "train.b" = 0.5, "train.n" = [7, 8] } }',
            "parameter 'train.a' can never be active: what its condition asks for contradicts itself",
        ),
        (
            f"[train]\na = {{ float = [0, {10**400}] }}",
            "'train.a': a number of very many digits is beyond 2**53, up to which floats tell whole numbers apart",
        ),
        ("[[forbidden]]\n[train]\na = 1", 'forbidden is {}; write { "train.optimizer" = "sgd" }'),
        (
            '[train]\na = 1\n[[forbidden]]\n"train.c" = 1',
            "it is forbidden that 'train.c' has a value, and there is no such parameter",
        ),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence(text, sentence):
    assert told(text) == sentence


def test_a_condition_that_contradicts_another_above_it_is_refused():
    nested = """
    [train.optimizer]
    exclusive = true
    adam = {}
    [train.optimizer.sgd]
    momentum = { float = [0, 1], when = { "train.optimizer" = "adam" } }
    """
    assert told(nested) == (
        "parameter 'train.optimizer.sgd.momentum' can never be active: what its condition asks for contradicts itself"
    )


def test_a_space_that_forbids_everything_is_told_when_drawn_from():
    none = space('[train]\na = { choice = [1, 2] }\nb = { float = [0, 1] }\n[[forbidden]]\n"train.a" = [1, 2]')
    with pytest.raises(InfeasibleError, match=r"1,000.*\b1\b"):
        none.draw(np.random.default_rng(0))


def test_files_that_are_none_are_told_with_their_name(tmp_path):
    for name, text, fault in (
        ("a.json", "{}", r"\.toml"),
        ("a.toml", "[train", "TOML"),
        ("b.toml", "[train]\na = { float = [1, 0] }", r"'train.a'.*\b1\b.*\b0\b"),
    ):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(InputError, match=rf"{name}.*{fault}"):
            read_space(path)
    with pytest.raises(InputError, match=r"no\.toml.*No such file"):
        read_space(tmp_path / "no.toml")
    endless = tmp_path / "endless.toml"
    endless.symlink_to("/dev/zero")
    with pytest.raises(InputError, match=r"endless\.toml.*device"):
        read_space(endless)
