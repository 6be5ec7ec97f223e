"""What a precision makes of values, work, memory and rates, by hand and against torch.autocast."""

from dataclasses import replace
from types import MappingProxyType

import pytest
import torch
from sketch import sketch
from torch import Tensor, nn

import heterps_compile
from heterps_compile.cluster.devices import KindRate
from heterps_compile.cluster.load import load_cluster
from heterps_compile.cost.layer_cost import layer_costs
from heterps_compile.cost.layer_times import layer_times
from heterps_compile.cost.memory import MemoryParts, stage_memory
from heterps_compile.cost.precision import PRECISIONS, in_precision, plain_name, rate_notes
from heterps_compile.errors import InputError
from heterps_compile.ir.graph import Graph, OpKind
from heterps_compile.ir.layers import LayerGraph
from heterps_compile.passes.group_layers import group_nodes
from heterps_compile.plan.file import from_json, to_json
from heterps_compile.plan.provenance import make_hashes
from heterps_compile.plan.request import Request
from heterps_compile.plan_diff.decisions import settings

POOL = load_cluster("heterps-paper")
GRAPH = sketch("""
    in x 4x8
    par w 8x2
    par b 2
    par again 2x6
    gemm fc : x w -> h 4x2 flops=128
    elementwise act : h -> a 4x2 flops=8
    elementwise bias : a b -> c 4x2 flops=8
    softmax soft : a -> s 4x2 flops=40
    elementwise both : a s -> d 4x2 flops=8
    gemm head : d again -> y 4x6 flops=96
    out y c
""")


def dtypes(graph: Graph, precision: str) -> dict[str, str]:
    found = in_precision(graph, precision)
    return {name: found.values[name].dtype for name in graph.values}


def test_products_are_narrow_softmax_is_not_and_what_follows_is_as_wide_as_what_enters():
    half = "bfloat16"
    expected = {"x": "float32", "h": half, "a": half, "c": "float32", "s": "float32", "d": "float32", "y": half}
    assert dtypes(GRAPH, "bf16") == expected
    assert set(dtypes(GRAPH, "fp32").values()) == {"float32"}
    double = replace(GRAPH, values={n: replace(v, dtype="float64") for n, v in GRAPH.values.items()})
    assert set(dtypes(double, "fp16").values()) == {"float64"}, "autocast leaves it alone"


@pytest.mark.parametrize(
    ("op", "plain"),
    [("aten.sum.dim_IntList", "sum"), ("aten.add_.Tensor", "add"), ("com.microsoft::Gelu", "gelu"), ("Cast", "cast")],
)
def test_an_op_has_a_plain_name(op, plain):
    assert plain_name(op) == plain


