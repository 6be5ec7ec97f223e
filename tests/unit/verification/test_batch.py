"""The batch that verification runs at: the plan's, a smaller one that spares memory, or none where nothing fits."""

from typing import Any

import pytest
import torch
from staged_onnx import parse
from torch import nn
from torch.export import Dim

import heterps_compile
from heterps_compile.backends.find import find_backend
from heterps_compile.errors import VerificationError
from heterps_compile.ir.graph import Graph
from heterps_compile.passes.drafts import Draft, Emitted
from heterps_compile.plan.plan import Verification
from heterps_compile.verification.batch import MemoryLimits, choose_batch, with_batch, working_set_bytes
from heterps_compile.verification.draft import verify_draft

SPARING = MemoryLimits(2**40, 2**14)
MIB = 2**20


def drafted(model: Any, *args: Any, backend: str | None = None, **options: Any) -> Emitted:
    """Return the draft of a model in two stages, not yet verified."""
    drafts: list[Draft] = []
    heterps_compile.compile(
        model,
        *args,
        backend=backend,
        observer=lambda _, draft: drafts.append(draft),
        **{"method": "greedy", "min_stages": 2, "verify": False} | options,
    )
    emitted = drafts[-1]
    assert isinstance(emitted, Emitted)
    return emitted


def verified(draft: Emitted, limits: MemoryLimits, backend: str) -> tuple[Verification | None, tuple[str, ...]]:
    return verify_draft(find_backend(backend), draft, limits)


WEIGHT = "<float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}>"
ONNX = f"g (float[N, 4] x) => (float[N, 4] y) {WEIGHT} {{ a = MatMul(x, w) b = Sin(a) c = MatMul(b, w) y = Cos(c) }}"
"""Every value of a sample is 16 bytes."""


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.second(self.norm(self.first(x)).relu())
        return made


class Pairs(nn.Module):
    """The second input has twice the samples of the first."""

    def forward(self, x: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) + pairs.reshape(x.shape[0], 2, -1).sum(1)


def of_torch(backend: str, mode: str) -> Emitted:
    module = Two().train(mode == "training")
    shapes: Any = ({0: Dim("n", min=2)},)
    return drafted(module, (torch.randn(4, 64),), batch=10_000, dynamic_shapes=shapes, backend=backend, mode=mode)


@pytest.mark.parametrize("backend", ["onnxruntime", "torch", "jax"])
def test_stages_of_an_onnx_model_are_verified_at_a_smaller_batch(backend: str) -> None:
    found, notes = verified(drafted(parse(ONNX), batch=10_000, backend=backend), SPARING, backend)
    assert found is not None
    assert notes == ("verified at batch 170 of 10,000, to spare memory",)


@pytest.mark.slow  # whole models, compiled and run
@pytest.mark.parametrize(
    ("backend", "mode"),
    [("torch", "training"), ("jax", "training"), ("torch", "inference"), ("onnxruntime", "inference")],
)
def test_stages_of_a_torch_model_are_verified_at_a_smaller_batch(backend: str, mode: str) -> None:
    found, notes = verified(of_torch(backend, mode), SPARING, backend)
    assert found is not None
    assert (found.gradients > 1, found.calls) == ((True, 2) if mode == "training" else (False, 1))
    batch = 5 if mode == "training" else 9
    assert f"verified at batch {batch} of 10,000, to spare memory" in notes


def test_at_a_smaller_batch_a_wrong_stage_is_found() -> None:
    draft = drafted(parse(ONNX), batch=10_000, backend="torch")
    draft.runnable[-1].register_forward_hook(lambda _stage, _values, results: tuple(r * 1.01 for r in results))
    with pytest.raises(VerificationError, match="output"):
        verified(draft, SPARING, "torch")


