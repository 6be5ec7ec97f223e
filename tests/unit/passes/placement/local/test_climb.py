"""The ladder of terms, and the climb on it."""

import numpy as np
import pytest
from small_problems import plain_problem

from heterps_compile.cost.problem import Placement
from heterps_compile.cost.synthetic import Recipe, synthetic_problem
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.baselines.brute import Brute
from heterps_compile.passes.placement.local.archive import Archive
from heterps_compile.passes.placement.local.climb import Climb, Climbing
from heterps_compile.passes.placement.local.ladder import Ladder, ladder_terms
from heterps_compile.passes.placement.local.sampling import Proposals, uniform_proposal
from heterps_compile.passes.placement.local.segment_table import segment_table
from heterps_compile.passes.placement.local.stage_list import StageList
from heterps_compile.passes.placement.local.stage_prices import StagePrices, Terms
from heterps_compile.passes.placement.simple_plans import seed_placements

# one layer: 4 s on the cpu at 1, 1 s on the gpu at 3
PROBLEM = plain_problem([[4.0, 1.0]], [1.0, 3.0], min_throughput=900.0)
CPU, GPU = (StageList(np.array([0, 1]), np.array([t])) for t in (0, 1))


class Blind:
    def __init__(self, proposals: Proposals) -> None:
        self.proposals = proposals
        self.lessons = 0

    def first(self) -> Proposals:
        return self.proposals

    def learn(self, archive: Archive) -> Proposals:
        self.lessons += 1
        return self.proposals


def rungs() -> Ladder:
    return Ladder(StagePrices(segment_table(PROBLEM)), [Terms(4.0), Terms(1.0)], CPU)


def test_every_rung_keeps_the_plan_that_is_cheapest_on_it() -> None:
    kept = rungs()
    assert kept.offer(GPU)  # 3 against 1 at 4 s a batch, 3 against 4 at 1 s
    assert [rung.stages for rung in (kept[0], kept[1])] == [CPU, GPU]
    assert not kept.offer(GPU)


def test_a_rung_between_two_has_the_cheaper_plan_of_theirs() -> None:
    kept = rungs()
    kept.offer(GPU)
    assert kept.between(0) == 1
    assert len(kept) == 3
    assert kept[1].terms.batch_s == 2.0
    assert kept[1].stages is CPU  # 2 units at 1 against one at 3
    assert kept.widths().tolist() == [2, 2]


def test_a_rung_promises_its_price_at_the_time_of_the_next() -> None:
    assert rungs().promises() == pytest.approx([1.0 * 1.0 / 3600 / 3600 * 1e6], rel=1e-2)


def test_the_ladder_begins_at_the_floor() -> None:
    first, *_, last = ladder_terms(PROBLEM, 900.0, 9000.0)
    assert first.batch_s == 4.0
    assert 0.12 < last.batch_s < 0.16  # some 32 times faster


def test_a_climb_finds_the_best_of_a_small_problem() -> None:
    problem = synthetic_problem(Recipe(seed=5, layers=7, types=3))
    archive = Archive(problem)
    archive.add_placements(seed_placements(problem, None))
    source = Blind([uniform_proposal(problem, problem.min_throughput)])
    climbing = Climbing(kicks=60, patience=60)
    for _ in Climb(problem, archive, climbing, np.random.default_rng(0), Deadline.after(None)).steps(source):
        pass
    assert archive.best.value == pytest.approx(Brute()(problem).value)
    assert source.lessons == 3


def test_a_climb_without_time_leaves_the_archive_as_it_is() -> None:
    problem = synthetic_problem(Recipe(seed=5, layers=7, types=3))
    archive = Archive(problem)
    archive.add_placements([Placement((0,) * 7)])
    before = archive.best.value
    source = Blind([uniform_proposal(problem, problem.min_throughput)])
    for _ in Climb(problem, archive, Climbing(), np.random.default_rng(0), Deadline.after(-1.0)).steps(source):
        pass
    assert archive.best.value <= before
    assert archive.evaluations < 40
