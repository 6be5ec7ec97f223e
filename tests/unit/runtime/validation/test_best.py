"""Which validation is the best, and how many were none better since."""

import pytest

from heterps_compile.errors import InputError
from heterps_compile.runtime.validation.best import BEFORE_ANY, BestMetric, Standing, parse_best


def standings(values: list[float], metric: BestMetric | None) -> list[Standing]:
    found = [BEFORE_ANY]
    for place, value in enumerate(values, 1):
        found.append(found[-1].after(metric, 10 * place, {"loss": 0.0, "auc": value}))
    return found[1:]


def test_the_drawing_of_the_module():
    found = standings([0.70, 0.74, 0.73, 0.72, 0.73], parse_best("auc:max"))
    assert [one.best.validations for one in found if one.best] == [1, 2, 2, 2, 2]
    assert [one.stale for one in found] == [0, 0, 1, 2, 3]
    assert found[-1].best is not None
    assert (found[-1].best.step, found[-1].best.value) == (20, 0.74)


def test_what_is_written_after_keep_best():
    assert parse_best("loss") == parse_best("loss:min") == BestMetric("loss", is_highest=False)
    assert parse_best("auc:max") == BestMetric("auc", is_highest=True)
    assert parse_best("a:b:min") == BestMetric("a:b", is_highest=False)
    assert str(parse_best("auc:max")) == "highest auc"


@pytest.mark.parametrize("text", ["auc", "auc:", ":max", "auc:highest", "", "-auc"])
def test_a_metric_that_does_not_say_which_end_is_best_is_refused(text):
    with pytest.raises(InputError):
        parse_best(text)


def test_the_highest_loss_is_no_best():
    with pytest.raises(InputError, match="--keep-best"):
        parse_best("loss:max")
