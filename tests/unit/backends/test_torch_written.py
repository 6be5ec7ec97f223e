"""Torch stages on disk: Python source that runs with torch alone, weights without pickle, read back equal."""

import ast
import importlib.util
import json
import py_compile
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, fx, nn
from torch_models import BACKEND, REAL, Built, cut_into, largest_difference, run, skip_net

from heterps_compile.errors import BackendError
from heterps_compile.frontends.torch_fx import import_torch
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import Partition

# Runs in a fresh process with nothing but torch: loads every stage, feeds it by name, saves what comes out.
QUICK = ("small_ctrdnn", "ctrdnn", "gpt2")  # the others repeat what is in them, and are together in one process
RUNNER = """
import importlib.util, json, sys
from pathlib import Path
import torch
from safetensors.torch import load_file, save_file

torch.set_num_threads(1)
for name, count, wanted in json.loads(sys.argv[1]):
    folder = Path(name)
    values = dict(load_file(folder / "inputs.safetensors"))
    for index in range(count):
        spec = importlib.util.spec_from_file_location(f"stage_{index}", folder / f"stage_{index}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        stage = module.load()
        torch.manual_seed(index)
        values.update(zip(stage.outputs, stage(*(values[name] for name in stage.inputs))))
    assert not any(name.startswith("heterps") for name in sys.modules)
    save_file({name: values[name].detach().contiguous().clone() for name in wanted}, folder / "outputs.safetensors")
"""


def written(graph: Graph, count: int, folder: Path) -> tuple[Partition, list[list[str]]]:
    partition = cut_into(graph, count)
    return partition, BACKEND.write(graph, BACKEND.build(graph, partition), partition.stages, folder)


def read_model(built: Built) -> Graph:
    model, args, kwargs = built
    return import_torch(model.eval(), args, kwargs)


