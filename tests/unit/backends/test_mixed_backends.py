"""A backend for each device type: stages of one model on several, values converted where they enter one."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from staged_onnx import read
from torch_models import cut_into, run, skip_net, small_ctrdnn

import heterps_compile
from heterps_compile.backends.borders import as_array, as_tensor
from heterps_compile.backends.find import find_backend
from heterps_compile.backends.mixed import MixedBackend
from heterps_compile.backends.onnxruntime import providers as module
from heterps_compile.backends.onnxruntime.backend import OnnxRuntimeBackend
from heterps_compile.backends.torch.backend import TorchBackend
from heterps_compile.errors import BackendError, InputError, UnknownNameError
from heterps_compile.frontends.torch_fx import import_torch
from heterps_compile.plan.planned_stage import PlannedStage

pytest.importorskip("onnxscript", reason="torch.onnx.export needs it")

CPU, V100, T4 = ("cpu-core", "cpu"), ("v100", "gpu"), ("t4", "gpu")


def planned(*devices: tuple[str, str]) -> list[PlannedStage]:
    return [PlannedStage(index, name, (), kind=kind) for index, (name, kind) in enumerate(devices)]


def names(backend: MixedBackend) -> list[str]:
    return [own.name for own in backend.of_stage]


def test_a_devices_name_goes_before_its_kind() -> None:
    backend = find_backend("gpu=torch, t4 = onnxruntime,cpu=onnxruntime")
    assert names(backend.on(planned(CPU, V100, T4, V100))) == ["onnxruntime", "torch", "onnxruntime", "torch"]


@pytest.mark.parametrize("text", ["cpu=", "=torch", "cpu=torch,", "cpu=torch,v100"])
def test_what_is_no_device_and_backend_is_shown(text: str) -> None:
    with pytest.raises(InputError, match=r"DEVICE=BACKEND.*cpu=onnxruntime"):
        find_backend(text)


def test_faults_in_what_is_given_are_named() -> None:
    with pytest.raises(UnknownNameError, match=r"'torhc'.*'torch'"):
        find_backend("cpu=torhc")
    with pytest.raises(InputError, match=r"'cpu'.*'torch'.*'onnxruntime'"):
        find_backend("cpu=torch,cpu=onnxruntime")
    with pytest.raises(InputError, match=r"stage 1\b.*'v100'.*gpu\).*given.*cpu=torch.*v100=BACKEND"):
        find_backend("cpu=torch").on(planned(CPU, V100))


def test_a_backend_that_no_stage_needs_is_noted() -> None:
    assert find_backend("cpu=torch,v100=onnxruntime").on(planned(CPU)).notes == (
        "no stage is on 'v100': its backend 'onnxruntime' is not used",
    )


@pytest.mark.parametrize("spec", ["cpu=onnxruntime,gpu=torch", "cpu=torch,gpu=onnxruntime"])
def test_stages_of_a_torch_model_alternate_between_backends(tmp_path: Path, spec: str) -> None:
    module_, inputs = skip_net()
    graph = import_torch(module_, inputs)
    partition = cut_into(graph, 3)
    backend = find_backend(spec).on(planned(CPU, V100, CPU))
    stages = backend.build(graph, partition)
    values = dict(zip(graph.inputs, inputs, strict=True))
    whole = backend.reference(graph)(values)
    files = backend.write(graph, stages, partition.stages, tmp_path)
    python, onnx = ["stage_{}.py", "stage_{}.safetensors"], ["stage_{}.onnx"]
    kinds = [onnx if own == "onnxruntime" else python for own in names(backend)]
    assert files == [[name.format(index) for name in kind] for index, kind in enumerate(kinds)]
    for built in (stages, backend.read(tmp_path, files, partition.stages)):
        found = run(graph, partition, built, values)
        for name, theirs in zip(graph.outputs, whole, strict=True):
            np.testing.assert_allclose(as_array(found[name], name), theirs.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_a_plan_remembers_the_backend_of_every_stage(tmp_path: Path) -> None:
    model, inputs, _ = small_ctrdnn()
    compiled = heterps_compile.compile(
        model.eval(),
        inputs,
        backend="cpu=onnxruntime,v100=torch",
        min_stages=2,
        method="exact",
        pins={"*embedding*": "cpu-core", "linear*": "v100"},
    )
    assert compiled.plan.backend == "mixed"
    found = {(stage.device, stage.kind, stage.backend) for stage in compiled.plan.stages}
    assert found == {("cpu-core", "cpu", "onnxruntime"), ("v100", "gpu", "torch")}
    compiled.save(tmp_path / "out")
    stages = json.loads((tmp_path / "out" / "plan.json").read_text())["decisions"]["stages"]
    assert [stage["backend"] for stage in stages] == [stage.backend for stage in compiled.plan.stages]
    loaded = heterps_compile.load(tmp_path / "out")
    np.testing.assert_allclose(
        as_array(loaded.run(*inputs), "y"), model(*inputs).detach().numpy(), rtol=1e-5, atol=1e-6
    )


def test_stages_of_jax_stand_between_others() -> None:
    pytest.importorskip("jax")
    module_, inputs = skip_net()
    graph = import_torch(module_, inputs)
    partition = cut_into(graph, 3)
    backend = find_backend("cpu=torch,t4=onnxruntime,v100=jax").on(planned(CPU, V100, T4))
    values = dict(zip(graph.inputs, inputs, strict=True))
    found = run(graph, partition, backend.build(graph, partition), values)
    for name, theirs in zip(graph.outputs, backend.reference(graph)(values), strict=True):
        np.testing.assert_allclose(as_array(found[name], name), theirs.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_stages_of_another_backend_are_not_written(tmp_path: Path) -> None:
    module_, inputs = skip_net()
    graph = import_torch(module_, inputs)
    partition = cut_into(graph, 1)
    backend = find_backend("cpu=torch").on(planned(CPU))
    with pytest.raises(BackendError, match=r"stage 0\b.*TorchStage.*'mixed'"):
        backend.write(graph, TorchBackend().build(graph, partition), partition.stages, tmp_path)


def test_the_least_exact_backend_says_what_verification_allows() -> None:
    backend = find_backend("cpu=onnxruntime,v100=torch")
    assert backend.tolerance("onnx") == OnnxRuntimeBackend().tolerance("onnx")
    assert backend.on(planned(V100)).tolerance("torch") == TorchBackend().tolerance("torch")
    assert "torch" in backend.families


def test_tensors_and_arrays_share_memory_across_a_border() -> None:
    tensor, array = torch.ones(3), np.ones(3, np.float32)
    assert np.shares_memory(as_array(tensor, "x"), tensor.numpy())
    assert np.shares_memory(as_tensor(array, "x").numpy(), array)
    assert as_tensor(tensor, "x") is tensor
    assert as_array(array, "x") is array
    assert as_array(torch.ones(2, requires_grad=True), "x").tolist() == [1, 1]
    assert as_array(7, "x").shape == ()


def test_memory_that_must_not_be_written_to_is_copied() -> None:
    array = np.ones(3, np.float32)
    array.flags.writeable = False
    tensor = as_tensor(array, "x")
    tensor += 1
    assert array.tolist() == [1, 1, 1]


@pytest.mark.parametrize("make", [lambda j: j.ones((2, 3)), lambda j: j.array([True, False]), lambda j: j.array(3)])
def test_jax_arrays_enter_as_arrays_and_tensors(make: Any) -> None:
    value = make(pytest.importorskip("jax.numpy"))
    np.testing.assert_array_equal(as_array(value, "x"), np.asarray(value))
    np.testing.assert_array_equal(as_tensor(value, "x").numpy(), np.asarray(value))


def test_a_value_without_a_tensor_is_named() -> None:
    with pytest.raises(BackendError, match=r"'words'.*<U1.*PyTorch"):
        as_tensor(np.array(["a"]), "words")


def test_stages_run_on_the_provider_of_their_device(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(module, "available_providers", lambda: installed)
    placed = OnnxRuntimeBackend().on(planned(CPU, V100, ("edge", "npu"), CPU))
    assert isinstance(placed, OnnxRuntimeBackend)
    graph = read("g (float[2] x) => (float[2] y) { a = Relu(x) b = Neg(a) c = Exp(b) y = Tanh(c) }")
    stages: Any = placed.build(graph, cut_into(graph, 4))
    found = [stage.session.provider for stage in stages]
    assert found == [installed[1], installed[0], installed[1], installed[1]]
    (note,) = placed.notes
    assert re.match(r"stage 2 is planned for npus, .* has no provider of one \(it has CUDA.*\): here on the CPU", note)


@pytest.mark.slow  # torch.export takes seconds
def test_a_plan_says_where_a_device_could_not_be_had() -> None:
    model, inputs, _ = small_ctrdnn()
    compiled = heterps_compile.compile(
        model.eval(), inputs, backend="onnxruntime", method="exact", pins={"linear*": "v100"}
    )
    stranded = [str(stage.index) for stage in compiled.plan.stages if stage.kind == "gpu"]
    if "CUDAExecutionProvider" in module.available_providers():
        pytest.skip("there is a provider of GPUs here")
    (note,) = [note for note in compiled.plan.notes if "ONNX Runtime" in note]
    assert note.startswith(f"stage {stranded[0]} is planned for gpus" if len(stranded) == 1 else "stages ")
