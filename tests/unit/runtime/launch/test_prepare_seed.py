"""A seed that changes nothing of an inference is refused."""

from types import SimpleNamespace
from typing import Any

import pytest

from heterps_compile.errors import RunError
from heterps_compile.plan.plan import Artifact
from heterps_compile.runtime.launch.prepare import refuse_idle_seed
from heterps_compile.runtime.launch.run_options import RunOptions


def check(folder, line: str, name: str = "stage_0.py", **changed: Any) -> None:
    (folder / name).write_text(f"import torch\n{line}\n")
    options = RunOptions(**({"directory": str(folder), "data": "x.parquet", "seed": 5} | changed))
    plan: Any = SimpleNamespace(artifacts=((Artifact(name, ""), Artifact("stage_0.safetensors", "")),))
    refuse_idle_seed(options, plan, folder)


@pytest.mark.parametrize(
    "line",
    [
        "dropout = torch.dropout(linear, 0.3, False)",
        "dropout = torch.ops.aten.dropout.default(linear, 0.3, False)",
        "a = F.scaled_dot_product_attention(q, k, v)",
        "a = F.scaled_dot_product_attention(q, k, v, None, 0.0, True)",
        "DRAWS = False",
    ],
)
def test_where_no_stage_draws_it_is_refused(tmp_path, line):
    with pytest.raises(RunError, match=r"--seed 5\b"):
        check(tmp_path, line)
    check(tmp_path, line, seed=0)
    check(tmp_path, line, data="random")
    check(tmp_path, line, train="train.py")


@pytest.mark.parametrize(
    "line",
    [
        "dropout = torch.dropout(linear, 0.3, True)",
        "dropout = F.dropout(linear, 0.3)",
        "r = torch.ops.aten.randn_like.default(x)",
        "b = torch.bernoulli(x)",
        "a = F.scaled_dot_product_attention(q, k, v, None, 0.25)",
        "a = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)",
        "DRAWS = True",
    ],
)
def test_where_a_stage_may_draw_it_is_taken(tmp_path, line):
    check(tmp_path, line)


def test_onnx_runtime_has_numbers_of_its_own(tmp_path):
    with pytest.raises(RunError):
        check(tmp_path, "RandomNormalLike", name="stage_0.onnx")
