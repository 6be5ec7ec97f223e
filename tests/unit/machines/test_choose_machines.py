"""The choice of machines against all sets there are, its bounds against what is searched, and what it refuses."""

import datetime as dt
import json
import re
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from heterps_compile.api import read_model
from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.machines import Goal, compile_for
from heterps_compile.machines.choose import times_of
from heterps_compile.machines.goal import Transience, described, parse_duration, parse_money
from heterps_compile.machines.learned import NOTHING
from heterps_compile.machines.machine_set import MachineSet
from heterps_compile.machines.machines_words import answer_document, stale_prices, told
from heterps_compile.machines.nothing_found import hours, whole
from heterps_compile.machines.option import excess, outlook_of
from heterps_compile.machines.search import SearchEffort, _likely, _likely_front, choose_machines
from heterps_compile.machines.sets import kinds_of, sets_of_one_kind, sets_of_two_kinds, undominated
from heterps_compile.machines.step_bounds import bound_steps
from heterps_compile.machines.step_times import StepTimes, least_shared_s
from heterps_compile.offers import Catalogue, Offer, Rental
from heterps_compile.passes.placement.steps.anneal_steps import StepAnnealing
from heterps_compile.passes.placement.steps.step_search import StepEffort
from heterps_compile.plan.request import make_request
from heterps_compile.report.machines_page import machines_page
from heterps_compile.transient.lifetime import exponential
from heterps_compile.units import format_money

GIB = 2**30
V100 = Offer(
    "aws",
    "us-east-1",
    "p3.2xlarge",
    "v100",
    1,
    8,
    61 * GIB,
    16 * GIB,
    10e9 / 8,
    0.0,
    3.06,
    None,
    dt.date(2026, 11, 1),
    "here",
)
FOUR = replace(V100, instance="p3.8xlarge", gpus=4, inner_bytes_per_s=50e9, price_per_hour=12.24)
T4 = replace(V100, instance="g4dn.xlarge", gpu="t4", price_per_hour=0.526)
CPU = replace(
    V100, instance="c5.large", gpu="", gpus=0, cores=4, memory_bytes=8 * GIB, gpu_memory_bytes=0.0, price_per_hour=0.2
)


def catalogue(*offers):
    return Catalogue(offers, "a test")


def all_pairs(kinds, times, goal):
    """Yield the sets of two kinds one by one."""
    for sets in sets_of_two_kinds(kinds, times, goal):
        yield from (sets.candidate(*place, NOTHING) for place in np.ndindex(sets.prices.shape))


@pytest.fixture(scope="module")
def times():
    layers = [torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512), torch.nn.Linear(512, 8)]
    model = torch.nn.Sequential(*layers)
    read = {}

    def graph(batch):
        if batch not in read:
            read[batch] = read_model(model, (torch.ones(4, 1024),), batch=batch)
        return read[batch]

    return StepTimes(graph, make_request("USD", mode="training"))


def test_least_shared_time_is_the_linear_programme():
    draw = np.random.default_rng(0)
    for _ in range(25):
        layers = int(draw.integers(1, 7))
        work, other = draw.uniform(0.1, 5, layers), draw.uniform(0.1, 5, layers)
        work[draw.random(layers) < 0.15] = np.inf
        other[draw.random(layers) < 0.15] = np.inf
        units, others = draw.integers(1, 9, 3).astype(float), draw.integers(1, 9, 3).astype(float)
        got = least_shared_s(work, other, units, others)
        if np.any(np.isinf(work) & np.isinf(other)):
            assert np.all(np.isinf(got))
            continue
        most = [
            (0.0, 0.0) if np.isinf(a) else (1.0, 1.0) if np.isinf(b) else (0.0, 1.0)
            for a, b in zip(work, other, strict=True)
        ]
        a, b = np.where(np.isinf(work), 0, work), np.where(np.isinf(other), 0, other)
        for k, m, value in zip(units, others, got, strict=True):
            rows = [[*(a / k), -1.0], [*(-b / m), -1.0]]
            best = linprog([0.0] * layers + [1.0], A_ub=rows, b_ub=[0.0, -b.sum() / m], bounds=[*most, (0, None)])
            assert value == pytest.approx(best.fun, rel=1e-9)


