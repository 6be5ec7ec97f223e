"""What the jax backend writes: readable source that needs jax alone, parameters that are checked when they are read."""

import ast
import builtins
import subprocess
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import jax
import jax.export
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from staged_jax import BACKEND, run
from staged_onnx import cut_evenly, read

from heterps_compile.backends.jax.backend import JaxBackend
from heterps_compile.backends.jax.function_source import IMPORTS, Carried, names_of
from heterps_compile.backends.jax.literals import literal
from heterps_compile.backends.jax.op_rows import ROWS
from heterps_compile.backends.jax.print_stage import MODULE_LEVEL
from heterps_compile.backends.local_names import LocalNames
from heterps_compile.errors import BackendError, MissingPackageError
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import Partition

SMALL = """
g (float[N, 1, 4, 4] image) => (float[N, 2] logits)
<float[1, 1, 2, 2] kernel = {1.0, 2.0, 3.0, 4.0}, float[9, 2] weight =
 {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0}> {
  mapped = Conv <kernel_shape = [2, 2]> (image, kernel)
  active = LeakyRelu <alpha = 0.1> (mapped)
  half = Constant <value = float {0.5}> ()
  scaled = Mul(active, half)
  shape = Constant <value = int64[2] {0, -1}> ()
  flat = Reshape(scaled, shape)
  logits = MatMul(flat, weight)
}
"""
IMAGE = np.random.default_rng(0).standard_normal((3, 1, 4, 4)).astype(np.float32)


def written(folder: Path, count: int = 1) -> tuple[Graph, Partition, list[list[str]]]:
    graph = read(SMALL, batch=3)
    partition = cut_evenly(graph, count)
    return graph, partition, BACKEND.write(graph, BACKEND.build(graph, partition), partition.stages, folder)


def test_the_source_reads_as_people_write_it(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    _, _, files = written(tmp_path)
    assert files == [["stage_0_jax.py", "stage_0.safetensors"]]
    golden("stage_0_jax.py.txt", (tmp_path / "stage_0_jax.py").read_text())


def test_a_written_stage_needs_jax_numpy_and_safetensors_alone(tmp_path: Path) -> None:
    _, _, files = written(tmp_path, 3)
    for source, _ in files:
        imports = [node for node in ast.walk(ast.parse((tmp_path / source).read_text())) if hasattr(node, "names")]
        found = {(getattr(node, "module", None) or node.names[0].name).split(".")[0] for node in imports}
        assert found <= {
            "functools",
            "itertools",
            "math",
            "collections",
            "typing",
            "pathlib",
            "jax",
            "numpy",
            "safetensors",
        }


def test_in_another_process_it_gives_the_same(tmp_path: Path) -> None:
    graph, partition, _ = written(tmp_path)
    (expected,) = run(graph, partition, BACKEND.build(graph, partition), {"image": IMAGE})
    np.save(tmp_path / "image.npy", IMAGE)
    script = (
        "import sys, numpy as np, jax, stage_0_jax as s\n"
        "print(jax.jit(s.stage)(s.load(), np.load('image.npy'))[0].tolist())\n"
        "assert not [m for m in sys.modules if m.split('.')[0] in ('heterps_compile', 'onnx', 'torch')]"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, capture_output=True, text=True)
    np.testing.assert_allclose(np.array(ast.literal_eval(done.stdout)), expected, rtol=1e-6)


def test_stages_read_back_give_the_same_and_train(tmp_path: Path) -> None:
    graph, partition, files = written(tmp_path, 2)
    stages = BACKEND.read(tmp_path, files, partition.stages)
    built = BACKEND.build(graph, partition)
    ours, theirs = (run(graph, partition, ready, {"image": IMAGE})[0] for ready in (stages, built))
    np.testing.assert_array_equal(ours, theirs)
    first = stages[0]
    assert first.trained.keys() == {"kernel"}
    gradient = jax.grad(lambda weights: first.function({**first.params, **weights}, IMAGE)[0].sum())(first.trained)
    assert gradient["kernel"].shape == (1, 1, 2, 2)


def test_inputs_that_do_not_fit_are_named(tmp_path: Path) -> None:
    graph, partition, files = written(tmp_path)
    (built,) = BACKEND.build(graph, partition)
    with pytest.raises(BackendError, match=r"stage 0\b.*'MatMul.*'.*MatMul"):
        built(IMAGE[..., :3])
    (loaded,) = BACKEND.read(tmp_path, files, partition.stages)
    with pytest.raises(BackendError, match=r"'image' \[3, 1, 4, 3\]"):
        loaded(IMAGE[..., :3])


def corrupted(folder: Path, change: Callable[[dict], dict]) -> None:
    path = folder / "stage_0.safetensors"
    arrays = change({name: array.copy() for name, array in load_file(path).items()})
    path.unlink()
    save_file(arrays, path)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda arrays: {"kernel": arrays["kernel"]}, "'weight'.*missing"),
        (lambda arrays: arrays | {"weight": arrays["weight"][:4].copy()}, r"'weight'.*float32 \(4, 2\)"),
        (lambda arrays: arrays | {"weight": arrays["weight"].astype(np.float16)}, "'weight'.*float16"),
    ],
)
def test_parameters_that_do_not_fit_are_named(tmp_path: Path, change: Callable[[dict], dict], fault: str) -> None:
    _, partition, files = written(tmp_path)
    corrupted(tmp_path, change)
    with pytest.raises(BackendError, match=rf"stage 0\b.*stage_0_jax.py.*{fault}"):
        BACKEND.read(tmp_path, files, partition.stages)


