"""Torch stages in memory: they give what the whole model gives, forward and backward, and hold its own tensors."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch_models import BACKEND, REAL, Built, SkipNet, cut_before, cut_into, largest_difference, run, skip_net

from heterps_compile.frontends.torch_fx import import_torch
from heterps_compile.ir.graph import Graph


def whole_and_staged(graph: Graph, count: int, seed: int = 0) -> float:
    partition = cut_into(graph, count)
    stages = BACKEND.build(graph, partition)
    inputs = BACKEND.example_inputs(graph, seed)
    with BACKEND.reproducible(graph, seed):
        whole = BACKEND.reference(graph)(inputs)
    with BACKEND.reproducible(graph, seed):
        staged = run(graph, partition, stages, inputs)
    return largest_difference(graph, staged, whole)


def read(built: Built, *, training: bool = False) -> tuple[nn.Module, Graph]:
    model, args, kwargs = built
    model.train(training)
    return model, import_torch(model, args, kwargs)


@pytest.mark.parametrize(
    ("name", "training"),
    [
        pytest.param(name, training, marks=pytest.mark.slow if (number + training) % 2 else ())
        for number, name in enumerate(REAL)
        for training in (False, True)
    ],
)
def test_three_stages_give_the_whole_models_outputs(name: str, training: bool) -> None:
    _, graph = read(REAL[name](), training=training)
    assert whole_and_staged(graph, 3) <= 1e-5


@pytest.mark.parametrize("name", REAL)
def test_a_run_returns_what_the_model_returns_structure_included(name: str) -> None:
    built = REAL[name]()
    model, graph = read(built)
    partition = cut_into(graph, 3)
    values = run(graph, partition, BACKEND.build(graph, partition), graph.source.call.bind(*built[1:]))
    ours, theirs = graph.source.call.assemble(values), model(*built[1], **built[2])
    assert type(ours) is type(theirs)
    leaves = torch.utils._pytree.tree_leaves
    torch.testing.assert_close(leaves(ours), leaves(theirs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", REAL)
def test_stages_hold_the_models_own_parameters_under_its_own_names(name: str) -> None:
    model, graph = read(REAL[name]())
    held: dict[str, Tensor] = {}
    for stage in BACKEND.build(graph, cut_into(graph, 3)):
        held.update(stage.state_dict(keep_vars=True))
    own = model.state_dict(keep_vars=True)
    assert set(held) == set(own)
    assert [name for name in own if held[name] is not own[name]] == []


def test_a_tied_weight_goes_by_each_of_its_names() -> None:
    _, graph = read(REAL["gpt2"]())
    partition = cut_into(graph, 3)
    first, _, last = BACKEND.build(graph, partition)
    assert partition.replicated == ("lm_head.weight",)
    assert graph.tied == {"lm_head.weight": ("lm_head.weight", "transformer.wte.weight")}
    assert first.get_parameter("transformer.wte.weight") is last.get_parameter("lm_head.weight")


@pytest.mark.parametrize("training", [False, True])
def test_a_traced_module_with_a_skip_ties_two_inputs_two_outputs_and_a_buffer(training: bool) -> None:
    module, inputs = skip_net(training=training)
    graph = import_torch(module, inputs)
    partition = cut_into(graph, 4)
    assert [(len(s.inputs), len(s.outputs)) for s in partition.stages] == [(2, 1), (1, 2), (1, 1), (2, 2)]
    assert whole_and_staged(graph, 4) <= 1e-6


@pytest.mark.parametrize("training", [False, True])
def test_staged_gradients_are_the_whole_models(training: bool) -> None:
    module, inputs = skip_net(training=training)
    graph = import_torch(module, inputs)

    def gradients(forward: Any) -> dict[str, Tensor]:
        module.zero_grad()
        with BACKEND.reproducible(graph, 5):
            result = forward()
            (result["logits"].square().mean() + result["pair"][0].sum()).backward()
        return {name: parameter.grad.clone() for name, parameter in module.named_parameters()}

    partition = cut_into(graph, 4)
    stages = BACKEND.build(graph, partition)
    call = graph.source.call
    whole = gradients(lambda: module(*inputs))
    staged = gradients(lambda: call.assemble(run(graph, partition, stages, call.bind(inputs, {}))))
    assert whole.keys() == staged.keys()
    for name, gradient in whole.items():
        assert (gradient - staged[name]).abs().max() <= 1e-6 * gradient.abs().max(), name


def test_the_structure_of_a_traced_modules_result_is_kept() -> None:
    module, inputs = skip_net()
    graph = import_torch(module, inputs)
    partition = cut_into(graph, 3)
    values = run(graph, partition, BACKEND.build(graph, partition), graph.source.call.bind(inputs, {}))
    result = graph.source.call.assemble(values)
    assert list(result) == ["logits", "pair", "three"]
    assert result["three"] == 3
    assert result["pair"][1] is None
    torch.testing.assert_close(result["logits"], module(*inputs)["logits"])


def test_reading_and_building_leave_the_users_module_as_it_was() -> None:
    module, inputs = skip_net(training=True)
    before, code = copy.deepcopy(module.state_dict()), module.code
    graph = import_torch(module, inputs)
    BACKEND.build(graph, cut_into(graph, 3))
    after = module.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert module.code == code
    assert all(part.training for part in module.modules())
    assert not any("val" in node.meta for node in module.graph.nodes)


def test_verification_in_training_mode_puts_buffers_and_random_numbers_back() -> None:
    module, inputs = skip_net(training=True)
    graph = import_torch(module, inputs)
    before, state = module.norm.running_mean.clone(), torch.random.get_rng_state()
    with BACKEND.reproducible(graph, 0):
        module(*inputs)
        assert not torch.equal(module.norm.running_mean, before)
    assert torch.equal(module.norm.running_mean, before)
    assert int(module.norm.num_batches_tracked) == 0
    assert torch.equal(torch.random.get_rng_state(), state)


def test_training_the_stages_trains_the_model() -> None:
    module, inputs = skip_net(training=True)
    graph = import_torch(module, inputs)
    partition = cut_into(graph, 3)
    stages = BACKEND.build(graph, partition)
    parameters = {id(p): p for stage in stages for p in stage.parameters()}.values()
    before = module.mix.weight.detach().clone()
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    call = graph.source.call
    call.assemble(run(graph, partition, stages, call.bind(inputs, {})))["logits"].sum().backward()
    optimizer.step()
    assert not torch.equal(module.mix.weight, before)
    assert int(module.norm.num_batches_tracked) == 1


def test_a_copy_of_a_stage_has_parameters_of_its_own() -> None:
    module, inputs = skip_net()
    graph = import_torch(module, inputs)
    stage = BACKEND.build(graph, cut_into(graph, 1))[0]
    twin = copy.deepcopy(stage)
    expected = [result.clone() for result in stage(*inputs)]
    with torch.no_grad():
        stage.get_parameter("mix.weight").zero_()
    torch.testing.assert_close(list(twin(*inputs)), expected)
    assert not torch.equal(stage(*inputs)[0], expected[0])


class ChangesInPlace(nn.Module):
    """``earlier`` is read before the change, in another stage; ``x`` and the later ``y`` after it."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        earlier = y + 1
        y.add_(10)
        return y * 3, earlier


