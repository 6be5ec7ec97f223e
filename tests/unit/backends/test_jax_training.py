"""Stages of jax of PyTorch models in training mode: gradients, running statistics, dropout.

How near is near enough: in float64 every gradient is PyTorch's to rounding, parameter by parameter. In float32 a
gradient may be off from that one by 1e-6 of its largest element, or, where rounding alone does more (the bias before
a normalisation of few elements, whose gradients cancel), three times as far as PyTorch's own float32 gradient is.
"""

import copy
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax import numpy as jnp
from staged_jax import BACKEND, by_storage
from torch import Tensor, nn
from torch_models import Built, cut_into, gpt2, skip_net, small_ctrdnn, thin_resnet50

import heterps_compile
from heterps_compile.backends.jax.export import export_stablehlo
from heterps_compile.backends.jax.ops.reduce import reduce_l2
from heterps_compile.backends.jax.stage import JaxStage
from heterps_compile.backends.torch.without_dropout import WithoutDropout
from heterps_compile.errors import BackendError
from heterps_compile.frontends.torch_fx import import_torch
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import Partition

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:onnxscript"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
]
# of the steps of descent; from its random weights a ResNet multiplies rounding a hundredfold in every step of 1e-3
RATES = {"ctrdnn": 0.05, "skip": 0.05, "gpt2": 0.05, "resnet_50": 1e-5}
ROUNDING_64 = {"ctrdnn": 1e-12, "skip": 1e-12, "gpt2": 1e-12, "resnet_50": 1e-10}


def skip() -> Built:
    module, inputs = skip_net(training=True)
    return module, inputs, {}


MODELS = {"ctrdnn": small_ctrdnn, "skip": skip, "gpt2": gpt2, "resnet_50": thin_resnet50}


@cache
def trained_in_four(name: str) -> "Trained":
    """Return a model in float64 in four stages, compiled once for all tests; what changes it takes a copy."""
    with jax.enable_x64(True):
        return Trained(name, 4, torch.float64)


class Trained:
    """A model in training mode, its stages, and a step of each."""

    def __init__(self, name: str, count: int, dtype: torch.dtype) -> None:
        model, args, kwargs = MODELS[name]()
        self.model = model.train().to(dtype)
        self.graph = import_torch(
            self.model,
            tuple(as_dtype(value, dtype) for value in args),
            {key: as_dtype(value, dtype) for key, value in kwargs.items()},
        )
        self.inputs = BACKEND.example_inputs(self.graph, seed=1)
        self.partition = cut_into(self.graph, count)
        self.stages = BACKEND.build(self.graph, self.partition)
        self.step = jax.jit(jax.value_and_grad(self.run, has_aux=True))

    def theirs(self, dtype: torch.dtype) -> tuple[float, dict[str, Tensor]]:
        """Return PyTorch's loss and gradients by storage, in some precision, of the model as it is now."""
        model, call = copy.deepcopy(self.model).to(dtype), self.graph.source.call
        args, kwargs = call.unbind({key: as_dtype(value, dtype) for key, value in self.inputs.items()})
        with WithoutDropout():
            loss = loss_of([v for v in call.disassemble(model(*args, **kwargs)) if isinstance(v, Tensor)])
        loss.backward()
        found = {self.storage(n): p.grad for n, p in model.named_parameters() if p.grad is not None}
        return loss.item(), found

    def storage(self, name: str) -> str:
        names = self.graph.parameters
        if name in names:
            return names[name].storage
        return next(names[home].storage for home, tied in self.graph.source.companions.items() if name in tied)

    def run(self, weights: Any, held: Any, key: Any) -> tuple[Any, Any]:
        values, updates = {name: jnp.asarray(value.numpy()) for name, value in self.inputs.items()}, []
        for cut, stage, fixed, trained in zip(self.partition.stages, self.stages, held, weights, strict=True):
            outputs, new = stage.step({**fixed, **trained}, *(values[n] for n in cut.inputs), key=key)
            values.update(zip(cut.outputs, outputs, strict=True))
            updates.append(new)
        return loss_of([values[name] for name in self.graph.outputs if name in values]), updates

    def ours(self, params: Sequence[Mapping[str, Any]] | None = None, key: Any = None) -> tuple[float, Any, Any]:
        """Return loss, gradients by storage, and the new values of what is updated, a dict a stage."""
        held = [stage.params for stage in self.stages] if params is None else params
        weights = [{n: a for n, a in p.items() if n in s.weights} for p, s in zip(held, self.stages, strict=True)]

        (loss, updates), gradients = self.step(weights, held, key)
        return float(loss), by_storage(self.graph, gradients), updates


