"""A model annotated for ONNX Runtime's own partitioning: every node has its stage, and the session reads it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch_models
from staged_onnx import BACKEND, cut_evenly, parse

from heterps_compile.backends.onnxruntime.annotate import OPTION, AnnotatedModel, annotate
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.frontends.torch_fx import import_torch
from heterps_compile.plan.planned_stage import PlannedStage

TEXT = """g (float[2, 4] x, bool c) => (float[2, 4] y) {
    shape = Constant<value = int64[2] {4, 2}>()
    a = Relu(x) b = Neg(a)
    d = If(c) <then_branch = t () => (float[2, 4] e) { e = Abs(b) }, else_branch = f () => (float[2, 4] k) { k = Exp(b)
    }>
    r = Reshape(d, shape) s = Transpose(r) t2 = Tanh(s) y = Sigmoid(t2)
}"""
INPUTS = {"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4), "c": np.array(True)}


def planned(*kinds: str) -> list[PlannedStage]:
    return [PlannedStage(index, f"{kind}-type", (), kind=kind) for index, kind in enumerate(kinds)]


def annotated(*kinds: str) -> AnnotatedModel:
    graph = import_onnx(parse(TEXT))
    return annotate(graph, cut_evenly(graph, len(kinds)), planned(*kinds))


def labels(path: Path) -> list[tuple[str, str | None]]:
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    return [(node.op_type, {p.key: p.value for p in node.metadata_props}.get("layer_ann")) for node in model.graph.node]


def session(path: Path, settings: str, **entries: str) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 1
    for key, value in {OPTION: settings, **entries}.items():
        options.add_session_config_entry(key, value)
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def outputs(path: Path, inputs: Mapping[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    found: list[Any] = onnxruntime.InferenceSession(path, options).run(None, dict(inputs))
    return found


def test_every_node_has_its_stage_and_constants_that_of_their_reader(tmp_path: Path) -> None:
    made = annotated("cpu", "gpu")
    assert made.write(tmp_path / "model.onnx") == ["model.onnx"]
    found = labels(tmp_path / "model.onnx")
    assert {label for _, label in found} == {"stage_0", "stage_1"}
    wanted = {"Relu": "stage_0", "Neg": "stage_0", "Tanh": "stage_1", "Sigmoid": "stage_1"}
    assert {op: label for op, label in found if op in wanted} == wanted
    assert dict(found).get("Constant", "stage_1") == dict(found)["Reshape"]


def test_stages_of_a_kind_are_named_whole_so_that_1_is_not_10() -> None:
    assert annotated("cpu", "gpu", "cpu").settings == "cpu(=stage_0, =stage_2); gpu(=stage_1)"
    assert annotated("cpu").model.metadata_props[OPTION] == "cpu(=stage_0)"


def test_two_types_of_one_kind_are_noted() -> None:
    graph = import_onnx(parse(TEXT))
    stages = [PlannedStage(0, "t4", (), kind="gpu"), PlannedStage(1, "v100", (), kind="gpu")]
    (note,) = annotate(graph, cut_evenly(graph, 2), stages).notes
    assert note == "ONNX Runtime has one provider of gpus in a session: t4 and v100 are the same device to it"


def test_the_source_model_stays_as_it_is() -> None:
    graph = import_onnx(parse(TEXT))
    annotate(graph, cut_evenly(graph, 2), planned("cpu", "gpu"))
    assert [node.metadata_props for node in graph.source.model.graph if "layer_ann" in node.metadata_props] == []


def test_onnx_runtime_maps_every_stage_to_its_provider(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = annotated("cpu", "cpu")
    made.write(tmp_path / "model.onnx")
    opened = session(tmp_path / "model.onnx", made.settings)
    assert "Matched 2 out of 2 rules" in capfd.readouterr().err
    graph = import_onnx(parse(TEXT))
    np.testing.assert_array_equal(opened.run(None, INPUTS)[0], BACKEND.reference(graph)(INPUTS)[0])
    np.testing.assert_array_equal(outputs(tmp_path / "model.onnx", INPUTS)[0], BACKEND.reference(graph)(INPUTS)[0])


def test_onnx_runtime_drops_the_rule_of_a_device_it_does_not_have(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = annotated("cpu", "gpu")
    made.write(tmp_path / "model.onnx")
    opened = session(tmp_path / "model.onnx", made.settings, **{"session.record_ep_graph_assignment_info": "1"})
    log = capfd.readouterr().err
    assert "(device='gpu', annotation='stage_1') could not be mapped to any available Execution Provider" in log
    assert "Matched 1 out of 2 rules" in log
    assert {part.ep_name for part in opened.get_provider_graph_assignment_info()} == {"CPUExecutionProvider"}


@pytest.mark.parametrize("settings", ["cpu(=stage_0", "cpu(=stage_0, =stage_0)"])
def test_onnx_runtime_refuses_settings_with_a_fault(tmp_path: Path, settings: str) -> None:
    annotated("cpu").write(tmp_path / "model.onnx")
    with pytest.raises(Exception, match=r"INVALID_ARGUMENT.*Invalid layering"):
        session(tmp_path / "model.onnx", settings)


def test_a_torch_model_is_one_model_again(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="torch.onnx.export needs it")
    module, inputs = torch_models.skip_net()
    graph = import_torch(module, inputs)
    partition = torch_models.cut_into(graph, 3)
    assert partition.replicated == ("words.weight",)
    annotate(graph, partition, planned("cpu", "gpu", "cpu")).write(tmp_path / "model.onnx")
    found = labels(tmp_path / "model.onnx")
    assert [label for _, label in found] == sorted(str(label) for _, label in found)
    assert {label for _, label in found} == {"stage_0", "stage_1", "stage_2"}
    weights = [held.name for held in onnx.load(tmp_path / "model.onnx").graph.initializer]
    assert sorted(weights) == sorted(set(weights))
    feeds = {name: value.numpy() for name, value in zip(graph.inputs, inputs, strict=True)}
    whole = torch_models.BACKEND.reference(graph)(dict(zip(graph.inputs, inputs, strict=True)))
    for ours, theirs in zip(outputs(tmp_path / "model.onnx", feeds), whole, strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-5, atol=1e-6)
