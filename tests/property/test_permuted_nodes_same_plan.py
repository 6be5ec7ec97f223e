"""Permuting the nodes of a model changes no plan and no bound, whatever is asked for, and however many are alike."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from permuted import permuted_graph
from sketch import sketch

from heterps_compile.cluster.load import load_cluster
from heterps_compile.cost.problem import Problem
from heterps_compile.passes.drafts import Draft, Placed
from heterps_compile.passes.pipeline import run_to
from heterps_compile.plan.request import Request

POOL = load_cluster("heterps-paper")

# four towers on three inputs: the first two are equal and share their table, the third shares a product's weights
TOWERS = sketch("""
    in ids 64
    in more 64
    in x 64x8
    par shared 1000x8
    par own 100x8
    par w 8x32
    par v 8x32
    par u 8x32
    par top 128x16
    par head 16x1
    embedding emb_a : ids shared -> ea 64x8
    embedding emb_b : ids shared -> eb 64x8
    embedding emb_c : more own -> ec 64x8
    gemm fc_a : ea w -> ha 64x32
    gemm fc_b : eb w -> hb 64x32
    elementwise act_b : hb -> rb 64x32
    gemm fc_c : ec v -> hc 64x32
    gemm side : x u -> hx 64x32
    elementwise cat : ha rb hc hx -> all 64x128
    gemm mix : all top -> m 64x16
    gemm out : m head -> y 64x1
    out y
""")

ASKED: dict[str, dict[str, Any]] = {
    "cost": {"min_stages": 3},
    "cost in training, pinned": {"mode": "training", "pins": (("embedding", "cpu-core"), ("mix", "v100"))},
    "price": {"objective": "price", "min_throughput": 1e5, "min_stages": 2},
    "throughput in training": {"objective": "throughput", "mode": "training"},
    "throughput, pinned": {
        "objective": "throughput",
        "budget_per_hour": 5.0,
        "pins": (("gemm", "v100"), ("fc_c", "cpu-core")),
    },
    "latency": {"objective": "latency", "min_stages": 2, "max_stages": 4},
    "max-load in training": {"objective": "max-load", "mode": "training"},
    "by the default method": {"method": "best", "min_stages": 4},
}


def pins_by(old_names: dict[str, str], pins: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Name the layers of pins as the permuted model does; kinds stay."""
    new = {old: name for name, old in old_names.items()}
    return tuple((new.get(pattern, pattern), device) for pattern, device in pins)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name == "throughput in training" else ()) for name in ASKED],
)
def test_the_order_of_nodes_changes_nothing(name: str) -> None:
    asked = {"method": "exact", **ASKED[name]}
    one = run_to(Draft(graph=TOWERS, cluster=POOL, request=Request(**asked)), Placed)
    permuted = permuted_graph(TOWERS, seed=len(name))
    if "pins" in asked:
        asked["pins"] = pins_by(dict(permuted.old_names), asked["pins"])
    other = run_to(Draft(graph=permuted.graph, cluster=POOL, request=Request(**asked)), Placed)
    for field in ("placement", "value", "bound", "bound_of_all_orders", "found_by"):
        assert getattr(other.search, field) == getattr(one.search, field), field
    assert other.other == one.other
    for each in fields(Problem):
        if each.name != "layer_names":
            old, new = getattr(one.problem, each.name), getattr(other.problem, each.name)
            assert np.array_equal(old, new) if isinstance(old, np.ndarray) else old == new, each.name
