"""No plan on a set of machines is below the bounds of what its stages need: all plans of small models, one by one."""

import datetime as dt
from dataclasses import replace
from itertools import combinations, pairwise, product

import numpy as np
import pytest
import torch
from every_plan import shortest_of_every_plan
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heterps_compile.cost.mixed_units import MixedPlacement
from heterps_compile.machines import Goal
from heterps_compile.machines.choose import times_of
from heterps_compile.machines.learned import NOTHING
from heterps_compile.machines.machine_set import MachineSet
from heterps_compile.machines.option import outlook_of
from heterps_compile.machines.search import SearchEffort, choose_machines
from heterps_compile.machines.sets import kinds_of, sets_of_one_kind, sets_of_two_kinds
from heterps_compile.machines.step_bounds import bound_steps
from heterps_compile.offers import Catalogue, Offer
from heterps_compile.passes.mixed_stages import mixed_steps

BATCH = 64
V100 = Offer(
    "aws", "us-east-1", "v", "v100", 1, 8, 61 * 2**30, 16 * 2**30, 10e9 / 8, 0.0, 3.0, None, dt.date(2026, 11, 1),
    "here",
)  # fmt: skip
WIDTHS = [(64, 2048, 64), (512, 512, 512), (1024, 64, 1024)]
KINDS = ["t4", "a10g", "l40s"]


def steps_of(widths, *, wide):
    layers = [torch.nn.Linear(a, b) for a, b in pairwise(widths)]
    return times_of(torch.nn.Sequential(*layers), example_inputs=(torch.ones(4, wide),))


def offers_of(gpu, network, other_network, gpus, inner):
    first = replace(V100, gpus=gpus, network_bytes_per_s=network, inner_bytes_per_s=inner, spot_per_hour=1.0)
    return [first, replace(V100, instance="o", gpu=gpu, network_bytes_per_s=other_network, price_per_hour=0.7)]


def outlooks(offers, times, goal):
    """Yield time and money of the best of all plans on every set of at most two machines, however it is bought."""
    kinds, _ = kinds_of(offers, spot=goal.spot)
    sets = [((kind.rental, count),) for kind in kinds for count in (1, 2)]
    sets += [((a.rental, 1), (b.rental, 1)) for a, b in combinations(kinds, 2) if a.unit[0] != b.unit[0]]
    steps = {}
    for machines in map(MachineSet, sets):
        parts, _ = times._hardware(machines)
        if repr(parts) not in steps:
            steps[repr(parts)] = shortest_of_every_plan(times, machines, BATCH)
        slowest = min(device.input_bytes_per_s for device in machines.pool().device_types)
        checkpoint_s = times.state_bytes(BATCH) / slowest if machines.has_spot else 0.0
        yield outlook_of(machines, steps[repr(parts)], BATCH, goal, checkpoint_s)


def bound_of(times, single):
    """Return the bound on the step of a set of one kind."""
    machines, low_s = np.array([single.machines.count]), np.array([single.least_s])
    return float(bound_steps(times, single.kinds[0], BATCH, machines, low_s)[0])


drawn = st.tuples(
    st.sampled_from(WIDTHS), st.sampled_from(KINDS), st.sampled_from([1e8, 1e9, 2e10]), st.sampled_from([1e8, 5e9]),
    st.sampled_from([1, 2]), st.sampled_from([5e9, 1e11]),
)  # fmt: skip
few = settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))


def shared_out(left, stages):
    """Yield units of two kinds for every stage, each of which has some."""
    if not stages:
        yield ()
        return
    for first, second in product(range(left[0] + 1), range(left[1] + 1)):
        if first + second:
            for others in shared_out((left[0] - first, left[1] - second), stages - 1):
                yield ((first, second), *others)


@pytest.mark.slow  # all plans of small sets, one by one
@given(drawn)
@few
def test_no_plan_of_one_kind_or_two_is_below_the_bound_of_its_set(draw):
    widths, *of_offers = draw
    times, offers = steps_of(widths, wide=widths[0]), offers_of(*of_offers)
    goal = Goal(1e6, (BATCH,), deadline_s=1e9, most_machines=2)
    kinds, _ = kinds_of(offers, spot=False)
    for single in sets_of_one_kind(kinds, times, goal):
        least_s = bound_of(times, single)
        shortest_s = shortest_of_every_plan(times, single.machines, BATCH)
        assert single.least_s <= least_s <= shortest_s * (1 + 1e-9)
    [pairs] = sets_of_two_kinds(kinds, times, goal)
    for place in range(len(pairs.machines)):
        candidate = pairs.candidate(0, place, NOTHING)
        assert candidate.least_s <= shortest_of_every_plan(times, candidate.machines, BATCH) * (1 + 1e-9)
        parts, order = times._hardware(candidate.machines)
        posed = times._pose(parts, BATCH)
        units = pairs.machines[place] * [kind.units for kind in candidate.kinds]
        total = [int(each) for each in units[list(order)]]
        cuts = [each for count in range(3) for each in combinations(range(1, posed.problem.layer_count), count)]
        plans = [MixedPlacement((0, *cut), units) for cut in cuts for units in shared_out(total, len(cut) + 1)]
        for plan, _, step in mixed_steps(posed, [plan for plan in plans if plan.mixed_stages]):
            assert candidate.least_s <= step.step_s * (1 + 1e-9), (plan, step)


