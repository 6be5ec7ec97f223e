"""ONNX models as torch stages: they run, train, keep the model's names, and say what they cannot."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import helper, numpy_helper
from staged_onnx import cut_evenly, largest_difference, parse, run_whole
from torch import nn

from heterps_compile.backends.torch.backend import TorchBackend
from heterps_compile.backends.torch.from_onnx import constants_of, convert_model
from heterps_compile.backends.torch.onnx_ops import table
from heterps_compile.errors import BackendError, UnsupportedOpError
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import Partition, cut_graph
from heterps_compile.runtime.in_process import run_stages

BACKEND = TorchBackend()
RNG = np.random.default_rng(3)


def model(text: str, opset: int = 18, domains: tuple[str, ...] = (), **weights: np.ndarray) -> onnx.ModelProto:
    """Return a model in ONNX's text with weights as initializers."""
    made = parse(text, opset=opset, domains=domains)
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), name) for name, a in weights.items())
    return made


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


MLP = model(
    """mlp (float[N, 6] x) => (float[N, 3] y) {
        a = MatMul(x, w1)
        b = Add(a, b1)
        c = Relu(b)
        wt = Transpose<perm = [1, 0]>(w2)
        d = MatMul(c, wt)
        e = LayerNormalization<axis = -1>(d, scale, shift)
        f = Add(e, c)
        y = Gemm<transB = 1>(f, w3, b3)
    }""",
    w1=floats(6, 5),
    b1=floats(5),
    w2=floats(5, 5),
    scale=floats(5),
    shift=floats(5),
    w3=floats(3, 5),
    b3=floats(3),
)


def whole_stage(graph: Graph) -> nn.Module:
    return convert_model(graph.source.model, constants_of(graph), outputs=graph.outputs)


def run(graph: Graph, partition: Partition, stages: Any, inputs: dict[str, Any]) -> list[Any]:
    values = run_stages(partition.stages, stages, inputs, graph.outputs)
    return [values[name] for name in graph.outputs]


def written(graph: Graph, partition: Partition, folder: Path) -> tuple[Any, ...]:
    files = BACKEND.write(graph, BACKEND.build(graph, partition), partition.stages, folder)
    return BACKEND.read(folder, files, partition.stages)


def test_stages_give_what_onnx_runtime_gives_for_arrays_and_for_tensors() -> None:
    graph = import_onnx(MLP, batch=4)
    partition = cut_evenly(graph, 3)
    stages = BACKEND.build(graph, partition)
    inputs = BACKEND.example_inputs(graph, seed=0)
    whole = BACKEND.reference(graph)(inputs)
    for given in (inputs, {name: torch.from_numpy(array) for name, array in inputs.items()}):
        staged = [value.detach().numpy() for value in run(graph, partition, stages, given)]
        assert largest_difference(staged, whole) < 1e-6


def test_gradients_of_stages_are_those_of_the_whole_and_so_are_five_steps() -> None:
    graph = import_onnx(MLP, batch=4)
    partition = cut_evenly(graph, 3)
    x, target = torch.from_numpy(floats(4, 6)), torch.from_numpy(floats(4, 3))
    whole, stages = whole_stage(graph), BACKEND.build(graph, partition)
    parts = nn.ModuleList(stages)
    optimizers = [torch.optim.SGD(module.parameters(), 0.05) for module in (whole, parts)]
    for step in range(5):
        for optimizer in optimizers:
            optimizer.zero_grad()
        nn.functional.mse_loss(whole(x)[0], target).backward()
        nn.functional.mse_loss(run(graph, partition, stages, {"x": x})[0], target).backward()
        staged = {name: p for stage in stages for name, p in stage.named_parameters()}
        for name, parameter in whole.named_parameters():
            assert parameter.grad is not None
            assert parameter.grad.abs().max() > 0, (name, step)
            torch.testing.assert_close(staged[name].grad, parameter.grad, rtol=1e-6, atol=1e-7)
        for optimizer in optimizers:
            optimizer.step()
    for name, parameter in whole.named_parameters():
        torch.testing.assert_close(staged[name], parameter, rtol=1e-6, atol=1e-7)


