"""Modules drawn out of the hunt's grammar, with fixed seeds, on every backend: nothing goes wrong without a word."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from hunt import Hunt
from hunting.description import Description, Input, Output, Step, from_json
from hunting.draw import draw_module
from hunting.judge import judge_whole
from hunting.table import OPS

import heterps_compile

# every kind of layer is in these modules; those of torch have every row of the grammar but `masked`, which is rare
ON_TORCH = (20, 7, 178, 108, 72, 84, 96, 102, 170, 282, 137, 40, 33, 171)
ON_OTHERS = (40, 33, 96, 171, 122)
LAYERS = {
    "attention", "bilinear", "conv", "dropout", "embedding", "linear", "nested", "norm", "own_parameter", "pool",
    "prelu", "recurrent",
}  # fmt: skip
RARE = {"masked"}


def hunted(backend, seeds):
    hunt = Hunt((backend,), with_fresh=True, with_shrink=False)
    hunt.try_batch(seeds)
    assert hunt.drawn == len(seeds)
    assert hunt.kinds[backend, "equal"] > len(seeds) // 3  # what is refused proves little
    assert hunt.kinds[backend, "refused"] > 0
    return hunt.findings


def drawn_ops(seeds):
    return {step.op for seed in seeds for step in draw_module(seed).steps}


def test_the_seeds_draw_every_kind_of_layer_and_on_torch_every_row():
    assert drawn_ops(ON_OTHERS) >= LAYERS
    assert drawn_ops(ON_TORCH) >= set(OPS) - RARE


@pytest.mark.slow  # a hunt of some modules
def test_modules_on_torch():
    assert hunted("torch", ON_TORCH) == {}


@pytest.mark.slow  # other backends
@pytest.mark.parametrize("backend", ["onnxruntime", "jax"])
def test_modules_on_other_backends(backend):
    assert hunted(backend, ON_OTHERS) == {}


def test_the_same_seed_draws_the_same_module():
    drawn = draw_module(17)
    assert drawn == draw_module(17) != draw_module(18)
    assert from_json(drawn.to_json()) == drawn


LINEAR = Step("linear", (0,), (("bias", True), ("kind", "plain"), ("out", 4)))


def module(*steps):
    return Description(3, (Input("float", (4, 8)),), steps, Output("value", len(steps)), training=True, stages=1)


COUNTS = Step("buffer", (1,), (("kind", "count_used"),))


def doubled(tensor):
    with torch.no_grad():
        tensor.mul_(2)


def saved_with_other_weights(compiled):
    save, weight = compiled.save, next(compiled.stages[0].parameters())

    def other(*args):
        doubled(weight)
        save(*args)
        weight.detach().mul_(0.5)

    compiled.__dict__["save"] = other


def state_forgotten(stage, *_):
    for name, tensor in stage.state_dict().items():
        if name.endswith(".k"):
            tensor.fill_(1)


def one_part_in_a_hundred(stage, given, results):
    return tuple(result * 1.01 for result in results)


FRESH = "forward, call 1 in a fresh process"
PLANTED = {
    "forward, call 1": lambda compiled: compiled.stages[0].register_forward_hook(one_part_in_a_hundred),
    "gradients, call 1": lambda compiled: next(compiled.stages[0].parameters()).register_hook(lambda found: 0 * found),
    "forward, call 2": lambda compiled: compiled.stages[0].register_forward_pre_hook(state_forgotten),
    "traceback in run": lambda compiled: compiled.stages[0].register_forward_hook(lambda *_: {}["nothing"]),
    FRESH: saved_with_other_weights,
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if kind == FRESH else kind for kind in PLANTED]
)
def test_a_fault_that_is_planted_after_verification_is_found(monkeypatch, kind):
    compile_rightly = heterps_compile.compile

    def compile_wrongly(*args, **options):
        compiled = compile_rightly(*args, **options)
        PLANTED[kind](compiled)
        return compiled

    monkeypatch.setattr(heterps_compile, "compile", compile_wrongly)
    described = replace(module(LINEAR, COUNTS), stages=1)
    assert judge_whole(described, "torch", with_fresh="fresh" in kind).kind == kind