def test_the_batch_of_the_plan_is_taken_where_memory_is_there() -> None:
    found, notes = verified(drafted(parse(ONNX), batch=170, backend="torch"), SPARING, "torch")
    assert (found is not None, notes) == (True, ())


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_run_that_does_not_fit_at_all_is_left_out_and_told_with_numbers(dynamic: bool) -> None:
    model = parse(ONNX if dynamic else ONNX.replace("N", "1000"))
    draft = drafted(model, batch=1000, backend="onnxruntime")
    found, notes = verified(draft, MemoryLimits(100, 100), "onnxruntime")
    assert found is None
    what = "the inputs and outputs of the whole model and of its stages, and what is between them, take"
    sizes = "192 B, at a batch of 2 too," if dynamic else "93.8 KiB,"
    assert notes == (f"not verified at a batch of 1,000: {what} {sizes} and 100 B of memory are free",)


def test_a_fixed_batch_that_fits_is_verified_whole() -> None:
    draft = drafted(parse(ONNX.replace("N", "1000")), batch=1000, backend="onnxruntime")
    found, notes = verified(draft, MemoryLimits(2**30, 1000), "onnxruntime")
    assert (found is not None, notes) == (True, ())


def test_a_size_computed_from_the_batch_keeps_the_batch() -> None:
    n = Dim("n", min=2, max=10_000)
    draft = drafted(
        Pairs(), (torch.randn(4, 8), torch.randn(8, 8)), batch=1000, dynamic_shapes=({0: n}, {0: 2 * n}), min_stages=1
    )  # fmt: skip
    found, notes = verified(draft, MemoryLimits(2**30, 1000), "torch")
    assert (found is not None, [note for note in notes if "batch" in note]) == (True, [])


def test_a_batch_that_the_whole_model_does_not_take_is_told() -> None:
    """Groups of eight samples: the batch can be a multiple of eight alone."""
    model = parse(
        "g (float[N, 4] x) => (float[M, 4] y) "
        "<int64[3] grouped = {8, -1, 4}, int64[2] flat = {-1, 4}> "
        "{ a = Reshape(x, grouped) b = Sin(a) y = Reshape(b, flat) }"
    )
    draft = drafted(model, batch=24, backend="onnxruntime", min_stages=1)
    found, (note,) = verified(draft, MemoryLimits(2**30, 256), "onnxruntime")
    assert found is not None
    told = "verified at the batch of 24; a batch of 3 would spare memory, and the whole model does not take it: "
    assert note.startswith(told)


def graph_of(model: str, batch: int) -> Graph:
    return drafted(parse(model), batch=batch, min_stages=1).graph


def test_the_working_set_counts_inputs_outputs_and_what_lives_between() -> None:
    graph = graph_of(ONNX, 65536)  # every value is 1 MiB: x twice, y twice, and at the worst a and b or b and c
    assert working_set_bytes(graph, 65536, 1) == 6 * MIB
    assert working_set_bytes(graph, 32768, 1) == 3 * MIB
    assert working_set_bytes(graph, 65536, 2) == 7 * MIB
    assert working_set_bytes(graph, 65536, 1, is_trained=True) == 10 * MIB


def test_what_no_batch_makes_smaller_does_not_fit_any_better() -> None:
    graph = graph_of(
        "g (float[N, 4] x) => (float[N, 4] y) "
        "{ a = RandomNormal<shape = [1000000, 5]>() b = ReduceSum<keepdims = 0>(a) y = Add(x, b) }",
        8,
    )
    free = MemoryLimits(2**24, 2**20)
    chosen = choose_batch(graph, free, 1, is_trained=False, why_not=lambda _: "never asked")
    assert chosen.graph is None
    assert "take 19.1 MiB, at a batch of 2 too, and 16 MiB of memory are free" in chosen.note


def test_another_batch_changes_inputs_alone() -> None:
    graph = graph_of(ONNX, 1024)
    smaller = with_batch(graph, 16)
    assert (smaller.shape("x"), smaller.batch, smaller.nodes) == ((16, 4), 16, graph.nodes)