def check_fresh_process(graphs: Mapping[str, Graph], folder: Path) -> None:
    """Run written models, one after the other, in one process that has seen none of them."""
    given, told = {}, []
    for name, graph in graphs.items():
        (folder / name).mkdir()
        partition, _ = written(graph, 3, folder / name)
        given[name] = BACKEND.example_inputs(graph, 0)
        save_file(given[name], folder / name / "inputs.safetensors")
        told.append((str(folder / name), len(partition.stages), list(dict.fromkeys(graph.outputs))))
    command = [sys.executable, "-B", "-c", RUNNER, json.dumps(told)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name, graph in graphs.items():
        found = load_file(folder / name / "outputs.safetensors")
        assert largest_difference(graph, found, BACKEND.reference(graph)(given[name])) <= 1e-5, name


# Whatever else is installed here is not there; torch itself goes without numpy where it has to.
TORCH_ALONE = """
import importlib.util, sys
import torch

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {*sys.stdlib_module_names, "torch"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocker())
spec = importlib.util.spec_from_file_location("stage_1", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
tensors = {name: torch.zeros(shape, dtype=dtype) for name, (kind, dtype, shape) in module.TENSORS.items()}
print(len(module.Stage1(tensors).state_dict()) > 0)
"""


@pytest.mark.slow  # a fresh process imports everything
def test_a_stage_is_imported_and_built_where_nothing_but_torch_is_installed(tmp_path: Path) -> None:
    written(read_model(REAL["bert"]()), 3, tmp_path)
    command = [sys.executable, "-B", "-c", TORCH_ALONE, str(tmp_path / "stage_1.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.slow  # a fresh process imports everything
def test_written_stages_run_in_a_fresh_process_with_torch_alone(tmp_path: Path) -> None:
    """Those of a traced module too."""
    module, inputs = skip_net()
    exported = {name: read_model(REAL[name]()) for name in REAL if name in QUICK}
    check_fresh_process({**exported, "traced": import_torch(module, inputs)}, tmp_path)


@pytest.mark.slow  # torch.export takes seconds
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", REAL)
def test_stages_read_back_give_the_whole_models_outputs(name: str, training: bool, tmp_path: Path) -> None:
    model, args, kwargs = REAL[name]()
    graph = import_torch(model.train(training), args, kwargs)
    partition, files = written(graph, 3, tmp_path)
    assert files == [[f"stage_{i}.py", f"stage_{i}.safetensors"] for i in range(3)]
    inputs = BACKEND.example_inputs(graph, 2)
    with BACKEND.reproducible(graph, 2):
        whole = BACKEND.reference(graph)(inputs)
    with BACKEND.reproducible(graph, 2):
        staged = run(graph, partition, BACKEND.read(tmp_path, files, partition.stages), inputs)
    assert largest_difference(graph, staged, whole) <= 1e-5


def test_stages_read_back_train_to_the_whole_models_gradients(tmp_path: Path) -> None:
    module, inputs = skip_net(training=True)
    graph = import_torch(module, inputs)
    partition, files = written(graph, 4, tmp_path)
    stages = BACKEND.read(tmp_path, files, partition.stages)
    call = graph.source.call
    with BACKEND.reproducible(graph, 5):
        module(*inputs)["logits"].square().sum().backward()
    with BACKEND.reproducible(graph, 5):
        call.assemble(run(graph, partition, stages, call.bind(inputs, {})))["logits"].square().sum().backward()
    gradients: dict[str, Tensor] = {}
    for stage in stages:
        for name, parameter in stage.named_parameters():
            gradients[name] = gradients.get(name, torch.zeros(())) + parameter.grad
    for name, parameter in module.named_parameters():
        # the tied weight is held twice, by two stages under its two names: their gradients add up
        ours = gradients[name] + (gradients["head.weight"] if name == "words.weight" else 0)
        assert (ours - parameter.grad).abs().max() <= 1e-6 * parameter.grad.abs().max(), name
    last = stages[-1].state_dict()
    assert set(last) <= set(module.state_dict())


class TwoNames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.two.weight = self.one.weight
        self.one.bias.requires_grad_(False)
        self.register_buffer("kept", torch.ones(4))
        self.register_buffer("lost", torch.ones(4), persistent=False)
        self.constant = torch.tensor([1.0, float("nan"), 2.0, 3.0])

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x)) + self.kept + self.lost + self.constant


def test_tensors_that_are_read_begin_where_pytorch_puts_its_own(tmp_path: Path) -> None:
    """A file's tensors stand side by side, at any address; BLAS may round by where a matrix begins."""
    model = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Linear(3, 1), nn.Linear(1, 7))
    graph = import_torch(model.eval(), (torch.randn(2, 5),), {})
    partition, files = written(graph, 2, tmp_path)
    for stage in BACKEND.read(tmp_path, files, partition.stages):
        assert {tensor.data_ptr() % 64 for tensor in stage.state_dict().values()} == {0}


def test_a_tied_tensor_is_saved_once_and_stays_tied(tmp_path: Path) -> None:
    model = TwoNames()
    graph = import_torch(model, (torch.ones(1, 4),))
    partition, files = written(graph, 1, tmp_path)
    with safe_open(tmp_path / "stage_0.safetensors", "pt") as saved:
        assert sorted(saved.keys()) == ["constant", "kept", "lost", "one.bias", "one.weight", "two.bias"]
    (stage,) = BACKEND.read(tmp_path, files, partition.stages)
    assert stage.get_parameter("one.weight") is stage.get_parameter("two.weight")
    assert {name: p.requires_grad for name, p in stage.named_parameters()} == {
        "one.weight": True,
        "one.bias": False,
        "two.bias": True,
    }
    assert set(stage.state_dict()) == set(model.state_dict())


def test_nothing_is_pickled_and_no_path_is_written(tmp_path: Path) -> None:
    graph = read_model(REAL["gpt2"]())
    written(graph, 2, tmp_path)
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".py", ".py", ".safetensors", ".safetensors"]
    for path in tmp_path.glob("*.py"):
        source = path.read_text("ascii")
        assert str(tmp_path) not in source
        imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Import, ast.ImportFrom))]
        modules = {n.module if isinstance(n, ast.ImportFrom) else n.names[0].name for n in imports}
        assert {module.split(".")[0] for module in modules if module} == {"math", "pathlib", "torch", "safetensors"}


