"""What tracing drops of a model's backward is found, and named where it matters: in training."""

import threading

import pytest
import torch
from gradient_models import EQUAL, REFUSED, WIDTH, Middle, Reverse, hooked

import heterps_compile
from heterps_compile.errors import InputError
from heterps_compile.frontends.torch_backwards import refuse_lost_backwards, watch_backwards
from heterps_compile.frontends.torch_fx import import_torch

X = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(0))


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_lost_is_named_with_its_way_out(name: str) -> None:
    make, words = REFUSED[name]
    graph = import_torch(make().train(), (X,))
    with pytest.raises(InputError, match=words):
        refuse_lost_backwards(graph.name, graph.source.lost)


def test_what_survives_is_not_refused() -> None:
    assert {name: import_torch(make().train(), (X,)).source.lost for name, make in EQUAL.items()} == dict.fromkeys(
        EQUAL, ()
    )


def test_training_is_refused_before_the_search_and_inference_is_not() -> None:
    module, steps = Middle(Reverse.apply), []
    with pytest.raises(InputError, match=r"'Reverse'.*k = -1 reverses"):
        heterps_compile.compile(module, (X,), mode="training", observer=lambda step, _: steps.append(step))
    assert steps == []
    staged = heterps_compile.compile(module, (X,), method="greedy")
    assert torch.equal(staged.run(X), module(X))
    assert any("for inference alone: stages lack the backward of" in note for note in staged.plan.notes)


def test_a_traced_module_is_refused_for_what_its_leaves_do() -> None:
    class Tracer(torch.fx.Tracer):
        def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
            return module_qualified_name == "second"

    module = Middle(hooked)
    traced = torch.fx.GraphModule(module, Tracer().trace(module))
    graph = import_torch(traced, (X,))
    assert [one.module for one in graph.source.lost] == ["second"]


def test_an_exported_program_is_refused_for_hooks_that_can_be_seen() -> None:
    module = Middle(torch.sin)
    module.first.weight.register_hook(lambda gradient: gradient * 10)
    graph = import_torch(torch.export.export(module, (X,), strict=False))
    assert len(graph.source.lost) == 1


def test_other_threads_are_let_through_and_nothing_stays_behind() -> None:
    before = (torch.Tensor.register_hook, vars(torch.autograd.function._SingleLevelFunction).get("apply"))
    module = Middle(torch.sin)
    with watch_backwards(module) as lost:
        other = threading.Thread(target=lambda: hooked(Reverse.apply(X.clone().requires_grad_())))
        other.start()
        other.join()
    assert lost == []
    assert (torch.Tensor.register_hook, vars(torch.autograd.function._SingleLevelFunction).get("apply")) == before
    y = X.clone().requires_grad_()
    Reverse.apply(y).sum().backward()
    assert torch.equal(y.grad, -torch.ones_like(X))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_differentiating_with_torch_func_is_refused_with_what_works() -> None:
    squares = Middle(torch.func.grad(lambda t: (t**3).sum()))
    with pytest.raises(InputError, match=r"torch\.func.*torch\.autograd\.grad"):
        import_torch(squares, (X,))
