"""One plan has one step, whoever computes it: search, plan file, simulation, review, prediction and machines."""

import numpy as np
import pytest
import torch
from reviewed import device
from torch import nn

import heterps_compile
from heterps_compile.api import open_draft
from heterps_compile.cluster.devices import Cluster, Link, ParameterServer
from heterps_compile.cost.mixed_units import MixedPlacement
from heterps_compile.cost.problem import Placement
from heterps_compile.passes.drafts import Posed
from heterps_compile.passes.mixed_stages import mixed_steps
from heterps_compile.passes.pipeline import run_to
from heterps_compile.passes.place_given_steps import _steps
from heterps_compile.passes.place_layers import steps_of
from heterps_compile.passes.placement.steps.step_plans import with_units
from heterps_compile.plan.file import from_json, to_json
from heterps_compile.plan.request import ALONE, make_request
from heterps_compile.prediction.predict_step import predict_step
from heterps_compile.problem_file.given_plan import GivenPlan, GivenReplicas, GivenStage
from heterps_compile.problem_file.pose_given import pose_given
from heterps_compile.problem_file.read_problem import FORMAT, make_given
from heterps_compile.review.pose import pose_again
from heterps_compile.review.today import plan_today
from heterps_compile.schedule.shortest_step import step_under
from heterps_compile.simulation.plan_steps import plan_loads, simulate_plan

RULE = {"synchronisation": "topk(density=0.1)"}
MORE = (RULE, {"tables": "served"}, {"mixed_stages": True}, {"recompute": "always"})


class Drawn(nn.Module):
    """A table and two to five pairs of products, each of which may read earlier values too."""

    def __init__(self, rng):
        super().__init__()
        count = int(rng.integers(2, 6))
        wide = [int(rng.choice([64, 512, 4096])) for _ in range(count)]
        self.table = nn.Embedding(10_000, 64)
        self.pairs = nn.ModuleList(nn.Sequential(nn.Linear(64, each), nn.Linear(each, 64)) for each in wide)
        self.also = [np.flatnonzero(rng.random(i) < 0.7).tolist() for i in range(count)]

    def forward(self, ids):
        values = [self.table(ids)]
        for pair, also in zip(self.pairs, self.also, strict=True):
            values.append(pair(sum((values[i] for i in also), values[-1])))
        return values[-1]


def drawn_pool(rng):
    """Draw two types of units, some with a link of their own."""
    types = [
        device(name, "cpu", 1.0, 1e12 * rng.uniform(0.5, 2), max_units=int(rng.integers(2, 5)),
               network_bytes_per_s=10 ** rng.uniform(5, 8), network_latency_s=10 ** rng.uniform(-6, -4))
        for name in ("one", "two")
    ]  # fmt: skip
    links = (Link(("one", "two"), 10 ** rng.uniform(7, 10), 1e-5),) if rng.random() < 0.3 else ()
    servers = ParameterServer(0.03, "made up", "2026", 1e9)
    return Cluster("drawn", "made up", "USD", tuple(types), links=links, parameter_server=servers)


def placement_of(types, sizes):
    """Return the placement of stages on types."""
    starts = np.cumsum(sizes).tolist()
    cuts = tuple(at for at, a, b in zip(starts, types, types[1:], strict=False) if a == b)
    return Placement(tuple(np.repeat(types, sizes).tolist()), cuts)


def searched_s(of, schedule, micro_batches, *, types, sizes, units):
    """Return the step that the searches for plans and for machines have for stages."""
    placement = placement_of(types, sizes)
    [own] = with_units(of, placement, units, [micro_batches])
    return step_under(schedule, of.with_memory(placement, own.loads), micro_batches, training=of.training).step_s


def steps_of_plan(found, posed, review):
    """Yield the step of a plan as its file, its review, and the searches have it."""
    schedule, request = found.schedule, found.request
    read = from_json(to_json(found), "plan.json")
    yield "simulate", simulate_plan(read, plan_loads(read), schedule.name, schedule.micro_batches).step_s
    names, sizes = posed.problem.type_names, [len(stage.layers) for stage in found.stages]
    if any(stage.mixed for stage in found.stages):
        units = tuple(tuple(dict(stage.units).get(name, 0) for name in names) for stage in found.stages)
        starts = (0, *np.cumsum(sizes)[:-1].tolist())
        yield "mixed", next(step.step_s for *_, step in mixed_steps(posed, [MixedPlacement(starts, units)]))
        return
    yield "review", plan_today(review(read)).plan.schedule.step_s
    types, units = [names.index(stage.device) for stage in found.stages], [stage.replicas for stage in found.stages]
    yield (
        "search",
        searched_s(steps_of(posed), schedule.name, schedule.micro_batches, types=types, sizes=sizes, units=units),
    )
    if request.minimises_step:
        yield "value", found.value


