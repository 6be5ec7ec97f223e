"""The choice of machines against brute force: every set of up to three of six offers, each compiled by itself."""

import datetime as dt
from dataclasses import replace
from itertools import combinations

import pytest
import torch

import heterps_compile
from heterps_compile.errors import InfeasibleError
from heterps_compile.machines import Goal, choose
from heterps_compile.machines.machine_set import MachineSet
from heterps_compile.machines.option import outlook_of
from heterps_compile.offers import Catalogue, Offer, Rental

GIB, BATCH = 2**30, 1024
V100 = Offer(
    "aws", "us-east-1", "p3.2xlarge", "v100", 1, 8, 61 * GIB, 16 * GIB, 10e9 / 8, 0.0, 3.06, None,
    dt.date(2026, 11, 1), "here",
)  # fmt: skip
OFFERS = (
    V100,
    replace(V100, instance="p3.8xlarge", gpus=4, inner_bytes_per_s=50e9, price_per_hour=12.24),
    replace(V100, instance="g4dn.xlarge", gpu="t4", price_per_hour=0.526),
    replace(V100, instance="g5.xlarge", gpu="a10g", gpu_memory_bytes=24 * GIB, price_per_hour=1.006),
    replace(V100, instance="g6e.xlarge", gpu="l40s", gpu_memory_bytes=44 * GIB, price_per_hour=1.861),
    replace(V100, instance="c5.xlarge", gpu="", gpus=0, cores=4, memory_bytes=8 * GIB, price_per_hour=0.17),
)


def every_set():
    """Yield the sets of up to three machines, of one offer or of two with units of other kinds."""
    for offer in OFFERS:
        yield from (((Rental(offer), count),) for count in (1, 2, 3))
    for first, second in combinations(OFFERS, 2):
        if first.gpu != second.gpu:
            for count, other in ((1, 1), (1, 2), (2, 1)):
                yield ((Rental(first), count), (Rental(second), other))


def compiled_step_s(model, inputs, machines):
    """Return the step of the plan that is compiled for a set; inf where there is none."""
    asked = {"mode": "training", "objective": "throughput", "batch": BATCH, "mixed_stages": len(machines.parts) > 1}
    try:
        made = heterps_compile.compile(model, inputs, cluster=machines.pool(), verify=False, time_limit=10, **asked)
    except InfeasibleError:
        return float("inf")
    return made.plan.schedule.step_s


@pytest.mark.slow  # 60 sets are compiled
@pytest.mark.timeout(3600)
def test_the_choice_is_that_of_all_sets_compiled_one_by_one():
    model = torch.nn.Sequential(torch.nn.Linear(1024, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 8))
    inputs = (torch.ones(4, 1024),)
    loose = Goal(3e10, (BATCH,), deadline_s=1e12, most_machines=3)
    sets = [MachineSet(parts) for parts in every_set()]
    looks = [outlook_of(each, compiled_step_s(model, inputs, each), BATCH, loose) for each in sets]
    late, dear = (sorted(values) for values in zip(*((look.most_s, look.most_money) for look in looks), strict=True))
    places = (0, len(sets) // 4, len(sets) // 2)
    goals = [replace(loose, deadline_s=late[place] * (1 + 1e-6)) for place in places]
    goals += [replace(loose, deadline_s=None, budget=dear[place] * (1 + 1e-6)) for place in places]
    for goal in goals:
        best = min(look.value(goal) for look in looks if not look.misses(goal))
        answer = choose(model, goal, Catalogue(OFFERS, "a test"), example_inputs=inputs)
        assert answer.best.outlook.value(goal) == pytest.approx(best, rel=1e-6), answer.best.machines.title
        assert answer.bound <= best * (1 + 1e-9)
    with pytest.raises(InfeasibleError):
        choose(model, replace(loose, deadline_s=late[0] / 2), Catalogue(OFFERS, "a test"), example_inputs=inputs)