@pytest.mark.slow  # all plans of small sets, one by one
@given(drawn, st.sampled_from(["deadline", "budget"]), st.sampled_from([0.02, 0.3, 0.9]), st.booleans())
@few
def test_the_bound_of_a_choice_is_not_above_the_best_of_all_sets(draw, limit, part, spot):
    widths, *of_offers = draw
    times, catalogue = steps_of(widths, wide=widths[0]), Catalogue(tuple(offers_of(*of_offers)), "a test")
    loose = Goal(1e10, (BATCH,), deadline_s=1e15, most_machines=2, spot=spot)
    looks = list(outlooks(catalogue.offers, times, loose))
    ends = sorted({look.most_s for look in looks}), sorted({look.most_money for look in looks})
    slow, dear = (each[int(part * len(each))] * 1.001 for each in ends)
    goal = replace(loose, deadline_s=slow) if limit == "deadline" else replace(loose, deadline_s=None, budget=dear)
    best = min(look.value(goal) for look in looks if not look.misses(goal))
    for effort in (SearchEffort(), SearchEffort(front=4, likely=1, bound=8, ruled_out=0)):
        answer = choose_machines(catalogue, times, goal, effort)
        assert answer.bound <= best * (1 + 1e-9)
        assert answer.bound <= answer.bound_of_one_kind


@pytest.mark.slow  # a search over a set of machines
def test_replicas_that_sum_their_gradients_for_long_have_a_bound_that_says_so():
    times = steps_of(WIDTHS[2], wide=WIDTHS[2][0])
    kinds, _ = kinds_of(offers_of("t4", 1e8, 1e8, 1, 5e9), spot=False)
    units = np.array([1, 4])
    free_s = times.least_s(kinds[0].device, units.astype(float), BATCH)
    least_s = bound_steps(times, kinds[0], BATCH, units, free_s)
    alone_s = times.searched(MachineSet(((kinds[0].rental, 1),)), BATCH).step_s
    assert least_s[0] == pytest.approx(alone_s, rel=0.02)
    assert least_s[1] > 2 * free_s[1]


def test_stages_on_one_machine_talk_inside_it():
    times, goal = steps_of((4096, 4096, 1024, 4096), wide=4096), Goal(1e6, (BATCH,), deadline_s=1e9, most_machines=1)
    kinds, _ = kinds_of(offers_of("t4", 1e8, 1e8, 2, 1e11)[:1], spot=False)
    for single in sets_of_one_kind(kinds, times, goal):
        least_s = bound_of(times, single)
        shortest_s = shortest_of_every_plan(times, single.machines, BATCH)
        assert 0.9 * shortest_s <= least_s <= shortest_s * (1 + 1e-9)


@pytest.mark.slow  # all plans of small sets, one by one
@pytest.mark.parametrize("widths", [(1024, 256, 1024, 1024), (4096, 1024, 4096, 256)])
@pytest.mark.parametrize(("network", "batch"), [(1e8, 4096), (2e10, 256)])
def test_a_set_is_ruled_out_exactly_where_no_plan_on_it_is_short_enough(widths, network, batch):
    times = steps_of(widths, wide=widths[0])
    kinds, _ = kinds_of(offers_of("l40s", network, 5e9, 2, 1e11), spot=False)
    pairs = ((kinds[0].rental, 1), (kinds[1].rental, 1))
    for machines in (MachineSet(((kinds[0].rental, 2),)), MachineSet(((kinds[1].rental, 2),)), MachineSet(pairs)):
        shortest_s = shortest_of_every_plan(times, machines, batch)
        assert not times.is_slower(machines, batch, shortest_s * 1.001)
        if len(machines.parts) == 1:  # of two kinds, one stage that both share may be shorter
            assert times.is_slower(machines, batch, shortest_s * 0.999)
