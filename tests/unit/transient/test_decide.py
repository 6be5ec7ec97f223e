"""Stay, move or wait, with what each costs."""

import pytest

from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.transient.decide import (
    Course,
    Remaining,
    course_to_move,
    course_to_stay,
    course_to_wait,
    decide,
)
from heterps_compile.transient.lifetime import exponential
from heterps_compile.transient.transient_work import Machines, Recovery

RECOVERY = Recovery(start_up_s=120.0, checkpoint_s=30.0)
DEAR = course_to_stay(100.0, (Machines(4, 4.0),), RECOVERY)
CHEAP = Course("move", 100.0, (Machines(4, 1.0, exponential(50.0)),), RECOVERY)
MOVE = course_to_move(DEAR, CHEAP, planning_s=60.0)


def test_a_long_run_moves_to_cheaper_machines_and_a_short_one_stays() -> None:
    long = decide(Remaining(100 * 36_000.0), [DEAR, MOVE])
    assert [outcome.course.kind for outcome in long.outcomes] == ["move", "stay"]
    # ten hours of 16 an hour; 90 s of that, 120 s of start-up and ten hours of 4
    assert long.outcomes[1].money.mean == pytest.approx(160.0)
    assert 160 * 90 / 36_000 + 40 * (1 + 120 / 36_000) < long.taken.money.mean < 45
    assert long.why.startswith("move: 4")
    assert "1.5 min and 0.4 of which come first; to stay is 160.00 and 10 h" in long.why
    assert decide(Remaining(100 * 120.0), [DEAR, MOVE]).taken.course.kind == "stay"


def test_a_deadline_keeps_a_run_where_it_is() -> None:
    found = decide(Remaining(100 * 36_000.0, deadline_s=36_100.0), [DEAR, MOVE])
    assert found.taken.course.kind == "stay"
    assert (found.taken.chance, found.outcomes[1].chance) == pytest.approx((1.0, 0.0), abs=1e-3)
    assert "to move fails: nine of ten runs end within 10." in found.why


def test_a_budget_alone_is_spent_on_time() -> None:
    slow = course_to_stay(50.0, (Machines(2, 4.0),), RECOVERY)
    wait = course_to_wait(CHEAP, 1800.0, kept=(Machines(1, 4.0),))
    found = decide(Remaining(100 * 36_000.0, spent=50.0, budget=120.0), [slow, wait])
    assert (found.taken.course.kind, found.outcomes[1].failing) == (
        "wait",
        "nine of ten runs cost up to 210.00, the budget is 120.00",
    )
    assert found.taken.money.mean > 50 + 2 + 40


def test_lost_machines_are_waited_for_where_that_is_quicker_than_less_of_them() -> None:
    less = course_to_stay(50.0, (Machines(2, 4.0),), RECOVERY)
    back = course_to_wait(DEAR, 600.0, kept=(Machines(2, 4.0),))
    assert decide(Remaining(100 * 36_000.0, budget=1000.0), [less, back]).taken.course.kind == "wait"
    assert decide(Remaining(100 * 900.0, budget=1000.0), [less, back]).taken.course.kind == "wait"
    assert decide(Remaining(100 * 300.0, budget=1000.0), [less, back]).taken.course.kind == "stay"


def test_what_nothing_keeps_names_the_nearest() -> None:
    with pytest.raises(InfeasibleError, match=r"nine.*ten.*\b10\b.*\b9\b"):
        decide(Remaining(100 * 36_000.0, deadline_s=9 * 3600.0), [DEAR, MOVE])
    hopeless = course_to_stay(1.0, (Machines(50, 1.0, exponential(0.01)),), Recovery(600.0, 60.0, 3600.0))
    with pytest.raises(InfeasibleError, match="losses"):
        decide(Remaining(1e6), [hopeless])
    assert decide(Remaining(1e6), [hopeless, DEAR]).taken.course == DEAR


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Remaining(0.0), r"\b0\b.*left"),
        (lambda: Remaining(1.0, spent=-1.0), "-1.*spent"),
        (lambda: Remaining(1.0, deadline_s=0.0), r"deadline.*\b0\b"),
        (lambda: Course("flee", 1.0, (Machines(1, 1.0),), RECOVERY), "'stay'.*'move'.*'wait'.*'flee'"),
        (lambda: course_to_stay(0.0, (Machines(1, 1.0),), RECOVERY), r"\b0\b.*second"),
        (lambda: course_to_wait(DEAR, -1.0), r"-1.*\b0\b"),
        (lambda: decide(Remaining(1.0), []), "given"),
    ],
)
def test_decisions_about_nothing_are_refused(make, said) -> None:
    with pytest.raises(InputError, match=said):
        make()


def test_short_times_are_told_in_minutes_or_seconds() -> None:
    found = decide(Remaining(100 * 44.3, deadline_s=3000.0), [DEAR])
    assert ", 44.3 s from now" in found.why
    with pytest.raises(InfeasibleError, match=r"nine.*ten.*44\.3.*\b12\b"):
        decide(Remaining(100 * 44.3, deadline_s=12.0), [DEAR])
    with pytest.raises(InfeasibleError, match=r"nine.*ten.*\b15\b.*\b12\b"):
        decide(Remaining(100 * 900.0, deadline_s=12.0), [DEAR])