def test_written_stages_run_train_and_take_another_batch(tmp_path: Path) -> None:
    graph = import_onnx(MLP, batch=1)
    partition = cut_evenly(graph, 3)
    stages = written(graph, partition, tmp_path)
    source = (tmp_path / "stage_0.py").read_text()
    assert {line for line in source.splitlines() if line.startswith(("import ", "from "))} == {
        "import math",
        "from pathlib import Path",
        "import torch",
        "from torch import nn",
        "from torch.nn import functional as F",
    }
    assert "torch.matmul(x, self.w1)" in source
    assert "float32[N, 5]" in source
    for batch in (1, 7):
        inputs = {"x": floats(batch, 6)}
        staged = run(graph, partition, stages, inputs)
        assert largest_difference([v.detach().numpy() for v in staged], run_whole(MLP, inputs)) < 1e-6
    staged[0].sum().backward()
    assert all(p.grad is not None for stage in stages for p in stage.parameters())


def test_a_tensor_that_two_stages_read_is_one_tensor() -> None:
    tied = model(
        "tied (float[2, 4] x) => (float[2, 4] y) { a = MatMul(x, w)  b = Relu(a)  y = MatMul(b, w) }", w=floats(4, 4)
    )
    graph = import_onnx(tied)
    first, _, last = BACKEND.build(graph, cut_evenly(graph, 3))
    assert first.get_parameter("w") is last.get_parameter("w")


def test_what_constants_make_is_made_once_and_shapes_stay_numbers(tmp_path: Path) -> None:
    shapes = model(
        """g (float[N, 4] x) => (float[N, 2, 2] y, int64[2] s) {
            s = Shape(x)
            n = Gather<axis = 0>(s, zero)
            n1 = Unsqueeze(n, first)
            new = Concat<axis = 0>(n1, two, minus)
            ones = ConstantOfShape<value = float[1] {2.0}>(four)
            b = Mul(x, ones)
            c = Div(b, half)
            y = Reshape(c, new)
        }""",
        zero=np.array(0),
        first=np.array([0]),
        two=np.array([2]),
        minus=np.array([-1]),
        four=np.array([4]),
        half=np.float32(0.5),
    )
    graph = import_onnx(shapes, batch=3)
    partition = cut_evenly(graph, 1)
    stages = written(graph, partition, tmp_path)
    source = (tmp_path / "stage_0.py").read_text()
    assert "x.size(0)" in source
    assert "/ 0.5" in source
    assert list(stages[0].state_dict()) == ["ones"]  # a weight, made of a shape when the model was exported
    inputs = {"x": floats(5, 4)}
    staged = run(graph, partition, stages, inputs)
    assert largest_difference([v.detach().numpy() for v in staged], run_whole(shapes, inputs)) == 0


def test_a_dimension_that_is_a_multiple_of_the_batch_crosses_a_cut_and_stays_open(tmp_path: Path) -> None:
    flat = model(
        """g (float[N, 3, 4] x) => (float[N, 3, 5] y) {
            a = Reshape(x, rows)
            b = MatMul(a, w)
            c = ReduceSum(x, last)
            d = Reshape(b, images)
            y = Add(d, c)
        }""",
        rows=np.array([-1, 4]),
        w=floats(4, 5),
        last=np.array([-1]),
        images=np.array([-1, 3, 5]),
    )
    graph = import_onnx(flat, batch=1)
    partition = cut_graph(graph, [[0, 1, 2], [3, 4]])
    stages = written(graph, partition, tmp_path)
    source = (tmp_path / "stage_1.py").read_text()
    assert "# b: float32[3*N, 5]" in source
    assert "# c: float32[N, 3, 1]" in source
    for batch in (1, 6):
        inputs = {"x": floats(batch, 3, 4)}
        staged = run(graph, partition, stages, inputs)
        assert largest_difference([v.detach().numpy() for v in staged], run_whole(flat, inputs)) < 1e-6


