"""Placements that fit as their schedule holds them, beside all placements, replicas' schedules and recomputations."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from types import SimpleNamespace

import numpy as np
import pytest
from sketch import sketch

from heterps_compile.cluster.devices import Cluster, DeviceType
from heterps_compile.cost.evaluate import Fault, detail
from heterps_compile.cost.layer_cost import LayerCost
from heterps_compile.cost.problem import Placement, SearchResult
from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.ir.graph import OpKind
from heterps_compile.ir.layers import Layer, LayerGraph
from heterps_compile.passes.choose_schedule import ChooseSchedule, step_of
from heterps_compile.passes.drafts import Annotated, Draft, Fused, Placed, Posed, Provisioned, Scheduled, advance
from heterps_compile.passes.fuse_stages import FuseStages
from heterps_compile.passes.place_layers import PlaceLayers
from heterps_compile.passes.pose_problem import PoseProblem
from heterps_compile.passes.provision import Provision
from heterps_compile.plan.placed_stages import stages_of
from heterps_compile.plan.request import Request

BATCH = 8
PASSES = (FuseStages(), Provision(), ChooseSchedule())


def unit(name: str, memory_bytes: float, max_units: int = 2, flops: float = 1e9) -> DeviceType:
    return DeviceType(
        name=name,
        kind="gpu",
        price_per_hour=1.0,
        price_source="made up",
        max_units=max_units,
        memory_bytes=memory_bytes,
        peak_flops={"float32": flops},
        memory_bytes_per_s=1e12,
        network_bytes_per_s=1e9,
        network_latency_s=1e-7,
        input_bytes_per_s=1e9,
        launch_s=1e-7,
        efficiency=1.0,
        compute_parallel=1.0,
        data_parallel=1.0,
    )


def chain(widths: Sequence[int], insides: Sequence[int]) -> Annotated:
    """Return a chain of products between values of such widths, with so many elements a sample inside of each."""
    lines = [f"in v0 {BATCH}x{widths[0]}"]
    for i, (one, other) in enumerate(pairwise(widths)):
        lines.append(f"par w{i} {one}x{other}")
        lines.append(f"gemm fc{i} : v{i} w{i} -> v{i + 1} {BATCH}x{other} flops={2 * BATCH * one * other}")
    graph = replace(sketch("\n".join([*lines, f"out v{len(widths) - 1}"]), batch=BATCH), batch_symbol="batch")
    layers = LayerGraph(graph, tuple(Layer(f"fc{i}", OpKind.GEMM, (i,), (f"w{i}",)) for i in range(len(widths) - 1)))
    costs = tuple(
        LayerCost(
            2 * BATCH * one * other,
            4 * one * other,
            4 * one * other,
            4 * BATCH * one,
            4 * BATCH * other,
            4 * BATCH * (one + other),
            1,
            "compute",
            "",
            inside_bytes=4 * BATCH * inside,
        )
        for one, other, inside in zip(widths, widths[1:], insides, strict=False)
    )
    return advance(
        Draft(
            graph=graph,
            cluster=Cluster("pool", "", "USD", (unit("a", 1e9),)),
            request=Request(mode="training", objective="throughput", reading="steady-state"),
        ),
        Annotated,
        layers=layers,
        costs=costs,
    )


def with_pool(draft: Annotated, *units: DeviceType, **asked: str) -> Posed:
    pool = Cluster("pool", "", "USD", units)
    request = replace(draft.request, method="exact", **asked)
    return PoseProblem()(replace(draft, cluster=pool, request=request))


def planned(posed: Posed) -> Scheduled:
    draft = PlaceLayers()(posed)
    for each in PASSES:
        draft = each(draft)
    return draft


def provisioned(posed: Posed, placement: Placement) -> Provisioned:
    search = SearchResult(placement, 0.0, 0.0, "", 0, 0, 0.0)
    placed = advance(posed, Placed, search=search)
    return Provision()(advance(placed, Fused, stages=stages_of(posed.problem, placement)))


def placements(posed: Posed) -> list[Placement]:
    layers, types = posed.problem.layer_count, range(posed.problem.type_count)
    return list(
        {
            Placement.of_stages(chosen, np.cumsum((0, *cuts)).tolist())
            for chosen in product(types, repeat=layers)
            for cuts in product((0, 1), repeat=layers - 1)
        }
    )


def drawn(draw: np.random.Generator) -> tuple[Annotated, tuple[DeviceType, ...]]:
    widths = draw.integers(2, 40, 4).tolist()
    insides = draw.integers(0, 300, 3).tolist()
    draft = chain(widths, insides)
    most = 1.2 * sum(16 * one * other for one, other in pairwise(widths))
    most += 1.2 * sum(max(c.input_bytes + c.output_bytes, c.inside_bytes) for c in draft.costs)
    rooms = most * draw.uniform(0.15, 0.9, 2)
    return draft, (unit("a", float(rooms[0])), unit("b", float(rooms[1]), 1, 2e9))


def test_the_searchs_memory_refuses_no_plan_that_any_schedule_fits():
    draw, fitted, refused = np.random.default_rng(3), 0, 0
    for number in range(12):
        draft, units = drawn(draw)
        posed = with_pool(draft, *units, recompute=("auto", "never")[number % 2])
        for placement in placements(posed):
            priced = detail(posed.problem, placement)
            if priced.faults & ~Fault.MEMORY:
                continue
            fits = step_of(provisioned(posed, placement)).best.fits
            assert not (fits and priced.faults & Fault.MEMORY)
            fitted, refused = fitted + fits, refused + bool(priced.faults)
    assert fitted > 50
    assert refused > 50


def best_by_hand(posed: Posed) -> float:
    """Return the least time of a batch over all placements that fit under their schedule; inf where none does."""
    found = [np.inf]
    for placement in placements(posed):
        if not detail(posed.problem, placement).faults:
            draft = provisioned(posed, placement)
            step = step_of(draft)
            found += [max(stage.time_s for stage in step.stages(draft))] if step.best.fits else []
    return min(found)


def test_the_plan_is_the_best_of_all_placements_that_fit_as_they_are_held():
    draw, outcomes = np.random.default_rng(5), []
    for _ in range(8):
        draft, units = drawn(draw)
        posed = with_pool(draft, *units)
        room = {each.name: each.memory_bytes for each in units}
        try:
            plan = planned(posed)
        except InfeasibleError:
            assert best_by_hand(posed) == np.inf
            outcomes.append("none")
        else:
            assert all(stage.memory.total_bytes <= room[stage.device] * (1 + 1e-9) + 2 for stage in plan.stages)
            slowest_s = max(stage.time_s for stage in plan.stages)
            assert plan.search.value == pytest.approx(slowest_s) == pytest.approx(best_by_hand(posed))
            assert plan.search.bound <= plan.search.value
            outcomes.append("recomputes" if any(stage.recompute for stage in plan.stages) else "keeps")
    assert {"none", "recomputes", "keeps"} <= set(outcomes)


def test_where_no_plan_keeps_its_activations_one_recomputes():
    """Two layers, each with 15.6 KiB inside of it a sample: the first holds those of two samples, or of one again."""
    draft, units = chain((8, 8, 8), (4000, 4000)), (unit("a", 30e3, 1), unit("b", 30e3, 1))
    with pytest.raises(InfeasibleError, match=r"KiB.*little.*--recompute"):
        planned(with_pool(draft, *units, recompute="never"))
    plan = planned(with_pool(draft, *units))
    assert [stage.recompute for stage in plan.stages] == [True, False]
    assert (plan.schedule.name, plan.schedule.micro_batches) == ("1f1b", 8)
    assert plan.search.bound < plan.search.value
    floor = 0.9 * BATCH / plan.search.bound  # which repeated forwards do not reach
    draft = replace(draft, request=replace(draft.request, min_throughput=floor))
    with pytest.raises(InfeasibleError):
        planned(with_pool(draft, *units))


def test_always_recomputes_every_stage_and_its_computation_is_in_the_value_and_the_bound():
    draft = chain((8, 8, 8), (40, 40))
    kept, again = (planned(with_pool(draft, unit("a", 1e9, 1), recompute=how)) for how in ("auto", "always"))
    assert [stage.recompute for stage in kept.stages] == [False]
    assert [stage.recompute for stage in again.stages] == [True]
    assert again.search.value == pytest.approx(again.search.bound)
    assert again.stages[0].compute_s == pytest.approx(kept.stages[0].compute_s * 4 / 3, rel=1e-3)
    assert again.stages[0].memory.inputs_bytes > 0


def test_a_weight_that_a_forward_changes_keeps_its_stage_from_recomputing():
    draft = chain((8, 8, 8), (40, 40))

    graph = replace(draft.graph, source=SimpleNamespace(writes={"fc1": ("w1",)}))
    draft = replace(draft, graph=graph, layers=replace(draft.layers, graph=graph))
    with pytest.raises(InputError, match=r"'w1'.*--recompute"):
        with_pool(draft, unit("a", 1e9), recompute="always")
    posed = with_pool(draft, unit("a", 1e9))
    stages = provisioned(posed, Placement((0, 0), (1,))).stages
    assert [stage.memory.recompute for stage in stages] == ["auto", "never"]