def as_dtype(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def loss_of(outputs: Sequence[Any]) -> Any:
    return sum((value**2).mean() for value in outputs)


def off(found: Any, exact: Tensor) -> float:
    """Return the largest difference relative to the parameter's largest gradient, or as it is where that is zero."""
    difference, scale = np.abs(np.asarray(found, np.float64) - exact.double().numpy()).max(), exact.abs().max().item()
    return float(difference / scale if scale > 1e-12 else difference)  # a bias before a normalisation has none


@pytest.mark.slow  # other models, compiled whole and in stages
@pytest.mark.parametrize("name", MODELS)
def test_every_gradient_is_pytorchs_in_float64(name: str) -> None:
    allowed, trained = ROUNDING_64[name], trained_in_four(name)
    with jax.enable_x64(True):
        loss, gradients, _ = trained.ours()
    their_loss, theirs = trained.theirs(torch.float64)
    assert loss == pytest.approx(their_loss, rel=allowed)
    assert gradients.keys() == theirs.keys()
    assert {n: off(gradients[n], exact) for n, exact in theirs.items() if off(gradients[n], exact) > allowed} == {}


@pytest.mark.slow  # other models, compiled whole and in stages
@pytest.mark.parametrize("name", MODELS)
def test_weights_and_running_statistics_after_five_steps_are_pytorchs(name: str) -> None:
    rate, allowed, trained = RATES[name], ROUNDING_64[name], trained_in_four(name)
    model = copy.deepcopy(trained.model)
    with jax.enable_x64(True):
        graph, params = trained.graph, [dict(stage.params) for stage in trained.stages]
        for _ in range(5):
            _, gradients, updates = trained.ours(params)
            for held, stage, new in zip(params, trained.stages, updates, strict=True):
                assert set(new) == set(stage.updated)
                held.update(new)
                for n in stage.weights:
                    held[n] = held[n] - rate * gradients[graph.parameters[n].storage]
    optimizer, call = torch.optim.SGD(model.parameters(), lr=rate), graph.source.call
    for _ in range(5):
        optimizer.zero_grad()
        args, kwargs = call.unbind(trained.inputs)
        with WithoutDropout():
            loss_of([v for v in call.disassemble(model(*args, **kwargs)) if isinstance(v, Tensor)]).backward()
        optimizer.step()
    state = model.state_dict()
    ours = {name: np.asarray(array) for held in params for name, array in held.items() if name in state}
    assert len(ours) > len(state) / 2
    for n, array in ours.items():
        np.testing.assert_allclose(array, state[n].numpy(), rtol=allowed, atol=allowed, err_msg=n)


def normed(*layers: nn.Module) -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), *layers).train(), (torch.randn(3, 2, 5, 5),)


def build(
    model: nn.Module, inputs: tuple[Tensor, ...], count: int = 1
) -> tuple[Graph, Partition, tuple[JaxStage, ...]]:
    graph = import_torch(model, inputs)
    partition = cut_into(graph, count)
    return graph, partition, BACKEND.build(graph, partition)


def test_running_statistics_are_given_beside_the_outputs_and_nothing_changes() -> None:
    model, inputs = normed()
    _, _, (stage,) = build(model, inputs)
    before = {name: np.asarray(array) for name, array in stage.params.items()}
    outputs, new = stage.step(stage.params, inputs[0].numpy())
    assert set(new) == set(stage.updated) == {"1.num_batches_tracked", "1.running_mean", "1.running_var"}
    assert all(np.array_equal(array, before[name]) for name, array in stage.params.items())
    assert model[1].num_batches_tracked == 0
    with torch.no_grad():
        np.testing.assert_allclose(outputs[0], model(*inputs), atol=1e-6)
    for name, array in new.items():
        np.testing.assert_allclose(array, model.state_dict()[name], rtol=1e-6, atol=1e-7)