def test_an_op_that_fixes_a_dimension_gives_source_for_that_number_alone(tmp_path: Path) -> None:
    fixed = model("g (float[N, 4] x) => (float[N, 4] y) { y = Add(x, b) }", b=floats(3, 4))
    graph = import_onnx(fixed, batch=3)
    partition = cut_evenly(graph, 1)
    (stage,) = written(graph, partition, tmp_path)
    assert "# x: float32[3, 4]" in (tmp_path / "stage_0.py").read_text()
    inputs = {"x": floats(3, 4)}
    assert largest_difference([v.detach().numpy() for v in stage(inputs["x"])], run_whole(fixed, inputs)) == 0


def test_integers_booleans_and_dropout_cross_stages() -> None:
    mixed = model(
        """g (int64[N, 3] ids, bool[N, 3] mask) => (float[N, 3, 2] y) {
            rows = Gather<axis = 0>(table, ids)
            d = Dropout(rows)
            odd = Mod(ids, two)
            flag = Cast<to = 9>(odd)
            both = And(flag, mask)
            m = Unsqueeze(both, last)
            y = Where(m, d, nothing)
        }""",
        table=floats(7, 2),
        two=np.array(2),
        last=np.array([-1]),
        nothing=np.float32(-1),
    )
    graph = import_onnx(mixed, batch=4)
    for count in (2, 4):
        partition = cut_evenly(graph, count)
        inputs = BACKEND.example_inputs(graph, seed=2)
        staged = run(graph, partition, BACKEND.build(graph, partition), inputs)
        assert largest_difference([v.detach().numpy() for v in staged], run_whole(mixed, inputs)) == 0


def test_what_is_not_in_the_table_is_told_with_op_domain_opset_and_node() -> None:
    looped = model(
        'g (float[2, 2] x) => (float[2, 2] y, float[2, 2] z) { y = Relu(x)  z = CDist<metric = "euclidean">(y, b) }',
        b=floats(2, 2),
    )
    looped.graph.node[1].domain = "com.microsoft"
    looped.graph.node[1].name = "the one"
    looped.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    graph = import_onnx(looped)
    (found,) = BACKEND.unsupported(graph)
    assert (found.node, found.op, found.domain, found.opset) == ("the one", "CDist", "com.microsoft", 1)
    assert found.describe(("onnxruntime",)) == (
        "node 'the one' is CDist (com.microsoft, opset 1): the torch backend has no such op at this opset; "
        "backends that support it: onnxruntime"
    )
    with pytest.raises(UnsupportedOpError, match=r"stage 1\b.*'the one'.*CDist"):
        BACKEND.build(graph, cut_evenly(graph, 2))


def test_an_attribute_nobody_knows_is_told() -> None:
    graph = import_onnx(model("g (float[2, 2] x) => (float[2, 2] y) { y = Relu(x) }"))
    next(iter(graph.source.model.graph)).attributes["slope"] = ir.AttrInt64("slope", 1)
    assert [found.reason for found in BACKEND.unsupported(graph)] == [
        "the torch backend does not know its attribute 'slope'"
    ]


CONTRIBUTED = (
    "(float[2, 3] x) => (float[2, 3] y) { a = Neg(x)  y = com.microsoft.Gelu(a) }",
    "(float[2, 3] x) => (float[2, 3] y) { a = Neg(x)  y = com.microsoft.FastGelu(a, b) }",
    "(float[2, 3] x) => (float[2, 3] y, float[2, 3] t)"
    "{ a = Neg(x)  y, m, d, t = com.microsoft.SkipLayerNormalization<epsilon = 0.01>(x, a, s, b, c) }",
)