def test_the_source_reads_like_the_model(tmp_path: Path) -> None:
    written(read_model(REAL["bert"]()), 1, tmp_path)
    source = (tmp_path / "stage_0.py").read_text("ascii")
    assert "layer_1 = self.encoder.layer[1]" in source
    assert "query_1 = layer_1.attention.self.query" in source
    assert "F.linear(layer_norm_2, query_1.weight, query_1.bias)  # float32[2, 8, 32]" in source
    assert "# encoder.layer.1.attention.self.query\n" in source
    assert "    'pooler.dense.bias': ('weight', torch.float32, (32,)),\n" in source


def test_reading_leaves_no_byte_code_and_reads_none(tmp_path: Path) -> None:
    graph = read_model(REAL["ctrdnn"]())
    partition, files = written(graph, 1, tmp_path)
    before = set(tmp_path.rglob("*")), set(sys.modules), list(sys.path)
    BACKEND.read(tmp_path, files, partition.stages)
    assert (set(tmp_path.rglob("*")), set(sys.modules), list(sys.path)) == before
    (tmp_path / "other.py").write_text("raise SystemExit('byte code was run')")
    cached = importlib.util.cache_from_source(str(tmp_path / "stage_0.py"))
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(tmp_path / "other.py"), cfile=cached, invalidation_mode=unchecked)
    BACKEND.read(tmp_path, files, partition.stages)


