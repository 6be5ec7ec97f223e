"""Inference through ranks, on stages of every backend."""

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from trained_models import SkipNet

import heterps_compile
from heterps_compile.plan.folder import read_folder
from heterps_compile.runtime.pipeline.engine import Engine
from heterps_compile.runtime.pipeline.layout import StepShape, make_layout
from heterps_compile.runtime.pipeline.rank_parts import RankParts
from heterps_compile.runtime.pipeline.read_stage import read_stage, read_tied

SAMPLES, MICRO_BATCHES, STEPS = 12, 4, 3


def inputs_of(step: int) -> torch.Tensor:
    return torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(step))


def infer_rank(rank: int, folders: list[Path], widths: tuple[int, ...]) -> list[Any]:
    """Run every folder; give the outputs of every step, by micro-batch, as lists."""
    made = []
    for folder in folders:
        plan, _ = read_folder(folder)
        layout = make_layout(
            plan, training=False, replicas=widths, step=StepShape(micro_batches=MICRO_BATCHES, batch=SAMPLES)
        )
        stages = {index: read_stage(folder, plan, index, torch.device("cpu")) for index in layout.stages_of(rank)}
        engine = Engine(RankParts(plan, layout, rank, stages, tied=read_tied(folder, plan)))
        outputs = []
        for step in range(STEPS):
            parts = inputs_of(step).chunk(MICRO_BATCHES)
            found = engine.infer(step, lambda i, names, parts=parts: dict.fromkeys(names, parts[i]))
            outputs.append({i: {name: value.tolist() for name, value in of.items()} for i, of in found.items()})
        engine.finish()
        made.append(outputs)
    return made


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.onnx.*", "ignore::FutureWarning:torch.onnx.*")
@pytest.mark.parametrize(
    "backends", [["torch"], pytest.param(["onnxruntime", "jax"], marks=pytest.mark.slow)], ids=" ".join
)
def test_stages_of_every_backend_infer_what_the_model_does(tmp_path, backends):
    model = SkipNet(4).eval()
    free = torch.export.Dim("batch", min=2, max=1024)
    for backend in backends:
        heterps_compile.compile(
            model, (inputs_of(0),), dynamic_shapes=({0: free},), backend=backend, method="greedy", min_throughput=1.0,
            min_stages=3, max_stages=3, verify=False,
        ).save(tmp_path / backend)  # fmt: skip
    by_rank = run_ranks(infer_rank, 4, [tmp_path / backend for backend in backends], (1, 1, 2))
    names = read_folder(tmp_path / backends[0])[0].graph_outputs
    assert [of_rank[0] for of_rank in by_rank[:2]] == [[{}] * STEPS] * 2
    for place, _ in enumerate(backends):
        for step in range(STEPS):
            found = {**by_rank[2][place][step], **by_rank[3][place][step]}
            assert sorted(by_rank[2][place][step]) == [0, 2]
            whole = model(inputs_of(step))
            for name, expected in zip(names, (whole["early"], whole["logits"]), strict=True):
                staged = torch.cat([torch.tensor(found[i][name]) for i in range(MICRO_BATCHES)])
                torch.testing.assert_close(staged, expected.detach(), rtol=1e-5, atol=1e-6)