def test_a_batch_norm_without_scale_or_statistics_normalises_by_the_batch() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3, affine=False, track_running_stats=False)).train()
    x = torch.randn(5, 3)
    _, _, (stage,) = build(model, (x,))
    outputs, new = stage.step(stage.params, x.numpy())
    np.testing.assert_allclose(outputs[0], model(x), atol=1e-6)
    assert new == {}


def test_a_dynamic_batch_is_normalised_at_every_size() -> None:
    model, (x,) = normed(nn.Dropout2d(0.5))
    graph = import_torch(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    (stage,) = BACKEND.build(graph, cut_into(graph, 1))
    for size in (2, 7):
        given = torch.randn(size, 2, 5, 5)
        with torch.no_grad(), WithoutDropout():
            np.testing.assert_allclose(stage.step(stage.params, given.numpy())[0][0], model(given), atol=1e-6)
        dropped = stage.step(stage.params, given.numpy(), key=jax.random.key(0))[0][0]
        gone = np.asarray(dropped == 0).all((2, 3))
        assert gone.shape == (size, 4)
        assert 0 < gone.sum() < gone.size


def dropping(rate: float = 0.25, count: int = 1) -> tuple[Graph, Partition, tuple[JaxStage, ...]]:
    return build(
        nn.Sequential(nn.Identity(), nn.Dropout(rate), nn.ReLU(), nn.Dropout(rate)), (torch.ones(40, 50),), count
    )


def test_a_key_drops_so_many_elements_and_scales_the_others() -> None:
    _, _, (stage,) = dropping()
    (y,) = stage(np.ones((40, 50), np.float32), key=jax.random.key(3))
    values, counts = np.unique(np.asarray(y).round(4), return_counts=True)
    assert values.tolist() == [0, pytest.approx(16 / 9, abs=1e-4)]
    assert counts[1] / 2000 == pytest.approx(0.75**2, abs=0.04)


def test_the_same_key_gives_the_same_mask_and_another_one_another() -> None:
    _, _, (stage,) = dropping()
    x = np.ones((40, 50), np.float32)
    one, same, other = (np.asarray(stage(x, key=jax.random.key(seed))[0]) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).mean() > 0.2
    with jax.enable_x64(False):
        np.testing.assert_array_equal(jax.jit(stage.function)(stage.params, x, key=jax.random.key(1))[0], one)


@pytest.mark.slow  # other models, compiled whole and in stages
@pytest.mark.parametrize("name", ["skip", "gpt2"])
def test_masks_do_not_depend_on_where_the_model_is_cut(name: str) -> None:
    whole, staged = (Trained(name, count, torch.float32) for count in (1, 4))
    key = jax.random.key(11)
    assert sum(stage.draws for stage in staged.stages) >= 1
    (loss, gradients, _), (expected, exact, _) = staged.ours(key=key), whole.ours(key=key)
    assert loss == pytest.approx(expected, rel=1e-6)
    assert expected != pytest.approx(whole.ours()[0], rel=1e-3)  # without a key nothing is dropped
    for storage, gradient in exact.items():
        assert np.abs(gradients[storage] - gradient).max() <= 2e-6 * np.abs(gradient).max(), storage


def test_a_stage_that_drops_is_not_called_without_a_key() -> None:
    _, _, (stage,) = dropping()
    with pytest.raises(BackendError, match=r"key=jax.random.key"):
        stage(np.ones((40, 50), np.float32))
    with pytest.raises(BackendError, match="StableHLO"):
        export_stablehlo(stage, [np.ones((40, 50), np.float32)])


@pytest.mark.slow  # torch.export takes seconds
def test_a_compiled_model_that_drops_runs_with_keys_of_the_seeded_generator_and_says_how_it_was_verified() -> None:
    module = nn.Sequential(nn.Linear(50, 50), nn.Dropout(0.25), nn.Linear(50, 50), nn.Dropout(0.5))
    x = torch.ones(40, 50)
    ways = {"mode": "training", "method": "greedy", "min_stages": 2}

    def ran(seed: int) -> np.ndarray:
        torch.manual_seed(seed)
        found = compiled.run(x)
        return np.asarray(found.detach() if isinstance(found, Tensor) else found)

    for backend in ("jax", "cpu=jax,gpu=torch"):
        pool = "heterps-paper"
        compiled = heterps_compile.compile(module.train(), (x,), backend=backend, cluster=pool, pins=PINS, **ways)
        assert [note for note in compiled.plan.notes if "verified with nothing dropped: this model drops at" in note]
        np.testing.assert_array_equal(ran(1), ran(1))
        assert (ran(1) != ran(2)).mean() > 0.2
        assert (ran(1) == 0).mean() == pytest.approx(0.5, abs=0.06)
    alone = heterps_compile.compile(module, (x,), backend="torch", **ways)
    assert not [note for note in alone.plan.notes if "nothing dropped" in note]


PINS = {"linear": "cpu-core", "linear_1": "v100"}


def test_written_stages_train_as_those_in_memory(tmp_path: Path) -> None:
    model, inputs = normed(nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(36, 2))
    graph, partition, stages = build(model, inputs, 2)
    read_back = BACKEND.read(tmp_path, BACKEND.write(graph, stages, partition.stages, tmp_path), partition.stages)
    assert [(s.updated, s.draws) for s in read_back] == [(s.updated, s.draws) for s in stages]
    value, key = jnp.asarray(inputs[0].numpy()), jax.random.key(5)
    for ours, theirs in zip(read_back, stages, strict=True):
        params = {
            name: array.astype(np.int32) if array.dtype == np.int64 else array for name, array in ours.params.items()
        }
        (outputs, new), (expected, moved) = (
            ours.step(params, value, key=key),
            theirs.step(theirs.params, value, key=key),
        )
        np.testing.assert_allclose(outputs[0], expected[0], atol=1e-6)
        assert new.keys() == moved.keys()
        assert all(np.allclose(new[name], moved[name], atol=1e-6) for name in moved)
        (value,) = expected
    source = (tmp_path / "stage_0_jax.py").read_text("ascii")
    assert "def stage(params, input_1):\n" in source or "def stage(params, input_1, *, key):\n" in source
    assert "'1.running_mean': " in source


@pytest.mark.parametrize(
    ("layer", "op"),
    [
        (nn.AlphaDropout(0.5), "aten.alpha_dropout"),
        (nn.RReLU(), "aten.rrelu"),
        (nn.InstanceNorm1d(6, track_running_stats=True), "aten.instance_norm"),
    ],
)
def test_what_has_no_translation_is_refused_by_name(layer: nn.Module, op: str) -> None:
    with pytest.raises(BackendError, match=rf"stage 0\b.*{op}.*model.eval"):
        build(nn.Sequential(nn.Linear(4, 4), layer).train(), (torch.randn(2, 6, 4),))


def test_dropout_between_recurrent_layers_is_refused() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(3, 4, num_layers=2, dropout=0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm(x)[0]

    with pytest.raises(BackendError, match=r"stage 0\b.*aten.lstm"):
        build(Recurrent().train(), (torch.randn(5, 2, 3),))


class Attention(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.5, **self.options)


ROWS = torch.tensor([[True, True, False], [False, False, False], [True, False, True]])


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"is_causal": True}, marks=pytest.mark.slow, id="is_causal"),  # a mask like those below
        pytest.param({"scale": 0.3}, marks=pytest.mark.slow, id="scale"),
        {"attn_mask": ROWS},
        pytest.param(
            {"attn_mask": torch.linspace(-1, 1, 9).reshape(3, 3)}, marks=pytest.mark.slow, id="attn_mask of numbers"
        ),
        pytest.param({"enable_gqa": True}, marks=pytest.mark.slow, id="enable_gqa"),
    ],
    ids="-".join,
)
def test_attention_with_dropout_is_written_out(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 3, 5), *(torch.randn(2, 2 if "enable_gqa" in options else 4, 3, 5) for _ in range(2))
    model = Attention(**options)
    _, _, (stage,) = build(model, (q, k, v))
    with WithoutDropout():
        expected = model(q, k, v)
    given = [value.numpy() for value in (q, k, v)]
    np.testing.assert_allclose(stage.step(stage.params, *given)[0][0], expected, atol=1e-6)
    keys = jax.random.split(jax.random.key(0), 4000)
    dropped = jax.jit(jax.vmap(lambda key: stage.step(stage.params, *given, key=key)[0][0]))(keys)
    np.testing.assert_allclose(dropped.mean(0), expected, atol=0.15)
    assert not np.allclose(dropped[0], dropped[1])