class BitsOfEverything(nn.Module):
    """Arguments of every kind that has to come back as it was."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (
            x.masked_fill(x > 0, float("-inf")),
            torch.full((2,), float("nan"), dtype=torch.float64),
            x.to(memory_format=torch.channels_last),
            x[:, 1:, ::2, -3:],
            x[..., None, 0],
            torch.einsum("bchw,bdhw->bcd", x, x),
            torch.arange(0, 6, 2, dtype=torch.int32, device="cpu"),
            x.sum((-1, -2), keepdim=True, dtype=torch.float64),
            x.clamp(min=None, max=0.5) ** -0.5,
            torch.nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False),
            torch.where(x > 1e-45, x, -0.0),
            torch.roll(x, (1, -1), (0, 2)),
            torch.complex(x, x) * complex(0.0, -1.0),
            x.std(dim=1, correction=0).to(torch.bfloat16),
            x.new_zeros((1, 2)).bool(),
        )


def test_every_kind_of_argument_comes_back(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 4, 5)
    graph = import_torch(BitsOfEverything(), (x,))
    partition, files = written(graph, 2, tmp_path)
    values = run(graph, partition, BACKEND.read(tmp_path, files, partition.stages), {"x": x})
    for ours, theirs in zip(graph.source.call.assemble(values), BitsOfEverything()(x), strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True, rtol=0, atol=0)
        assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())


def test_a_dynamic_batch_stays_dynamic_on_disk(tmp_path: Path) -> None:
    model, (sparse, dense), _ = REAL["ctrdnn"]()
    batch = torch.export.Dim("batch", min=2, max=64)
    graph = import_torch(model, (sparse, dense), dynamic_shapes=({0: batch}, {0: batch}))
    partition, files = written(graph, 3, tmp_path)
    stages = BACKEND.read(tmp_path, files, partition.stages)
    args = (torch.randint(0, 30, (9, 5)), torch.randn(9, 13))
    out = run(graph, partition, stages, graph.source.call.bind(args, {}))
    torch.testing.assert_close(out[graph.outputs[0]], model(*args))
    assert "int64[batch, 5]" in (tmp_path / "stage_0.py").read_text("ascii")


def test_large_values_are_let_go_after_their_last_reader(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 600), nn.Tanh(), nn.Linear(600, 8), nn.Tanh())
    written(import_torch(model, (torch.ones(512, 8),)), 1, tmp_path)
    lines = (tmp_path / "stage_0.py").read_text("ascii").splitlines()
    freed = [line.strip() for line in lines if "del " in line]
    assert freed == ["del input_1", "del linear", "del tanh", "del linear_1"]


def test_values_of_a_free_batch_are_let_go_by_the_size_that_the_plan_has(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 600), nn.Tanh(), nn.Linear(600, 2), nn.Tanh())
    free = ({0: torch.export.Dim("batch", min=2, max=4096)},)
    written(import_torch(model, (torch.ones(512, 8),), dynamic_shapes=free), 1, tmp_path)
    lines = (tmp_path / "stage_0.py").read_text("ascii").splitlines()
    assert any("float32[batch, 600]" in line for line in lines)
    assert [line.strip() for line in lines if "del " in line] == ["del input_1", "del linear", "del tanh"]


class NoSource(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (x,))


def test_an_op_that_is_not_pytorchs_own_runs_in_memory_but_is_not_written(tmp_path: Path) -> None:
    x = torch.ones(3)
    graph = import_torch(NoSource(), (x,))
    stages = BACKEND.build(graph, p := cut_into(graph, 1))
    torch.testing.assert_close(run(graph, p, stages, {"x": x})[graph.outputs[0]], x.sin())
    with pytest.raises(BackendError, match=r"stage 0\b.*cond.*PyTorch"):
        BACKEND.write(graph, stages, p.stages, tmp_path)


@torch.library.custom_op("written_tests::halved", mutates_args=())
def halved(x: Tensor) -> Tensor:
    return x / 2


@halved.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class CustomOp(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return halved(x.sin())


def test_an_op_of_another_library_is_named_and_not_traced_again(tmp_path: Path) -> None:
    graph = import_torch(CustomOp(), (torch.ones(3),))
    stages = BACKEND.build(graph, p := cut_into(graph, 1))
    with pytest.raises(BackendError, match=r"'halved'.*written_tests\.halved\.default"):
        BACKEND.write(graph, stages, p.stages, tmp_path)


class PythonFloat(nn.Module):
    def forward(self, x: Tensor, factor: float) -> Tensor:
        return torch.nn.functional.relu(x * factor)


def test_a_number_that_would_become_a_constant_is_refused(tmp_path: Path) -> None:
    graph = import_torch(fx.symbolic_trace(PythonFloat()), (torch.ones(3), 2.5))
    stages = BACKEND.build(graph, p := cut_into(graph, 1))
    out = run(graph, p, stages, graph.source.call.bind((torch.ones(3), 4.0), {}))
    assert out[graph.outputs[0]].tolist() == [4, 4, 4]
    with pytest.raises(BackendError, match=r"stage 0\b.*'factor'"):
        BACKEND.write(graph, stages, p.stages, tmp_path)


class Overlapping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Parameter(torch.ones(6))
        self.square = nn.Parameter(self.flat.data.view(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.flat + self.square.sum()


def test_weights_that_overlap_in_other_shapes_are_refused(tmp_path: Path) -> None:
    graph = import_torch(Overlapping(), (torch.ones(6),))
    with pytest.raises(BackendError, match=r"stage 0\b.*'square'.*'flat'"):
        written(graph, 1, tmp_path)


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda f: (f / "stage_0.safetensors").unlink(), r"stage 0\b.*weights.*stage_0.py"),
        (lambda f: (f / "stage_0.safetensors").write_bytes(b"\x00" * 9), r"stage 0\b.*weights"),
        (lambda f: save_file({}, f / "stage_0.safetensors"), "'tables.0.weight'.*missing"),
        (
            lambda f: save_file(
                {**load_file(f / "stage_0.safetensors"), "tables.0.weight": torch.ones(2)}, f / "stage_0.safetensors"
            ),
            r"'tables.0.weight'.*torch.float32.*\b2\b.*torch.float32.*\b30\b.*\b4\b",
        ),
        (lambda f: (f / "stage_0.py").write_text("syntax error"), r"stage 0\b.*stage_0.py'.*imported"),
        (lambda f: (f / "stage_0.py").write_text(""), r"stage 0\b.*stage_0.py'.*load"),
    ],
)
def test_a_damaged_folder_is_told_stage_and_file(damage: object, fault: str, tmp_path: Path) -> None:
    graph = read_model(REAL["ctrdnn"]())
    partition, files = written(graph, 1, tmp_path)
    damage(tmp_path)
    with pytest.raises(BackendError, match=fault):
        BACKEND.read(tmp_path, files, partition.stages)


def test_a_stage_of_another_plan_is_refused(tmp_path: Path) -> None:
    graph = read_model(REAL["ctrdnn"]())
    partition, files = written(graph, 2, tmp_path)
    with pytest.raises(BackendError, match=r"stage 0\b.*'stage_1.py'"):
        BACKEND.read(tmp_path, files[::-1], partition.stages)