def test_no_step_is_below_its_bound(times):
    goal = Goal(1e6, (256, 2048), deadline_s=1e9, most_machines=2)
    kinds, _ = kinds_of([V100, FOUR, T4, CPU], spot=False)
    candidates = [*sets_of_one_kind(kinds, times, goal), *all_pairs(kinds, times, goal)]
    assert {len(each.machines.parts) for each in candidates} == {1, 2}
    for each in candidates[::29]:
        step = times.searched(each.machines, each.batch)
        assert step.step_s >= each.least_s * (1 - 1e-9), each.machines.title


def test_no_step_of_one_kind_is_below_what_its_stages_need(times):
    """Of one unit the bound is the step; of more it is closer than computing that is shared freely."""
    counts = np.array([1, 2, 3])
    for kind in kinds_of([V100, FOUR, T4, CPU], spot=False)[0]:
        free_s = times.least_s(kind.device, counts * float(kind.units), 1024)
        least_s = bound_steps(times, kind, 1024, counts, free_s)
        found = [times.searched(MachineSet(((kind.rental, count),)), 1024).step_s for count in counts.tolist()]
        assert np.all(least_s <= np.array(found) * (1 + 1e-9)), kind.rental.name
        assert np.all(least_s[1:] > 1.1 * free_s[1:]), kind.rental.name
        if kind.units == 1:
            assert least_s[0] > 0.98 * found[0], kind.rental.name


def test_the_choice_is_the_best_of_all_sets(times):
    offers = [V100, FOUR, T4]
    everything = SearchEffort(100, 100, 1000)
    kinds, _ = kinds_of(offers, spot=False)
    unlimited = Goal(3e10, (1024,), deadline_s=1e12, most_machines=3)
    sets = [*sets_of_one_kind(kinds, times, unlimited), *all_pairs(kinds, times, unlimited)]
    looks = [outlook_of(each.machines, times.searched(each.machines, 1024).step_s, 1024, unlimited) for each in sets]
    assert len(sets) == 9 + 6
    middle = sorted(look.most_s for look in looks)[5]
    answer = choose_machines(catalogue(*offers), times, replace(unlimited, deadline_s=middle), everything)
    assert answer.best.outlook.median_money == pytest.approx(min(o.median_money for o in looks if o.most_s <= middle))
    assert answer.best.outlook.most_s <= middle
    assert answer.bound <= answer.best.outlook.median_money
    middle = sorted(look.most_money for look in looks)[5]
    within = replace(unlimited, deadline_s=None, budget=middle)
    answer = choose_machines(catalogue(*offers), times, within, everything)
    assert answer.best.outlook.median_s == pytest.approx(min(o.median_s for o in looks if o.most_money <= middle))
    assert all(excess(option, within) == 0 for option in (answer.best, *answer.runners_up))
    fronts = [(o.outlook.median_s, o.outlook.median_money) for o in answer.front]
    assert all(a[0] < b[0] and a[1] > b[1] for a, b in pairwise(fronts))