def test_what_a_stage_changes_in_place_other_stages_see_unchanged() -> None:
    x = torch.arange(4.0)
    for model in (ChangesInPlace(), fx.symbolic_trace(ChangesInPlace())):
        graph = import_torch(model, (x,))
        adding = next(n.name for n in graph.nodes if n.name in graph.source.writes)
        later = graph.nodes[-1].name
        for partition in (cut_before(graph, adding), cut_before(graph, later), cut_before(graph, adding, later)):
            out = run(graph, partition, BACKEND.build(graph, partition), {graph.inputs[0]: x})
            assert [out[name].tolist() for name in graph.outputs] == [[30, 36, 42, 48], [1, 3, 5, 7]]
    assert x.tolist() == [0, 1, 2, 3]


class WritesIntoASlice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 1
        y[:, 0].fill_(7.0)
        return y * 2


def test_nodes_that_share_memory_that_changes_stay_in_one_stage() -> None:
    x = torch.ones(2, 3)
    for model in (WritesIntoASlice(), fx.symbolic_trace(WritesIntoASlice())):
        graph = import_torch(model, (x,))
        assert len({v.split(":then:")[0] for v in graph.values if ":then:" in v}) >= 2
        out = run(graph, p := cut_into(graph, 1), BACKEND.build(graph, p), {graph.inputs[0]: x})
        assert out[graph.outputs[0]].tolist() == [[14, 2, 2], [14, 2, 2]]