@pytest.mark.parametrize("text", CONTRIBUTED)
def test_ops_of_onnx_runtimes_own_domain(text: str) -> None:
    own = model(f"g {text}", b=floats(3), s=floats(3), c=floats(3))
    own.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    graph = import_onnx(own)
    partition = cut_evenly(graph, 2)
    inputs = {"x": floats(2, 3)}
    staged = run(graph, partition, BACKEND.build(graph, partition), inputs)
    assert largest_difference([v.detach().numpy() for v in staged], run_whole(own, inputs)) < 1e-5


RANDOM = (
    "a = RandomNormal<shape = [2, 500]>()",
    "a = RandomUniform<shape = [2, 500]>()",
    "a = RandomNormalLike(x)",
    "a = RandomUniformLike(x)",
    "p = Sigmoid(x)  a = Bernoulli(p)",
    "i = Multinomial<sample_size = 500>(x)  a = Cast<to = 1>(i)",
    "a, k = Dropout(x, half, yes)",
)


@pytest.mark.parametrize("drawn", RANDOM)
def test_chance_is_pytorchs_own_and_repeats_with_its_seed(drawn: str) -> None:
    chance = model(
        f"g (float[2, 500] x) => (float[2, 500] y) {{ {drawn}  y = Add(a, x) }}",
        half=np.float32(0.5),
        yes=np.array(True),
    )
    graph = import_onnx(chance)
    partition = cut_evenly(graph, 2)
    stages = BACKEND.build(graph, partition)
    inputs = {"x": floats(2, 500)}
    runs = []
    for seed in (1, 1, 2):
        with BACKEND.reproducible(graph, seed):
            runs.append(run(graph, partition, stages, inputs)[0])
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


@pytest.fixture
def scaled_silu() -> Iterator[None]:
    """Register an op as CONTRIBUTING.md shows it, and forget it afterwards."""
    before = dict(table._TABLE)
    from heterps_compile.backends.torch.onnx_ops.table import op  # noqa: PLC0415 - these are the five lines

    @op("ScaledSiLU", since=1, domain="com.microsoft")
    def scaled_silu(x: torch.Tensor, *, alpha: float = 1.702) -> torch.Tensor:
        return x * torch.sigmoid(alpha * x)

    yield
    table._TABLE.clear()
    table._TABLE.update(before)


@pytest.mark.usefixtures("scaled_silu")
def test_a_third_party_registers_an_op_in_five_lines(tmp_path: Path) -> None:
    silu = model("g (float[2, 3] x) => (float[2, 3] y) { a = Neg(x)  y = com.microsoft.ScaledSiLU<alpha = 2.0>(a) }")
    silu.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    graph = import_onnx(silu)
    (stage,) = written(graph, cut_evenly(graph, 1), tmp_path)
    inputs = {"x": floats(2, 3)}
    negative = -np.asarray(inputs["x"])
    np.testing.assert_allclose(stage(inputs["x"])[0], negative / (1 + np.exp(-2 * negative)), rtol=1e-5)


def test_entry_points_bring_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        loaded = 0

        def load(self) -> ModuleType:
            Entry.loaded += 1
            return ModuleType("ops")

    monkeypatch.setattr(table, "entry_points", lambda group: [Entry()] if group == "heterps_compile.torch_ops" else [])
    table._load.cache_clear()
    assert table.find_op("", "Relu", 18) is not None
    assert Entry.loaded == 1
    table._load.cache_clear()


