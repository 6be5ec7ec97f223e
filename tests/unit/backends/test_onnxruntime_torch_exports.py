"""Transformers exported by PyTorch give PyTorch's own outputs, at other sizes than those they were exported with."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from staged_onnx import BACKEND, cut_evenly, largest_difference, run_staged

from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.ir.graph import Graph, OpKind

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("onnxscript", reason="torch.onnx.export(dynamo=True) needs it")

pytestmark = pytest.mark.slow  # other models, exported anew


def export(model: Any, names: tuple[str, ...], path: Path, *, optimize: bool = True) -> None:
    """Export a model of token ids with dynamic batch and sequence."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        torch.onnx.export(
            model,
            (),
            kwargs={name: torch.ones(3, 5, dtype=torch.long) for name in names},
            dynamo=True,
            optimize=optimize,
            dynamic_shapes={name: {0: "batch", 1: "seq"} for name in names},
            verbose=False,
        ).save(path)


def differences(model: Any, graph: Graph) -> dict[int, float]:
    inputs = BACKEND.example_inputs(graph, seed=1)
    with torch.no_grad():
        returned = model(**{name: torch.from_numpy(array) for name, array in inputs.items()})
    whole = [value.numpy() for value in returned.to_tuple()]
    return {
        count: largest_difference(run_staged(graph, cut_evenly(graph, count), inputs), whole) for count in (1, 2, 5)
    }


def test_bert_with_masks_and_token_types(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=90,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=40,
        use_cache=False,
    )
    model = transformers.BertModel(config).eval()
    export(model, ("input_ids", "attention_mask", "token_type_ids"), tmp_path / "bert.onnx")
    graph = import_onnx(tmp_path / "bert.onnx", batch=2, shapes={"seq": 7})
    inputs = BACKEND.example_inputs(graph, seed=1)
    ranges = {name: (int(array.min()), int(array.max())) for name, array in inputs.items()}
    assert ranges["attention_mask"] == ranges["token_type_ids"] == (0, 1)
    assert 40 < ranges["input_ids"][1] < 90
    assert sum(node.kind is OpKind.EMBEDDING for node in graph.nodes) == 3
    assert {node.module_path for node in graph.nodes} >= {"encoder.layer.0.attention.self.query", "pooler.dense"}
    assert max(differences(model, graph).values()) < 1e-5


def test_gpt2_with_a_head_tied_to_its_embedding(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=90, n_positions=40, n_embd=32, n_layer=2, n_head=2, use_cache=False)
    model = transformers.GPT2LMHeadModel(config).eval()
    # the exporter's optimizer would fold the transposed table into a second weight
    export(model, ("input_ids", "attention_mask"), tmp_path / "gpt2.onnx", optimize=False)
    graph = import_onnx(tmp_path / "gpt2.onnx", batch=2, shapes={"seq": 7})
    (tied,) = graph.tied.values()
    readers = {graph.nodes[i].kind for name in tied for i in graph.consumers[name]}
    assert readers == {OpKind.EMBEDDING, OpKind.GEMM}
    assert max(differences(model, graph).values()) < 1e-5


def test_a_mask_that_hides_padding_changes_the_output(tmp_path: Path) -> None:
    """The generated mask reaches the model: without it the outputs are others."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=90, n_positions=40, n_embd=32, n_layer=1, n_head=2, use_cache=False)
    model = transformers.GPT2Model(config).eval()
    export(model, ("input_ids", "attention_mask"), tmp_path / "gpt2.onnx")
    graph = import_onnx(tmp_path / "gpt2.onnx", batch=4, shapes={"seq": 7})
    inputs = BACKEND.example_inputs(graph, seed=1)
    assert 0 < inputs["attention_mask"].mean() < 1
    masked = BACKEND.reference(graph)(inputs)
    plain = BACKEND.reference(graph)(inputs | {"attention_mask": np.ones_like(inputs["attention_mask"])})
    assert largest_difference(masked, plain) > 1e-3