@pytest.mark.slow  # more of the same kind on larger problems
def test_nothing_better_is_pruned_from_spot_and_on_demand_sets(times):
    offers = [replace(o, spot_per_hour=o.price_per_hour * part) for o, part in ((V100, 0.4), (FOUR, 0.9), (T4, 0.5))]
    offers.append(replace(V100, instance="dear", price_per_hour=3.5, spot_per_hour=3.2))  # spot above what stays
    unlimited = Goal(3e10, (1024,), deadline_s=1e12, most_machines=3, spot=True)
    kinds, _ = kinds_of(offers, spot=True)
    pairs = [(a, b) for a, b in combinations(kinds, 2) if a.unit[0] != b.unit[0]]
    sets = [((kind.rental, n),) for kind in kinds for n in (1, 2, 3)]
    sets += [((a.rental, n), (b.rental, m)) for a, b in pairs for n, m in ((1, 1), (1, 2), (2, 1))]
    looks = []
    for parts in sets:
        machines, step = times.searched(MachineSet(parts), 1024).on_what_it_uses(MachineSet(parts))
        slowest = min(device.input_bytes_per_s for device in machines.pool().device_types)
        checkpoint_s = times.state_bytes(1024) / slowest if machines.has_spot else 0.0
        looks.append(outlook_of(machines, step.step_s, 1024, unlimited, checkpoint_s))
    for place in (3, len(looks) // 2, len(looks) - 1):
        deadline_s = sorted(look.most_s for look in looks)[place]
        best = min(look.median_money for look in looks if look.most_s <= deadline_s)
        answer = choose_machines(catalogue(*offers), times, replace(unlimited, deadline_s=deadline_s))
        assert answer.best.outlook.median_money <= best * (1 + 1e-9)
        assert answer.bound <= answer.bound_of_one_kind <= answer.best.outlook.median_money
        budget = sorted(look.most_money for look in looks)[place]
        best = min(look.median_s for look in looks if look.most_money <= budget)
        answer = choose_machines(catalogue(*offers), times, replace(unlimited, deadline_s=None, budget=budget))
        assert answer.best.outlook.median_s <= best * (1 + 1e-9)


def test_what_is_proven_of_a_set_holds_of_plans_searched_with_more_effort(times):
    hard = StepEffort(annealing=StepAnnealing(walks=16))
    slower = 0
    for parts in (((V100, 1),), ((V100, 3),), ((FOUR, 2),), ((V100, 1), (T4, 2)), ((FOUR, 1), (T4, 1))):
        machines = MachineSet(tuple((Rental(offer), count) for offer, count in parts))
        found, best = times.searched(machines, 1024), times.searched(machines, 1024, hard)
        assert found.least_s <= best.step_s * (1 + 1e-9)
        assert found.least_s > 0
        for part in (0.5, 0.9, 0.999, 1.001):
            is_slower = times.is_slower(machines, 1024, part * best.step_s)
            assert not (is_slower and part > 1)
            slower += is_slower
    assert slower >= 10


def test_a_set_is_searched_once_whatever_is_named_first_and_however_it_is_bought(times):
    spot = replace(T4, spot_per_hour=0.2)
    before = times.searches
    one = times.searched(MachineSet(((Rental(spot), 2), (Rental(V100), 1))), 256)
    searches = times.searches
    other = times.searched(MachineSet(((Rental(V100), 1), (Rental(spot, spot=True), 2))), 256)
    assert (times.searches, searches - before) == (searches, 1)
    assert other.step_s == one.step_s
    assert [(units, 1 - part) for units, part in other.stages] == list(one.stages)


def test_units_of_two_kinds_share_a_batch_by_their_speed(tmp_path):
    network = {"network_bytes_per_s": 12.5e9}
    dear = replace(V100, price_per_hour=20.0, **network)
    offers = catalogue(dear, replace(T4, price_per_hour=0.5, **network))
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
    model, inputs = torch.nn.Sequential(*layers), (torch.ones(4, 256),)
    steps = times_of(model, example_inputs=inputs)
    one, both = (
        MachineSet(parts) for parts in (((Rental(dear), 1),), ((Rental(dear), 1), (Rental(offers.offers[1]), 1)))
    )
    alone_s, mixed = steps.searched(one, 65536).step_s, steps.searched(both, 65536)
    assert mixed.step_s < 0.95 * alone_s
    assert (mixed.stages, sum(mixed.shares)) == (((1, 0), (1, 1)), pytest.approx(1.0))
    assert mixed.shares[0] > 0.6
    assert mixed.words == "1 + 1 replicas of one stage, which work on {:.3g} % and {:.3g} % of a batch".format(
        *(100 * share for share in mixed.shares)
    )
    goal = Goal(65536e4, (65536,), deadline_s=1e4 * 2.88 * (mixed.step_s + alone_s) / 2, most_machines=2)
    answer = choose_machines(offers, steps, goal)
    assert {rental.offer.gpu for rental, _ in answer.best.machines.parts} == {"v100", "t4"}
    assert answer.best.step.step_s == mixed.step_s
    assert json.loads(answer_document(answer))["chosen"]["shares"] == list(answer.best.step.shares)
    plan = compile_for(model, answer, tmp_path / "out", example_inputs=inputs, time_limit=4, verify=False).plan
    assert plan.stages[0].mixed
    assert plan.schedule.step_s <= mixed.step_s * (1 + 1e-6)


def test_a_kind_that_has_no_memory_for_the_whole_model_shares_no_stage_with_another():
    layers = [torch.nn.Linear(1024, 1024) for _ in range(4)]
    steps = times_of(torch.nn.Sequential(*layers), example_inputs=(torch.ones(4, 1024),))
    small = replace(T4, gpu_memory_bytes=40e6)
    both = MachineSet(((Rental(V100), 1), (Rental(small), 1)))
    assert steps.is_slower(both, 256, 1e-9)
    assert steps.searched(both, 256).shares == ()


def test_a_price_of_next_to_nothing_is_a_price(times):
    offers = catalogue(V100, replace(T4, price_per_hour=1e-300), CPU)
    for limit in ({"deadline_s": 1e9}, {"budget": 1e-6}, {"budget": 1e6}):
        answer = choose_machines(offers, times, Goal(3e8, (1024,), most_machines=2, **limit))
        assert answer.bound <= answer.best.outlook.value(answer.goal)


def test_little_effort_gives_a_bound_below_the_best(times):
    goal = Goal(3e10, (1024,), deadline_s=1e6, most_machines=4)
    little = choose_machines(catalogue(V100, FOUR, T4, CPU), times, goal, SearchEffort(1, 1, 0))
    much = choose_machines(catalogue(V100, FOUR, T4, CPU), times, goal)
    assert little.bound <= much.best.outlook.median_money <= little.best.outlook.median_money
    assert choose_machines(catalogue(V100, FOUR, T4, CPU), times, goal).best.machines == much.best.machines


def test_an_offer_that_another_dominates_is_left_out():
    dearer = replace(V100, region="eu-1", price_per_hour=4.0)
    faster = replace(V100, region="eu-2", price_per_hour=4.0, network_bytes_per_s=1e10)
    kinds, unknown = kinds_of([dearer, V100, faster, FOUR, replace(V100, gpu="z80")], spot=False)
    assert unknown == 1
    assert [kind.rental.offer for kind in undominated(kinds)] == [V100, faster, FOUR]


def test_two_kinds_stand_in_one_region_and_differ_in_their_units(times):
    goal = Goal(1e6, (1024,), deadline_s=1e9, most_machines=2)
    kinds, _ = kinds_of([V100, FOUR, T4, replace(CPU, region="eu")], spot=False)
    assert {each.machines.title for each in all_pairs(kinds, times, goal)} == {
        "1 x aws g4dn.xlarge in us-east-1 (t4 x 1) + 1 x aws p3.2xlarge in us-east-1 (v100 x 1)",
        "1 x aws g4dn.xlarge in us-east-1 (t4 x 1) + 1 x aws p3.8xlarge in us-east-1 (v100 x 4)",
    }


def test_machines_that_the_plan_leaves_idle_are_not_rented(times):
    both = MachineSet(((Rental(T4), 2), (Rental(FOUR), 3)))
    step = replace(times.searched(MachineSet(((Rental(V100), 1),)), 256), stages=((3, 1), (2, 1)))
    used, moved = step.on_what_it_uses(both)
    assert (used.parts, moved.stages) == (((Rental(FOUR), 2),), ((3, 0), (2, 0)))


def limits_of(*offers_and_times):
    """Return the time of the fastest and the money of the cheapest of single machines, in nine of ten runs."""
    *offers, times = offers_and_times
    goal = Goal(1e10, (1024,), deadline_s=1e12, most_machines=1)
    front = choose_machines(catalogue(*offers), times, goal).front
    return front[0].outlook.most_s, front[-1].outlook.most_money


def test_what_nothing_meets_says_what_would(times):
    with pytest.raises(
        InfeasibleError,
        match=r"0\.36.*\b1\b.*--deadline.*machines",
    ):
        choose_machines(catalogue(V100, T4), times, Goal(1e12, (1024,), deadline_s=0.36, most_machines=1))
    with pytest.raises(InfeasibleError, match=r"[\d.,]+ USD.*--budget '[\d.]+ USD'"):
        choose_machines(catalogue(V100, T4), times, Goal(1e12, (1024,), budget=0.01))
    with pytest.raises(InfeasibleError, match=r"--deadline [\d.]+h\)(?!.*machines)"):  # two machines are no faster
        choose_machines(catalogue(V100, T4), times, Goal(1e12, (1024,), deadline_s=0.36, most_machines=2))
    both = Goal(1e12, (1024,), deadline_s=1.0, budget=1.0)
    with pytest.raises(InfeasibleError) as told_of_both:
        choose_machines(catalogue(V100, T4), times, both)
    assert "; with this budget" not in str(told_of_both.value)  # no set keeps either
    deadline_s, budget = (limits_of(V100, T4, times)[number] for number in (0, 1))
    between = Goal(1e10, (1024,), deadline_s=deadline_s * 1.01, budget=budget * 1.01, most_machines=1)
    with pytest.raises(InfeasibleError, match=r"--deadline.*met") as alone:
        choose_machines(catalogue(V100, T4), times, between)
    hours, money = re.search(r"--deadline ([\d.]+)h is met.* --budget '([\d.]+) USD'$", str(alone.value)).groups()
    for change in ({"deadline_s": float(hours) * 3600}, {"budget": float(money)}):
        assert not choose_machines(catalogue(V100, T4), times, replace(between, **change)).best.fails
    with pytest.raises(InputError, match=r"GPUs.*\b1\b.*a10"):
        choose_machines(catalogue(replace(V100, gpu="z80")), times, Goal(1e6, (8,), budget=1.0))


def test_the_answer_is_told_in_sentences_and_as_json(times):
    answer = choose_machines(catalogue(V100, FOUR, T4), times, Goal(3e10, (1024,), deadline_s=2.2e5, most_machines=2))
    lines = list(told(answer))
    assert [line.partition(" ")[0] for line in lines] == ["asked:", "rent", "time", "plan:", "why:", "bound:", "fails:"]
    assert lines[1].endswith(", as it was on 2026-11-01")
    document = json.loads(answer_document(answer))
    assert document["chosen"]["usd"]["median"] == answer.best.outlook.median_money
    assert document["chosen"]["machines"][0]["price_date"] == "2026-11-01"
    assert document["told"] == lines
    page = machines_page(replace(answer, notes=("<script>alert(1)</script>",)))
    assert page.count("<svg") == page.count("</svg>") == 2  # for wide and for narrow windows
    assert "&lt;script&gt;alert(1)" in page
    for option in (answer.best, *answer.runners_up, *answer.front):
        assert f'data-label="USD in 9 of 10">{format_money(option.outlook.most_money)}</td>' in page
    assert "<script" not in page
    assert page.count("<circle") >= len(answer.front)


def test_prices_that_were_read_long_ago_are_told(times):
    offers = catalogue(replace(T4, price_date=dt.date(2026, 7, 1)))
    answer = choose_machines(offers, times, Goal(3e10, (1024,), deadline_s=864000.0, most_machines=2))
    (note,) = stale_prices(answer, dt.date(2026, 11, 24))
    assert note == (
        "prices of 1 offer above are older than 90 days on 2026-11-24, the oldest, of aws g4dn.xlarge in us-east-1, of "
        "2026-07-01; ask the provider before money depends on them"
    )
    assert stale_prices(answer, dt.date(2026, 9, 1)) == ()


def test_where_nothing_fails_that_is_told(times):
    answer = choose_machines(catalogue(T4), times, Goal(1e6, (1024,), deadline_s=1e6, most_machines=2))
    assert answer.failing is None
    assert list(told(answer))[-1] == "fails: no limit is broken by any set that was searched (2)"


def test_transient_machines_are_cheaper_and_pay_for_their_losses(times):
    spot = replace(T4, spot_per_hour=0.2)
    goal = Goal(3e10, (1024,), deadline_s=3e6, most_machines=1, spot=True)
    answer = choose_machines(catalogue(spot), times, goal)
    best, other = answer.best, answer.runners_up[0]
    assert [best.machines.has_spot, other.machines.has_spot] == [True, False]
    assert best.step == other.step
    run_s = 3e10 / 1024 * other.step.step_s
    assert other.outlook.median_s == pytest.approx(run_s + 180)  # machines that stay are asked for with the others
    assert best.outlook.median_s > other.outlook.median_s
    assert best.outlook.median_money < other.outlook.median_money
    often = replace(goal, transience=Transience(exponential(0.05), 600.0))
    assert not choose_machines(catalogue(spot), times, often).best.machines.has_spot
    assert "7.77 % of them no hour" in answer.notes[-1]


def test_a_set_that_stays_has_no_losses(times):
    staying = MachineSet(((Rental(T4), 2),))
    goal = Goal(1e9, (1000,), deadline_s=1.0)
    outlook = outlook_of(staying, 0.001, 1000, goal, checkpoint_s=60.0)
    assert (outlook.median_s, outlook.most_s) == (1000.0, pytest.approx(2880.0))
    assert outlook.median_money == pytest.approx(1000 / 3600 * 2 * 0.526)


@pytest.mark.slow  # more of the same kind on larger problems
def test_machines_that_stay_start_up_where_it_is_said_how_long_that_takes(times):
    staying = MachineSet(((Rental(T4), 2),))
    goal = Goal(1e9, (1000,), deadline_s=1.0, transience=Transience(start_up_s=600.0), counts_start=True)
    outlook = outlook_of(staying, 0.001, 1000, goal)
    assert (outlook.median_s, outlook.most_s) == (1600.0, pytest.approx(3480.0))
    assert outlook.median_money == pytest.approx(1600 / 3600 * 2 * 0.526)
    assert outlook.most_money == pytest.approx(3480 / 3600 * 2 * 0.526)
    assert described(goal).endswith("on 16 machines at the most, which start up within 10 min")
    within = replace(goal, samples=1e6, deadline_s=599.0)
    with pytest.raises(InfeasibleError, match=r"10\.3.*nine.*ten.*--deadline 0\.18h"):
        choose_machines(catalogue(T4), times, within)


def test_sets_are_ranked_with_what_their_machines_take_to_start(times):
    dear_and_fast = replace(V100, instance="fast", price_per_hour=V100.price_per_hour * 40)
    goal = Goal(1e7, (1024,), deadline_s=1e6, most_machines=1)
    with_start = replace(goal, transience=Transience(start_up_s=3600.0), counts_start=True)
    kinds, _ = kinds_of([dear_and_fast, T4], spot=False)
    singles = sets_of_one_kind(kinds, times, goal)
    for each in singles:
        start = each.machines.price_per_hour  # an hour of it
        assert _likely(each, with_start) == pytest.approx(_likely(each, goal) + start)
        assert _likely(each, replace(with_start, deadline_s=3600.0)) == float("inf")
    assert next(each.machines.title for each in _likely_front(singles, with_start)).startswith("1 x aws g4dn")


def test_what_an_offer_does_not_say_is_told_of_those_that_are_chosen(times):
    bare = replace(T4, network_bytes_per_s=0.0)
    answer = choose_machines(catalogue(bare), times, Goal(1e6, (256,), deadline_s=1e6, most_machines=1))
    guessed, reached = answer.notes
    assert guessed == "the catalogue does not say what network aws g4dn.xlarge in us-east-1 has; 625 MB/s is taken"
    assert reached.startswith("cloud-ethernet is taken to reach 0.65 (± 0.22) of the bandwidth that is sold, measured ")


def test_of_sets_that_are_as_fast_within_a_budget_the_cheapest_is_chosen(times):
    dear = replace(V100, provider="a", network_bytes_per_s=5e9, price_per_hour=9.0)  # first by name, no quicker alone
    cheap = replace(V100, provider="z", region="there", price_per_hour=3.0)
    goal = Goal(1e7, (64,), budget=1e5, most_machines=1)
    for offers in ((dear, cheap), (cheap, dear)):
        answer = choose_machines(catalogue(*offers), times, goal)
        assert answer.best.machines.title == "1 x z p3.2xlarge in there (v100 x 1)"
        assert answer.runners_up[0].outlook.median_s == pytest.approx(answer.best.outlook.median_s, rel=1e-9)
        assert list(told(answer))[4] == (
            "why: the next best, 1 x a p3.2xlarge in us-east-1 (v100 x 1), is as fast: an hour of it costs 200 % more, "
            "and it makes as many samples/s"
        )


def test_the_same_machines_with_another_batch_are_told_apart_by_it(times):
    answer = choose_machines(catalogue(V100), times, Goal(1e7, (250, 256), deadline_s=1e6, most_machines=1))
    chosen, other = answer.best, answer.runners_up[0]
    assert (chosen.batch, other.batch) == (256, 250)
    assert f"({V100.gpu} x 1) with a batch of 250 samples, is " in list(told(answer))[4]
    assert " fewer samples/s" in list(told(answer))[4]


@pytest.mark.slow  # searches two sets to the end, whatever the machine has to do besides
def test_what_is_told_of_a_set_is_the_plan_that_is_written(tmp_path):
    widths = (torch.nn.Linear(416, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 256), torch.nn.ReLU())
    layers = [*widths, torch.nn.Linear(256, 512), torch.nn.Linear(512, 1)]
    model = torch.nn.Sequential(torch.nn.Embedding(100_000, 16, sparse=True), torch.nn.Flatten(), *layers)
    inputs = (torch.zeros(4, 26, dtype=torch.long),)
    slow = replace(CPU, instance="slow", cores=2)
    goal = Goal(1e6, (1024,), deadline_s=1e5, most_machines=2)
    steps = times_of(model, example_inputs=inputs)
    fastest = choose_machines(catalogue(slow), steps, replace(goal, deadline_s=None, budget=1e3))
    for answer in (choose_machines(catalogue(slow), steps, goal), fastest):
        step = answer.best.step
        written = compile_for(
            model, answer, tmp_path / "out", example_inputs=inputs, time_limit=60, verify=False, force=True
        )
        schedule = written.plan.schedule
        assert (schedule.name, schedule.micro_batches) == (step.schedule, step.micro_batches)
        assert schedule.step_s == pytest.approx(step.step_s, rel=1e-9)
        assert [stage.replicas for stage in written.plan.stages] == [units for units, _ in step.stages]
    assert len(fastest.best.step.stages) > 1
    assert fastest.best.step.schedule == "1f1b"


def test_two_machines_of_one_name_with_other_gpus_are_told_apart_in_a_set(times):
    """Clouds attach any GPU to some machines, so that catalogues have one name of several offers."""
    attached, other = replace(V100, instance="n1"), replace(T4, instance="n1")
    machines = MachineSet(((Rental(attached), 1), (Rental(other), 1)))
    assert machines.names == ("aws.us-east-1.n1.v100", "aws.us-east-1.n1.t4")
    assert [device.name for device in machines.pool().device_types] == list(machines.names)
    assert times.searched(machines, 256).step_s > 0


@pytest.mark.slow  # more of the same kind on larger problems
def test_machines_with_more_units_than_a_pool_has_are_looked_at_as_far_as_it_goes(times):
    huge = replace(CPU, instance="huge", cores=100_000, memory_bytes=1e6 * GIB)
    goal = Goal(1e6, (256,), deadline_s=1e5, most_machines=16)
    answer = choose_machines(catalogue(huge, T4), times, goal)
    assert answer.notes[1] == (
        "of 1 offer fewer than 16 machines are looked at, such as 10 of aws huge in us-east-1 with 100,000 units each: "
        "a pool has 1,000,000 units of a kind at most"
    )
    kinds = kinds_of((huge, T4), spot=False)[0]
    assert max(each.machines.count for each in sets_of_one_kind(kinds[:1], times, goal)) == 10
    [pairs] = sets_of_two_kinds(kinds, times, goal)
    assert pairs.machines.max(axis=0).tolist() == [15, 10] or pairs.machines.max(axis=0).tolist() == [10, 15]


def test_where_the_model_fits_no_set_the_offer_with_the_most_memory_is_told(times):
    small = [replace(T4, instance=name, gpu_memory_bytes=memory) for name, memory in (("one", 1e6), ("two", 2e6))]
    with pytest.raises(InfeasibleError) as caught:
        choose_machines(catalogue(*small), times, Goal(1e6, (256,), deadline_s=1e5, most_machines=1))
    told_of = str(caught.value)
    assert told_of.startswith("the model fits none of the sets of machines looked at (")
    assert "1 x aws two in us-east-1 (t4 x 1)" in told_of
    assert "look at offers with more memory, at a smaller batch (--batch), or at an optimizer" in told_of
    assert "part-0" not in told_of


def test_limits_that_are_proposed_are_never_below_what_is_needed():
    draw = np.random.default_rng(0)
    for value in [0.01, 36.0, 1044.0, *(10 ** draw.uniform(-6, 14, 300)).tolist()]:
        assert value <= parse_duration(hours(value)) <= value + 36.1 + 1e-6 * value
        assert value <= parse_money(f"{whole(value)} USD") <= value + 0.011 + 1e-6 * value