def test_the_gradient_of_a_norm_of_zero_is_zero() -> None:
    x = np.array([[0.0, 0.0], [3.0, 4.0]], np.float32)
    gradient = jax.grad(lambda values: reduce_l2(values, (1,)).sum())(x)
    assert np.asarray(gradient).tolist() == [[0.0, 0.0], np.float32([0.6, 0.8]).tolist()]


@pytest.mark.parametrize("flat", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_pool_that_tells_the_places_of_the_largest_has_the_gradient_of_the_values(flat: bool) -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 6)
            self.pool = (nn.MaxPool1d if flat else nn.MaxPool2d)(2, return_indices=True)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            made = self.first(x).view(4, 2, 3) if flat else self.first(x).view(4, 1, 2, 3)
            values, places = self.pool(made)
            return values * values, places

    compiled = heterps_compile.compile(
        Pooled().train(), (torch.randn(4, 6),), backend="jax", mode="training", method="greedy"
    )
    assert compiled.plan.verification is not None
    assert compiled.plan.verification.gradients > 0


def test_a_tensor_that_is_changed_after_its_detached_self_was_read_has_no_gradient_through_that() -> None:
    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made = self.first(x) * 1.0
            result: torch.Tensor = made + made.detach().t().mean(1)
            made.mul_(0.9)
            return result

    compiled = heterps_compile.compile(
        Detached().train(), (torch.randn(4, 6),), backend="jax", mode="training", method="greedy"
    )
    assert compiled.plan.verification is not None
    assert compiled.plan.verification.gradients > 0


