import pytest

from heterps_compile.cli.main import command
from heterps_compile.errors import InfeasibleError, InputError, PlanError, StalePlanError
from heterps_compile.plan_diff.verdict import REVIEW_EXIT_CODES, Verdict, verdict_of_error, worst


def test_of_many_the_worst_counts_and_what_nobody_judged_is_the_worst():
    fine, fails, not_judged = Verdict
    assert worst([fine, fails, fine]) == 1
    assert worst([fails, not_judged, fine]) == 2
    assert worst([fine, fine]) == worst([]) == 0


@pytest.mark.parametrize(
    ("error", "code"), [(InputError, 2), (PlanError, 2), (StalePlanError, 1), (InfeasibleError, 1)]
)
def test_an_error_is_no_judgement_but_where_the_plan_fits_no_more_or_none_would(error, code):
    assert verdict_of_error(error("x")) == code


@pytest.mark.parametrize("name", ["check", "diff", "update"])
def test_every_command_that_reviews_says_the_same_of_its_exit_codes(name):
    assert command.commands[name].epilog == REVIEW_EXIT_CODES
