"""Modules drawn out of the hunt's grammar, with fixed seeds, on every backend: nothing goes wrong without a word."""

import copy
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from hunt import Hunt
from hunting.description import Description, Input, Output, Step, from_json
from hunting.draw import draw_module
from hunting.judge import compare, judge_whole, observe_plain
from hunting.observe import taken_apart
from hunting.shrink import shrink


def findings(backend, seeds):
    hunt = Hunt((backend,), with_fresh=True, with_shrink=False)
    hunt.try_batch(seeds)
    assert hunt.drawn == len(seeds)
    assert hunt.kinds[backend, "equal"] > len(seeds) // 3  # what is refused proves little
    return hunt.findings


@pytest.mark.slow
def test_modules_on_torch():
    assert findings("torch", range(40)) == {}


@pytest.mark.slow
def test_modules_on_onnxruntime():
    assert findings("onnxruntime", range(4)) == {}


@pytest.mark.slow
def test_modules_on_jax():
    assert findings("jax", range(4)) == {}


def test_the_same_seed_draws_the_same_module():
    drawn = draw_module(17)
    assert drawn == draw_module(17) != draw_module(18)
    assert from_json(drawn.to_json()) == drawn


LINEAR = Step("linear", (0,), (("bias", True), ("kind", "plain"), ("out", 4)))
REVERSED = Step("custom_backward", (1,), (("kind", "reverse"),))
ROUGH = Step("unary", (2,), (("kind", "round"),))


def module(*steps):
    return Description(3, (Input("float", (4, 8)),), steps, Output("value", len(steps)), training=True, stages=1)


@pytest.mark.parametrize(
    ("part", "call", "told"),
    [("results", 0, "forward, call 1"), ("gradients", 1, "gradients, call 2"), ("scored", 0, "scoring, call 1")],
)
def test_one_part_in_a_thousand_is_a_finding(part, call, told):
    described = module(LINEAR)
    plain = observe_plain(described)
    seen = copy.deepcopy(plain.seen)
    assert compare(described, "torch", seen, plain.seen, as_described=True) is None
    for array in getattr(seen[call], part).values():
        np.multiply(array, 1.001, out=array)
    assert compare(described, "torch", seen, plain.seen, as_described=True).kind == told


def test_what_a_module_itself_makes_of_the_seventh_digit_is_no_finding():
    described = module(LINEAR, Step("scalar", (1,), (("by", 3), ("kind", "mul"))), ROUGH)
    plain, moved = observe_plain(described), observe_plain(described, noise=9)
    assert compare(described, "torch", moved.seen, plain.seen, as_described=True) is None


def test_a_module_shrinks_as_long_as_it_shows_the_fault():
    whole = module(LINEAR, REVERSED, Step("unary", (2,), (("kind", "tanh"),)))
    small = shrink(whole, lambda smaller: any(step.op == "custom_backward" for step in smaller.steps), tries=20)
    assert [(step.op, step.args) for step in small.steps] == [("custom_backward", (0,))]


def test_a_module_by_itself_is_judged_too():
    assert judge_whole(module(LINEAR), "torch", with_fresh=False).kind == "equal"


def test_results_are_taken_apart_by_the_way_to_each():
    found = dict(taken_apart({"a": (1, [2]), "b": None}))
    assert list(found.values()) == [1, 2, None]
    assert list(found) == [
        (("key", "a"), ("place", 0)),
        (("key", "a"), ("place", 1), ("place", 0)),
        (("key", "b"),),
    ]