class Branching(nn.Module):
    """Takes one of two layers, by the sign of what the first gives."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.high, self.low = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        taken: Tensor = torch.cond(h.sum() > 0, lambda v: self.high(v).relu(), lambda v: self.low(v).sin(), (h,))
        return taken


@pytest.mark.slow  # torch.export takes seconds
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of torch.cond's own tracing
def test_both_branches_of_a_pytorch_model_have_its_outputs_and_gradients(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Branching()
    graph = import_torch(model.train(), (torch.randn(3, 4),))
    partition = cut_into(graph, 2)
    built = BACKEND.build(graph, partition)
    files = BACKEND.write(graph, built, partition.stages, tmp_path)
    for stages in (built, BACKEND.read(tmp_path, files, partition.stages)):
        modules = [BACKEND.as_module(stage, torch.device("cpu")) for stage in stages]
        for sign in (10.0, -10.0):
            given = torch.full((3, 4), sign) @ model.first.weight.detach()  # so that the first layer gives that sign
            theirs = model(given)
            wanted = dict(zip(dict(model.named_parameters()), torch.autograd.grad(
                theirs.sum(), list(model.parameters()), allow_unused=True), strict=True))  # fmt: skip
            values = {graph.inputs[0]: given}
            for stage, module in zip(stages, modules, strict=True):
                outputs = module(*(values[name] for name in stage.inputs))
                values.update(zip(stage.outputs, outputs, strict=True))
            ours = values[graph.outputs[0]]
            torch.testing.assert_close(ours, theirs)
            for module in modules:
                module.zero_grad()
            ours.sum().backward()
            found = {name: p.grad for module in modules for name, p in module.named_parameters()}
            for name, gradient in wanted.items():
                torch.testing.assert_close(found[name], torch.zeros_like(found[name]) if gradient is None else gradient)