class Mixed(nn.Module):
    """Products, norms, embeddings, joins, casts, in front of many cuts; nothing of which CPUs and GPUs differ."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.first, self.second, self.table = nn.Linear(4, 8), nn.Linear(8, 8), nn.Embedding(5, 8)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, image: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
        pooled = torch.relu(self.norm(self.convolution(image))).mean((2, 3))
        joined = self.first(pooled) + self.table(ids)
        twice = self.second(torch.relu(self.second(joined)) * 2)
        return joined @ joined.T, torch.cat([twice, twice]), twice * self.scale, twice.float() @ twice.float().T


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_values_have_the_dtypes_that_autocast_leaves_them_in(precision):
    inputs = (torch.randn(2, 3, 8, 8), torch.tensor([1, 2]))
    asked = {"precision": precision, "method": "greedy", "verify": False}
    compiled = heterps_compile.compile(Mixed().eval(), inputs, min_stages=5, **asked)
    predicted = in_precision(compiled.graph, precision).values
    values = dict(zip(compiled.plan.graph_inputs, inputs, strict=True))
    sent = 0
    with torch.no_grad(), torch.autocast("cpu", getattr(torch, PRECISIONS[precision])):
        for stage, planned in zip(compiled.stages, compiled.plan.stages, strict=True):
            made = dict(zip(stage.outputs, stage(*(values[name] for name in stage.inputs)), strict=True))
            values |= made
            sent += planned.sent_bytes
    assert {name: str(value.dtype) for name, value in values.items()} == {
        name: f"torch.{predicted[name].dtype}" for name in values
    }
    narrow = [name for name in values if predicted[name].dtype == PRECISIONS[precision]]
    assert len(narrow) >= 4
    whole = heterps_compile.compile(Mixed().eval(), inputs, min_stages=5, method="greedy", verify=False)
    assert 0 < sent < sum(stage.sent_bytes for stage in whole.plan.stages)


def layers_in(precision: str) -> LayerGraph:
    return LayerGraph(in_precision(GRAPH, precision), group_nodes(GRAPH).layers)


def test_work_and_memory_by_hand():
    wide, narrow = layers_in("fp32"), layers_in("bf16")
    full, half = layer_costs(wide), layer_costs(narrow)
    assert [layer.kind for layer in wide.layers] == [OpKind.GEMM, OpKind.GEMM]
    # x enters as float32, 4 x 8; the weight is read, 8 x 2, its copy is written and read
    assert full[0].copied_bytes == 0
    assert half[0].copied_bytes == 8 * 2 * 2
    assert half[1].copied_bytes == 2 * 6 * 2
    assert half[1].output_bytes * 2 == full[1].output_bytes == 4 * 6 * 4
    assert half[1].moved_bytes == full[1].moved_bytes - 4 * 6 * 2 + 2 * half[1].copied_bytes
    assert (full[1].fixed_bytes, half[1].fixed_bytes) == (2 * 6 * 4, 2 * 6 * 4 + 2 * half[1].copied_bytes)
    memory = stage_memory(narrow, half, 0, 2, optimizer="adam")
    whole = stage_memory(wide, full, 0, 2, optimizer="adam")
    assert memory.held_bytes == whole.held_bytes, "weights, gradients and optimiser states stay float32"
    assert (memory.copies_bytes, whole.copies_bytes) == ((16 + 12) * 2, 0)
    assert memory.activations_bytes < whole.activations_bytes
    assert MemoryParts(8, 0, 0, 2, 1.0, copies_bytes=4).total_bytes == 14


def test_a_type_computes_at_its_rate_for_the_dtype_and_without_one_at_that_of_float32_which_is_said():
    v100 = POOL.device_type("v100")
    rates = MappingProxyType({"float32": 1e3, "bfloat16": 8e3})
    fast = replace(v100, name="fast", peak_flops=rates, launch_s=0.0)
    slow = replace(fast, name="slow", peak_flops=MappingProxyType({"float32": 1e3}))
    pool = replace(POOL, device_types=(fast, slow))
    layers = layers_in("bf16")
    times = layer_times(layers, layer_costs(layers), pool, training=False)
    assert times.compute_s[0, 1] == pytest.approx(8 * times.compute_s[0, 0])
    (note,) = rate_notes(pool, "bf16")
    assert note.startswith("the pool has no bfloat16 rate for 'slow': its products are estimated at the float32 rate")


def test_tf32_is_at_its_own_rate_and_the_default_of_convolutions_alone():
    """PyTorch multiplies float32 in TF32 in cuDNN by default, and in matrix products on demand."""
    v100 = POOL.device_type("v100")
    ampere = replace(v100, name="ampere", peak_flops=MappingProxyType({"float32": 1e3, "tfloat32": 8e3}), launch_s=0.0)
    pool = replace(POOL, device_types=(ampere, replace(ampere, name="volta", peak_flops={"float32": 1e3})))
    images = sketch("""
        in x 4x8
        par w 8x2
        conv taps : x w -> y 4x2 flops=128
        out y
    """)
    conv = LayerGraph(images, group_nodes(images).layers)
    for layers, of_fp32 in ((layers_in("fp32"), 1), (conv, 8)):
        costs = layer_costs(layers)
        for precision, factor in (("fp32", of_fp32), ("tf32", 8)):
            [ours_s, theirs_s], *_ = layer_times(layers, costs, pool, training=False, precision=precision).compute_s
            assert theirs_s == pytest.approx(factor * ours_s)
    measured = replace(ampere, rates=MappingProxyType({"conv": KindRate(0.0, 1e9, 1e9, 2.0, 0.1)}))
    times = [
        layer_times(conv, layer_costs(conv), replace(POOL, device_types=(measured,)), training=False, precision=name)
        for name in ("fp32", "tf32")
    ]
    assert times[0].compute_s == pytest.approx(times[1].compute_s), "what was measured has TF32 in it"
    (note,) = rate_notes(pool, "fp32")
    assert note.startswith("fp32 on 'ampere' is taken as PyTorch runs it: convolutions and recurrence in TF32")
    (note,) = rate_notes(pool, "tf32")
    assert note == "the pool has no tfloat32 rate for 'volta': its products are estimated in float32"
    assert dtypes(GRAPH, "tf32") == dtypes(GRAPH, "fp32")


def test_rates_that_were_measured_in_another_dtype_than_layers_compute_in_are_told_once():
    v100 = POOL.device_type("v100")
    rates = MappingProxyType({"gemm": KindRate(0.0, 1e9, 1e9, 2.0, 0.1)})
    calibrated = replace(v100, peak_flops=MappingProxyType({"float32": 1e9, "bfloat16": 4e9}), rates=rates)
    known = replace(POOL, device_types=(calibrated,))
    unknown = replace(POOL, device_types=(replace(calibrated, peak_flops=MappingProxyType({"float32": 1e9})),))

    def notes(pool, precision):
        layers = layers_in(precision)
        return layer_times(layers, layer_costs(layers), pool, training=False, precision=precision).rate_notes()

    (note,) = notes(known, "bf16")
    assert note.startswith("the rates of 'v100' were measured in float32, and ")
    assert "compute in bfloat16: their arithmetic is taken to be 4 times as fast (the pool's peaks)" in note
    assert note.endswith("(heterps-compile profile --precision bf16)")
    (note,) = notes(unknown, "bf16")
    assert "is taken to be as fast (the pool has no peak for bfloat16)" in note
    assert not list(rate_notes(unknown, "bf16")), "which is told once"
    assert notes(known, "fp32") == ()


def test_a_plan_keeps_its_precision_and_a_changed_one_is_a_decision():
    compiled = heterps_compile.compile(nn.Linear(8, 2), (torch.ones(4, 8),), precision="fp16", method="greedy")
    plan = compiled.plan
    assert from_json(to_json(plan), "it").request.precision == "fp16"
    assert any("no float16 rate for 'cpu-core'" in note for note in plan.notes)
    assert any(note.startswith("for fp16: a run computes under torch.autocast") for note in plan.notes)
    assert str(plan).splitlines()[0].endswith("inference in fp16, batch 4, 1 layer in 1 stage")
    assert settings(plan)["precision"] == "fp16"


def test_a_plan_of_before_there_were_precisions_is_for_float32_and_fresh():
    compiled = heterps_compile.compile(nn.Linear(8, 2), (torch.ones(4, 8),), method="greedy", verify=False)
    text = to_json(compiled.plan)
    older = text.replace('    "precision": "fp32",\n', "").replace(', "copies_bytes": 0', "")
    assert older.count("precision") == older.count("copies_bytes") == 0
    assert from_json(older, "it").request == compiled.plan.request
    hashes = [make_hashes(compiled.graph, POOL, Request(precision=p, method="rl"))["options"] for p in PRECISIONS]
    assert len(set(hashes)) == len(PRECISIONS)
    assert hashes[0] == "d2785567bcd397917de012dea63270a3a1d79ca73f1f55672e1fef3e6da88f67"


class KeepsOut(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            scale = x.float() @ x.float().T
        return super().forward(scale @ x)


def test_a_model_that_keeps_some_of_it_out_of_autocast_is_refused_when_it_is_compiled():
    asked = {"method": "greedy", "verify": False}
    plan = heterps_compile.compile(KeepsOut(8, 2), (torch.ones(4, 8),), **asked).plan
    assert "put in line: 1 region which the model keeps out of torch.autocast, so that stages are for fp32 alone" in (
        plan.notes
    )
    with pytest.raises(InputError, match="'bf16'"):
        heterps_compile.compile(KeepsOut(8, 2), (torch.ones(4, 8),), precision="bf16", **asked)


def test_stages_that_autocast_does_not_reach_are_refused():
    with pytest.raises(InputError, match="'jax'"):
        heterps_compile.compile(nn.Linear(8, 2), (torch.ones(4, 8),), precision="bf16", backend="jax")
