"""The default output of five kinds of models: 25 lines of 80 columns, with every fact that a first reader needs."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from light_models import path
from onnx import TensorProto, helper, numpy_helper
from printed import printed
from test_tiny import tiny_onnx
from torch import Tensor, nn

import heterps_compile
from heterps_compile.fit_lines import cells


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q_proj(x) @ self.k_proj(x).transpose(1, 2)
        return torch.softmax(scores, -1) @ self.v_proj(x)


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.self_attn, self.norm, self.fc = Attention(width), nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu(self.norm(x + self.self_attn(x))))


class Former(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed_tokens, self.layers = nn.Embedding(100, width), nn.Sequential(Layer(width), Layer(width))
        self.lm_head = nn.Linear(width, 100)

    def forward(self, ids: Tensor) -> Tensor:
        return self.lm_head(self.layers(self.embed_tokens(ids)))


def command(words: str) -> str:
    code, out, err = printed(words)
    assert (code, err) == (0, "")
    return str(out)


def vision() -> str:
    return command(f"{path('squeezenet')} --method greedy --min-stages 2 -o out")


def transformer() -> str:
    torch.manual_seed(0)
    compiled = heterps_compile.compile(Former(), (torch.randint(0, 100, (4, 8)),), method="greedy", min_stages=2)
    return f"{compiled.save('out')}\n"


def clicks() -> str:
    """Train with the table on servers."""
    options = "--mode training --tables served --batch 64 --method exact --backend torch --min-stages 2"
    return command(f"{tiny_onnx(Path('clicks.onnx'))} {options} -o out")


def tower() -> str:
    """Cut 42 products with long names into 40 stages."""
    weights = [numpy_helper.from_array(np.eye(8, dtype=np.float32), f"w{i}") for i in range(42)]
    nodes = [
        helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"], f"/model/tower/blocks.{i}/mlp/dense/MatMul")
        for i in range(42)
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 8]) for name in ("x0", "x42")]
    graph = helper.make_graph(nodes, "tower", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), "tower.onnx")
    return command("tower.onnx --min-stages 40 --max-stages 40 --time-limit 5 -o out")


def problem() -> str:
    """Plan given costs: 12 layers on GPUs of one type."""
    layers = [
        {
            "name": f"blocks.{i}.mlp",
            "parameter_bytes": 4e6,
            "activation_bytes_per_sample": 4096,
            "times": [{"device": "gpu", "samples": [1], "forward_s": [1e-3 * (1 + i % 3)], "backward_s": [2e-3]}],
        }
        for i in range(12)
    ]
    edges = [{"from": f"blocks.{i}.mlp", "to": [f"blocks.{i + 1}.mlp"], "bytes_per_sample": 1e4} for i in range(11)]
    device = {"name": "gpu", "kind": "gpu", "network_bandwidth": "1 GB/s", "memory": "16 GiB", "max_units": 30}
    price = {"price": "2 USD/h", "price_source": "made up", "price_date": "2026-01"}
    head = {"format": "heterps-compile problem", "version": 1, "name": "twelve layers", "batch": 64}
    pool = {"device": [{**device, **price}]}
    Path("problem.json").write_text(json.dumps({**head, "layers": layers, "edges": edges, "pool": pool}))
    return command("problem.json --objective price --min-throughput 100 --min-stages 3 -o out")


KINDS: dict[str, Callable[[], str]] = {each.__name__: each for each in (vision, transformer, clicks, tower, problem)}
GOLDEN = ("clicks", "tower")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("kind", KINDS)
def test_the_default_output_fits_a_screen_and_has_every_fact(kind, golden):
    text = KINDS[kind]()
    lines = text.splitlines()
    assert len(lines) <= 25
    assert max(map(cells, lines)) <= 80
    assert re.match(r"(model|problem) +\w.*, (inference|training), batch \d+", lines[0])
    assert re.search(r"^stage +(device +)?replicas +layers +", text, re.MULTILINE)
    assert re.search(r"^ +0 ", text, re.MULTILINE)
    assert re.search(r"^price +[\d.,]+ USD/h", text, re.MULTILINE)
    assert re.search(r"^(throughput|steady state) +[\d.,]+ samples/s", text, re.MULTILINE)
    assert re.search(r"^proven bound +\S", text, re.MULTILINE)
    assert re.search(r"^written to +out", text, re.MULTILINE)
    said = "no: a problem" if kind == "problem" else r"equal on \d inputs?, largest difference [\d.e-]+"
    assert re.search(rf"^verified +{said}", text, re.MULTILINE)
    if kind in GOLDEN:
        shown = re.sub(r"^verified .*?(?=^written)", "verified (numbers)\n", text, flags=re.MULTILINE | re.DOTALL)
        golden(f"report/default_{kind}.txt", shown)


def test_a_price_per_hour_is_the_objective_of_that_name():
    lines = dict(line.split(maxsplit=1) for line in problem().splitlines() if line.startswith(("price ", "proven ")))
    document = json.loads(command("problem.json --objective price --min-throughput 100 --min-stages 3 --json"))
    assert lines["price"] == f"{document['objective']['value']:.2f} USD/h"