RUN_TIME = [
    ("(float[4, 1] x, int64[2] n) => (float[A, B] y) { a = Relu(x)  y = Expand(a, n) }", [4, 8]),
    ("(float[4, 6] x, int64[3] n) => (float[A, B, C] y) { a = Relu(x)  y = Expand(a, n) }", [2, 1, 6]),
    ("(float[4, 6] x, int64[2] n) => (float[A, B] y) { a = Relu(x)  y = Tile(a, n) }", [1, 2]),
    ("(float[4, 6] x, int64[4] n) => (float[A, B] y) { a = Relu(x)  y = Pad(a, n) }", [0, 1, 2, 0]),
    ("(float[4, 6] x, int64[1] n) => (float[A, 6] y) { a = Relu(x)  y = Slice(a, first, n) }", [3]),
    ("(float[4, 6] x, int64[1] n) => (float[4, B] y) { a = Relu(x)  y, z = TopK(a, n) }", [2]),
    ("(float[1] x, int64[2] n) => (float[A, B] y) { a = ConstantOfShape(n)  y = Add(a, x) }", [2, 3]),
    ("(float[4, 6] x, int64[1] n) => (int64[2, B] y) { a = Relu(x)  y = NonZero(a) }", [1]),
]


@pytest.mark.parametrize(("text", "numbers"), RUN_TIME)
def test_shapes_that_only_a_call_tells_are_read_then(text: str, numbers: list[int], tmp_path: Path) -> None:
    open_model = model(f"g {text}", first=np.array([1]))
    graph = import_onnx(open_model)
    partition = cut_evenly(graph, 1)
    inputs = BACKEND.example_inputs(graph, seed=0) | {"n": np.array(numbers)}
    given = {name: inputs[name] for name in graph.inputs}
    whole = run_whole(open_model, given)
    for stages in (BACKEND.build(graph, partition), written(graph, partition, tmp_path)):
        staged = run(graph, partition, stages, given)
        assert largest_difference([v.detach().numpy() for v in staged], whole) == 0


def test_what_depends_on_values_runs_in_memory_and_is_refused_as_source(tmp_path: Path) -> None:
    counted = model(
        "g (float[4, 1] b, float[1, 1, 4] s, float[1, 4, 4] boxes) => (int64[K, 3] y) "
        "{ y = NonMaxSuppression(boxes, s, most) }",
        most=np.array([3]),
    )
    graph = import_onnx(counted)
    partition = cut_evenly(graph, 1)
    stages = BACKEND.build(graph, partition)
    corners = np.array([[[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [5, 5, 6, 6]]], np.float32)
    scores = np.array([[[0.9, 0.8, 0.7, 0.6]]], np.float32)
    inputs = {"b": floats(4, 1), "s": scores, "boxes": corners}
    assert [v.tolist() for v in run(graph, partition, stages, inputs)] == [[[0, 0, 0], [0, 0, 2], [0, 0, 3]]]
    with pytest.raises(BackendError, match=r"stage 0\b.*NonMaxSuppression"):
        BACKEND.write(graph, stages, partition.stages, tmp_path)


def test_a_weight_that_went_missing_is_named(tmp_path: Path) -> None:
    moved = model("g (float[2, 400] x) => (float[2, 3] y) { y = MatMul(x, heavy) }", heavy=floats(400, 3))
    onnx.save(moved, tmp_path / "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    graph = import_onnx(tmp_path / "m.onnx")
    (tmp_path / "weights.bin").write_bytes(b"short")
    with pytest.raises(BackendError, match=r"stage 0\b.*'heavy'"):
        BACKEND.build(graph, cut_evenly(graph, 1))


def test_a_failing_op_is_named() -> None:
    graph = import_onnx(MLP, batch=2)
    stages = BACKEND.build(graph, cut_evenly(graph, 1))
    with pytest.raises(BackendError, match=r"stage 0\b.*MatMul"):
        stages[0](floats(2, 7))
    with pytest.raises(BackendError, match=r"stage 0\b.*\b1\b.*\b2\b"):
        stages[0](floats(2, 6), floats(2, 6))


@pytest.mark.slow  # a fresh process imports everything
def test_the_table_is_imported_for_onnx_models_alone() -> None:
    script = "import heterps_compile.backends.torch.backend, sys; print('onnx' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert shown.strip() == "False"