# slow: every case compiles a model
@pytest.mark.parametrize("asked", [{}, *(pytest.param(each, marks=pytest.mark.slow) for each in MORE)], ids=str)
@pytest.mark.parametrize("seed", [0, 19])  # of the second one, messages wait for a wire
def test_a_step_of_a_model_is_one_number(seed, asked):
    rng = np.random.default_rng(seed)
    with torch.device("meta"):
        model, inputs = Drawn(rng), (torch.zeros(4, dtype=torch.long),)
    pool, mode = drawn_pool(rng), ("training", "inference")[seed % 2]
    if "synchronisation" in asked or "recompute" in asked:
        mode = "training"
    reading = ALONE if seed % 4 < 2 and "mixed_stages" not in asked else None
    least = int(rng.integers(2, 5)) if "mixed_stages" not in asked else 1
    of_all = {"objective": "throughput", "batch": 64, "cluster": pool, "time_limit": 1.0}
    asked = {"mode": mode, "reading": reading, "min_stages": least, **of_all, **asked}
    found = heterps_compile.compile(model, inputs, verify=False, **asked).plan
    posed = run_to(open_draft(model, inputs, **asked), Posed)
    steps_s = dict(steps_of_plan(found, posed, lambda read: pose_again(model, read, inputs, cluster=pool)))
    assert steps_s == pytest.approx(dict.fromkeys(steps_s, found.schedule.step_s), rel=1e-9)


def drawn_given(rng):
    """Draw a problem of two to five layers whose values may skip, without what searches leave out."""
    training, count = bool(rng.random() < 0.6), int(rng.integers(2, 6))
    pool = [
        {"name": name, "kind": "gpu", "price": "1 USD/h", "price_source": "x", "price_date": "2026", "max_units": 16,
         "memory": "64 GB", "network_bandwidth": f"{10 ** rng.uniform(5, 8):.6g} B/s", "network_latency": "100 us",
         "compute_parallel": float(rng.choice([1, 0.9]))}
        for name in "ab"
    ]  # fmt: skip

    def times(name):
        forward_s = rng.uniform(0.001, 0.02) * np.array([1, 4])
        backward_s = {"backward_s": (2 * forward_s).tolist()} if training else {}
        return {"device": name, "samples": [1, 4], "forward_s": forward_s.tolist(), **backward_s}

    layers = [
        {"name": f"l{i}", "parameter_bytes": int(10 ** rng.uniform(2, 6)), "activation_bytes_per_sample": 10,
         "times": [times(name) for name in "ab"]}
        for i in range(count)
    ]  # fmt: skip
    edges = [
        {"from": f"l{i}", "to": sorted({f"l{i + 1}", f"l{rng.integers(i + 1, count)}"}),
         "bytes_per_sample": 10 ** rng.uniform(2, 5)}
        for i in range(count - 1)
    ]  # fmt: skip
    document = {"format": FORMAT, "version": 1, "name": "drawn", "layers": layers, "edges": edges, "batch": 16}
    return make_given({**document, "pool": {"device": pool}}, "drawn")


@pytest.mark.parametrize("seed", range(30))
def test_a_step_of_a_problem_file_is_one_number(seed):
    rng = np.random.default_rng(seed)
    given = drawn_given(rng)
    mode = "training" if given.training else "inference"
    posed = pose_given(given, make_request("USD", mode=mode, objective="throughput", reading=ALONE))
    ends = sorted({*rng.integers(1, len(given.layers) + 1, 3).tolist(), len(given.layers)})
    sizes = np.diff([0, *ends]).tolist()
    types, units = rng.integers(0, 2, len(sizes)).tolist(), rng.integers(1, 5, len(sizes)).tolist()
    stages = tuple(
        GivenStage(tuple(range(end - size, end)), (GivenReplicas(posed.groups[t].device, k),))
        for end, size, t, k in zip(ends, sizes, types, units, strict=True)
    )
    count, schedule = int(rng.choice([4, 8, 16])), ("gpipe", "1f1b")[seed % 2] if given.training else "gpipe"
    predicted_s = predict_step(given, GivenPlan(stages, 16 // count, 16, schedule)).step_s
    assert searched_s(_steps(given, posed), schedule, count, types=types, sizes=sizes, units=units) == pytest.approx(
        predicted_s, rel=1e-9
    )
