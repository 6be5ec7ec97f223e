"""What is told beside the set that is chosen: where else its machines are to be had, and what a wider limit lets in."""

import datetime as dt
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from heterps_compile.cluster.link_kinds import LINK_KINDS
from heterps_compile.machines import Goal
from heterps_compile.machines.choose import times_of
from heterps_compile.machines.learned import NOTHING
from heterps_compile.machines.machine_set import MachineSet
from heterps_compile.machines.machines_words import answer_document, told
from heterps_compile.machines.option import Option, Outlook, let_in, outlook_of, steady_outlook
from heterps_compile.machines.search import SearchEffort, _bounded, choose_machines
from heterps_compile.machines.sets import elsewhere, kinds_of, sets_of_one_kind, sets_of_two_kinds
from heterps_compile.offers import Catalogue, Offer, Rental

V100 = Offer(
    "aws", "us-east-1", "p3.2xlarge", "v100", 1, 8, 61 * 2**30, 16 * 2**30, 10e9 / 8, 0.0, 3.06, None,
    dt.date(2026, 11, 1), "here",
)  # fmt: skip
FOUR = replace(V100, instance="p3.8xlarge", gpus=4, inner_bytes_per_s=50e9, price_per_hour=12.24)
T4 = replace(V100, instance="g4dn.xlarge", gpu="t4", price_per_hour=0.526)


def catalogue(*offers):
    return Catalogue(offers, "a test")


@pytest.fixture(scope="module")
def times():
    layers = [torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512), torch.nn.Linear(512, 8)]
    return times_of(torch.nn.Sequential(*layers), example_inputs=(torch.ones(4, 1024),))


def test_the_same_machines_in_other_regions_are_told_with_what_they_cost_there(times):
    near = replace(T4, region="near", price_per_hour=T4.price_per_hour * 1.04)
    alike, far = replace(T4, region="alike"), replace(T4, region="far", price_per_hour=T4.price_per_hour * 1.5)
    slower = replace(T4, region="slower", network_bytes_per_s=1e9)
    offers = catalogue(far, T4, slower, near, alike, replace(T4, region="other", gpu="a10g", price_per_hour=9.0))
    goal = Goal(3e10, (1024,), deadline_s=1e7, most_machines=2)
    answer = choose_machines(offers, times, goal)
    assert [rental.offer.region for rental, _ in answer.best.machines.parts] == ["alike"]
    assert [option.machines.parts[0][0].offer.region for option in answer.elsewhere] == ["us-east-1", "near", "far"]
    for option, part in zip(answer.elsewhere, (1, 1.04, 1.5), strict=True):
        assert (option.machines.count, option.step) == (answer.best.machines.count, answer.best.step)
        assert option.outlook.median_money == pytest.approx(part * answer.best.outlook.median_money)
    line = (
        "elsewhere: an hour of the same machines is to be had in us-east-1 for as much, in near for 4 % more, in far "
    )
    assert f"{line}for 50 % more" in list(told(answer))
    assert [each["machines"][0]["region"] for each in json.loads(answer_document(answer))["elsewhere"]][1:] == [
        "near",
        "far",
    ]
    dear = replace(goal, budget=answer.best.outlook.most_money * 1.3)
    assert [o.machines.parts[0][0].offer.region for o in choose_machines(offers, times, dear).elsewhere][1:] == ["near"]
    assert choose_machines(catalogue(T4, FOUR), times, goal).elsewhere == ()
    many = (replace(T4, region=f"r{number}", price_per_hour=1.0) for number in range(4))
    assert "in r2 for 90.1 % more, and in 1 other region" in "\n".join(
        told(choose_machines(catalogue(T4, *many), times, goal))
    )


def test_two_kinds_are_elsewhere_where_a_region_has_both(times):
    step = times.searched(MachineSet(((Rental(V100), 1),)), 256)
    both = ((Rental(V100), 1), (Rental(T4), 2))
    goal = Goal(1e9, (256,), deadline_s=1e9)

    def outlook(machines):
        return outlook_of(machines, step.step_s, 256, goal)

    best = Option(MachineSet(both), 256, step, outlook(MachineSet(both)), ())
    kinds, _ = kinds_of(
        [V100, T4, *(replace(each, region="eu") for each in (T4, V100)), replace(V100, region="us")], spot=False
    )
    [there] = elsewhere(best, kinds, goal, outlook)
    assert [(rental.offer.region, rental.offer.gpu, count) for rental, count in there.machines.parts] == [
        ("eu", "v100", 1),
        ("eu", "t4", 2),
    ]