def test_a_truncated_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    _, partition, files = written(tmp_path)
    data = (tmp_path / "stage_0.safetensors").read_bytes()
    (tmp_path / "stage_0.safetensors").write_bytes(data[:-8])
    with pytest.raises(BackendError, match=r"stage_0\.safetensors"):
        BACKEND.read(tmp_path, files, partition.stages)


def test_source_that_is_no_stage_is_refused(tmp_path: Path) -> None:
    _, partition, files = written(tmp_path)
    (tmp_path / "stage_0_jax.py").write_text("x = 1\n")
    with pytest.raises(BackendError, match="INPUTS"):
        BACKEND.read(tmp_path, files, partition.stages)
    (tmp_path / "stage_0_jax.py").write_text("import nothing_like_that\n")
    with pytest.raises(BackendError, match="ModuleNotFoundError"):
        BACKEND.read(tmp_path, files, partition.stages)


def test_a_stage_of_another_cut_is_refused(tmp_path: Path) -> None:
    _, _, files = written(tmp_path)
    graph = read(SMALL, batch=3)
    with pytest.raises(BackendError, match="stage"):
        BACKEND.read(tmp_path, files, cut_evenly(graph, 2).stages[:1])


def test_a_stage_that_was_read_is_not_written_again(tmp_path: Path) -> None:
    graph, partition, files = written(tmp_path)
    with pytest.raises(BackendError):
        BACKEND.write(graph, BACKEND.read(tmp_path, files, partition.stages), partition.stages, tmp_path)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, -2), "(1, -2)"),
        ((3,), "(3,)"),
        (float("inf"), 'float("inf")'),
        (np.float32(0.1), "np.float32(0.1)"),
        (np.float32("-inf"), 'np.float32(float("-inf"))'),
        (np.array([1, 2]), "np.array([1, 2], np.int64)"),
        (np.array([[True], [False]]), "np.array([[True], [False]], bool)"),
        (np.zeros((0, 2), np.int32), "np.zeros((0, 2), np.int32)"),
        (np.dtype("float16"), "np.float16"),
        (np.dtype(jax.numpy.bfloat16), "jnp.bfloat16"),
        (np.array([0.5], jax.numpy.bfloat16), 'np.array([0.5], np.dtype("bfloat16"))'),
        ("it's\n", '"it\'s\\n"'),
    ],
)
def test_literals(value: object, expected: str) -> None:
    assert literal(value) == expected


def test_names_become_variables_of_their_own() -> None:
    names = LocalNames({*MODULE_LEVEL, "conv"})
    wishes = ["x.1", "x-1", "lambda", "conv", "", "7", "params", "a" * 99, "x.1"]
    expected = ["x_1", "x_1_1", "lambda_1", "conv_1", "v", "v7", "params_1", "a" * 48, "x_1"]
    assert [names.of(wish) for wish in wishes] == expected


def test_a_function_whose_source_cannot_be_carried_is_an_error() -> None:
    with pytest.raises(BackendError, match="function"):
        Carried().add(lambda x: x)

    def uses_the_operating_system(x: object) -> object:
        return Path(str(x))

    with pytest.raises(BackendError, match="'Path'"):
        Carried().add(uses_the_operating_system)


def test_stablehlo_is_written_on_request_and_runs(tmp_path: Path) -> None:
    graph = read(SMALL, batch=3)
    partition = cut_evenly(graph, 2)
    backend = JaxBackend(stablehlo=True)
    stages = backend.build(graph, partition)
    files = backend.write(graph, stages, partition.stages, tmp_path)
    assert files[1] == ["stage_1_jax.py", "stage_1.safetensors", "stage_1.stablehlo"]
    values = IMAGE
    for stage, (_, _, name) in zip(backend.read(tmp_path, files, partition.stages), files, strict=True):
        exported = jax.export.deserialize(bytearray((tmp_path / name).read_bytes()))
        (values,) = exported.call(stage.params, values)
    np.testing.assert_allclose(values, run(graph, partition, stages, {"image": IMAGE})[0], rtol=1e-6)


def test_without_jax_an_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = read(SMALL, batch=3)
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(MissingPackageError, match=r"'jax'.*'heterps-compile\[jax\]'"):
        JaxBackend().build(graph, cut_evenly(graph, 1))


def test_every_function_of_the_table_stands_alone_in_a_written_stage(tmp_path: Path) -> None:
    """Each name that a function looks up outside of itself is one the file has."""
    carried = Carried()
    for row in ROWS:
        carried.add(row.function)
    lines = [IMPORTS[name] for name in IMPORTS if name in {*carried.imports, "Any"}]
    numbers = [f"{name} = {literal(value)}" for name, value in carried.numbers.items()]
    path = tmp_path / "functions.py"
    path.write_text("\n\n".join([*lines, "Array = Any", *numbers, *carried.sources.values()]), "ascii")
    spec = spec_from_file_location("functions", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    missing = {
        (name, used)
        for name in carried.sources
        for used in names_of(vars(module)[name], carried.sources[name])
        if used not in vars(module) and not hasattr(builtins, used)
    }
    assert missing == set()
    assert len(carried.sources) > 150
