"""One plan has one step, whoever computes it: search, plan file, simulation and review."""

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
from heterps_compile.passes.placement.steps.step_plans import with_units
from heterps_compile.passes.step_orders import steps_of
from heterps_compile.plan.file import from_json, to_json
from heterps_compile.plan.request import ALONE
from heterps_compile.review.pose import pose_again
from heterps_compile.review.today import plan_today
from heterps_compile.schedule.shortest_step import step_under
from heterps_compile.simulation.plan_steps import plan_loads, possible_counts, simulate_plan

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


def searched_s(of, found, types, sizes, count):
    """Return the step that the searches for plans and for machines have for the stages of a plan."""
    starts, name = np.cumsum(sizes).tolist(), found.schedule.name
    cuts = tuple(at for at, a, b in zip(starts, types, types[1:], strict=False) if a == b)
    placement = Placement(tuple(np.repeat(types, sizes).tolist()), cuts)
    [own] = with_units(of, placement, [stage.replicas for stage in found.stages], [count])
    return step_under(name, of.with_memory(placement, own.loads), count, training=of.training).step_s


def steps_of_plan(found, posed, review):
    """Yield the step of a plan as its file, its review, and the searches have it."""
    schedule = found.schedule
    read = from_json(to_json(found), "plan.json")
    yield "simulate", simulate_plan(read, plan_loads(read), schedule.name, schedule.micro_batches).step_s
    names, sizes = posed.problem.type_names, [len(stage.layers) for stage in found.stages]
    if any(stage.mixed for stage in found.stages):
        units = tuple(tuple(dict(stage.units).get(name, 0) for name in names) for stage in found.stages)
        starts = (0, *np.cumsum(sizes)[:-1].tolist())
        yield "mixed", next(step.step_s for *_, step in mixed_steps(posed, [MixedPlacement(starts, units)]))
        return
    yield "review", plan_today(review(read)).plan.schedule.step_s
    types = [names.index(stage.device) for stage in found.stages]
    yield "search", searched_s(steps_of(posed), found, types, sizes, schedule.micro_batches)
    for count in possible_counts(found):  # the file has the times of some, and where a line between them bends
        expected_s = searched_s(steps_of(posed), found, types, sizes, count)
        assert simulate_plan(read, plan_loads(read), schedule.name, count).step_s == pytest.approx(expected_s, rel=1e-9)
    if found.request.minimises_step:
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