def test_of_sets_that_fail_the_best_within_reach_is_told_else_the_nearest(times):
    step, goal = times.searched(MachineSet(((Rental(T4), 1),)), 256), Goal(1e6, (256,), deadline_s=100.0)

    def option(money, most_s):
        look = Outlook(most_s, most_s, money, money)
        return Option(MachineSet(((Rental(T4), 1),)), 256, step, look, look.misses(goal))

    best, far, near, nearest = option(10, 90), option(1, 900), option(6, 149), option(8, 101)
    assert let_in([far, near, nearest, best], best, goal) is near
    assert let_in([far, best], best, goal) is far
    assert let_in([far, option(2, 800), best], best, goal).outlook.most_s == 800
    assert let_in([best, option(11, 300), option(12, 200)], best, goal).outlook.most_s == 200
    assert let_in([best, option(11, 80)], best, goal) is None


def test_a_set_that_fails_is_told_with_what_lets_it_in(times):
    goal = Goal(3e10, (1024,), deadline_s=1e7, most_machines=1)
    answer = choose_machines(catalogue(T4, FOUR), times, goal)
    value, deadline_s, budget = answer.best.outlook.median_money, 3600.0, 100.0
    within = replace(answer, goal=replace(goal, deadline_s=deadline_s, budget=budget))

    def fails(money, most_s, most_money, *limits):
        option = replace(answer.best, outlook=Outlook(most_s, most_s, money, most_money), fails=limits)
        return list(told(replace(within, failing=option)))[-1].partition("(t4 x 1) ")[2]

    assert fails(0.75 * value, 4500.0, 1.0, "deadline") == (
        "would be 25 % cheaper, and misses the deadline by 25 % (--deadline 1.25h)"
    )
    assert fails(1.5 * value, 1.0, 110.0, "budget") == (
        "comes nearest of those that fail: it misses the budget by 10 % (--budget '110.00 USD')"
    )
    both = fails(0.5 * value, 7200.0, 300.0, "deadline", "budget")
    assert both.startswith("would be 50 % cheaper, and misses the deadline by 100 % (--deadline 2h) and the budget by ")


def test_sets_that_may_be_better_and_were_not_searched_are_counted(times):
    kinds, _ = kinds_of([V100, FOUR, T4], spot=False)
    offers = catalogue(V100, FOUR, T4)
    for limit in ({"deadline_s": 1e7}, {"budget": 1e5}, {"budget": 200.0}):
        goal = Goal(3e10, (1024,), most_machines=3, **limit)
        answer = choose_machines(offers, times, goal, SearchEffort(1, 0, 0, 0))
        free = [*_bounded(sets_of_one_kind(kinds, times, goal), times, goal, answer.best.outlook.value(goal))]
        for pairs in sets_of_two_kinds(kinds, times, goal):
            free += [pairs.candidate(*place, NOTHING) for place in np.ndindex(pairs.prices.shape)]
        better = []
        for each in free:
            look = steady_outlook(each.machines.price_per_hour, each.least_s, each.batch, goal)
            if look.value(goal) < answer.best.outlook.value(goal) * (1 - 1e-9) and not look.misses(goal):
                better.append(each.machines)
        assert answer.searched == 1
        assert answer.left == len([machines for machines in better if machines != answer.best.machines]) > 0
        assert f"and not on {answer.left:,} whose bounds would allow a better one" in list(told(answer))[-2]


def test_a_guessed_network_is_in_the_spread_of_several_machines_and_ranks_after_a_known_one(times):
    known = replace(FOUR, provider="z", network_bytes_per_s=6.25e9)
    guessed = replace(FOUR, provider="a", network_bytes_per_s=0.0)
    alone = choose_machines(catalogue(guessed), times, Goal(1e9, (8192,), budget=1e5, most_machines=4))
    several = next(option for option in (alone.best, *alone.runners_up) if option.machines.count > 1)
    slow = several.machines.with_slow_networks()
    assert slow.pool().device_types[0].network_bytes_per_s == pytest.approx(
        LINK_KINDS["cloud-ethernet"].efficiency * 6.25e9 / 3
    )
    ratio = times.searched(slow, 8192).step_s / several.step.step_s
    assert ratio > 1.05
    spread = several.outlook.most_s / several.outlook.median_s
    assert spread == pytest.approx((1 + several.machines.late) * ratio)
    both = choose_machines(catalogue(guessed, known), times, Goal(1e9, (8192,), budget=1e5, most_machines=4))
    assert both.best.machines.count > 1
    assert both.best.machines.parts[0][0].offer == known