class ChangesItsInput(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x[0] = 5.0
        return x + 1


def test_stages_do_not_change_the_callers_tensors() -> None:
    graph = import_torch(ChangesItsInput(), (torch.zeros(2),))
    x = torch.zeros(2)
    (out,) = run(graph, p := cut_into(graph, 1), BACKEND.build(graph, p), {"x": x}).values()
    assert (out.tolist(), x.tolist()) == ([6, 1], [0, 0])
    assert graph.source.notes == ("ChangesItsInput changes its input 'x' in place; its stages leave it as it is",)


class TwoTowersOneNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.norm(x) + self.norm(y).sin()


def test_a_batch_norm_that_runs_twice_in_training_is_not_torn_apart() -> None:
    x, y = torch.randn(8, 4), torch.randn(8, 4) + 3
    for model in (TwoTowersOneNorm(), fx.symbolic_trace(TwoTowersOneNorm())):
        graph = import_torch(model, (x, y))
        assert any(":then:" in name for name in graph.values)
        stages = BACKEND.build(graph, p := cut_into(graph, 2))
        twin = copy.deepcopy(model)
        out = run(graph, p, stages, dict(zip(graph.inputs, (x, y), strict=True)))
        torch.testing.assert_close(out[graph.outputs[0]], twin(x, y))
        torch.testing.assert_close(model.norm.running_mean, twin.norm.running_mean)


class NoGradInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.a(x)
        with torch.no_grad():
            scale = self.b(hidden).sigmoid()
        return hidden * scale


def test_what_runs_without_gradients_in_the_model_does_so_in_the_stages() -> None:
    torch.manual_seed(0)
    model, x = NoGradInside(), torch.randn(5, 3)
    graph = import_torch(model, (x,))
    model(x).sum().backward()
    whole = model.a.weight.grad.clone()
    assert model.b.weight.grad is None
    model.zero_grad()
    run(graph, p := cut_into(graph, 2), BACKEND.build(graph, p), {"x": x})[graph.outputs[0]].sum().backward()
    torch.testing.assert_close(model.a.weight.grad, whole)
    assert model.b.weight.grad is None


class ManyKinds(nn.Module):
    """Integers and booleans cross, a scalar size crosses."""

    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        positive, order = x > 0, ids.argsort()
        rows = x.shape[0]
        return x.where(positive, 0.0), x[order] * rows, positive.sum()


@pytest.mark.parametrize("count", [2, 3, 4])
def test_integers_and_booleans_cross(count: int) -> None:
    args = (torch.randn(4, 2), torch.tensor([3, 1, 2, 0]))
    for model in (ManyKinds(), fx.symbolic_trace(ManyKinds())):
        graph = import_torch(model, args)
        partition = cut_into(graph, count)
        out = run(graph, partition, BACKEND.build(graph, partition), graph.source.call.bind(args, {}))
        for ours, theirs in zip(graph.source.call.assemble(out), model(*args), strict=True):
            assert torch.equal(ours, theirs)


def test_seeded_inputs_stay_in_their_tables_and_repeat() -> None:
    _, graph = read(REAL["bert"]())
    one, same, other = (BACKEND.example_inputs(graph, seed) for seed in (0, 0, 1))
    assert torch.equal(one["input_ids"], same["input_ids"])
    assert not torch.equal(one["input_ids"], other["input_ids"])
    assert int(one["input_ids"].max()) < 100
    assert one["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1]]


class IdsAsFloats(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x[:, 0].long()) * x[:, 1:]


def test_ids_that_travel_as_floats_keep_the_examples_values() -> None:
    x = torch.tensor([[4.0, 0.5, 0.5], [0.0, 1.0, 1.0]])
    graph = import_torch(IdsAsFloats(), (x,))
    assert torch.equal(BACKEND.example_inputs(graph, 0)["x"], x)


def test_a_module_that_is_a_stages_namesake_does_not_disturb_it() -> None:
    model = nn.Module()
    for name in ("inputs", "outputs", "body", "_slots", "index", "parameter_names"):
        model.add_module(name, nn.Linear(2, 2))
    model.forward = lambda x: model._modules["inputs"](model._modules["body"](x))
    graph = import_torch(model, (torch.ones(1, 2),))
    (stage,) = BACKEND.build(graph, cut_into(graph, 1))
    torch.testing.assert_close(stage(torch.ones(1, 2))[0], model.forward(torch.ones(1, 2)))
    assert set(stage.state_dict()) == {"inputs.weight", "inputs.bias", "body.weight", "body.bias"}


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch copies its own trees so
@pytest.mark.parametrize("functional", [False, True])
def test_an_exported_program_in_training_runs_in_stages_and_updates_its_buffers(functional: bool) -> None:
    torch.manual_seed(1)
    model, inputs = SkipNet().train(), (torch.randint(0, 11, (4, 3)), torch.rand(4, 3))
    twin = copy.deepcopy(model)
    program = torch.export.export(model, inputs, strict=False)
    graph = import_torch(program.run_decompositions({}) if functional else program)
    assert whole_and_staged(graph, 2) <= 1e-6
    run(graph, p := cut_into(graph, 2), BACKEND.build(graph, p), graph.source.call.bind(inputs, {}))
    twin(*inputs)
    state = {name: graph.source.tensors[f"norm.{name}"] for name in ("running_mean", "num_batches_tracked")}
    torch.testing.assert_close(state["running_mean"], twin.norm.running_mean)
    assert int(state["num_batches_tracked"]) == 1
