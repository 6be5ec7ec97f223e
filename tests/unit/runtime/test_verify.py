"""Verification compares outputs by their scale, and says what differs."""

import numpy as np
import pytest

from heterps_compile.errors import VerificationError
from heterps_compile.runtime.verify import compare_value


def test_equal_outputs_have_no_difference() -> None:
    result = compare_value("output 'y'", np.ones(3), np.ones(3), 1e-5)
    assert (result.max_abs, result.max_rel, result.values) == (0.0, 0.0, 1)


def test_a_difference_is_relative_to_the_scale_of_its_output() -> None:
    result = compare_value("output 'y'", np.array([100.0, 0.001]), np.array([100.0, 0.0]), 1e-4)
    assert result.max_abs == pytest.approx(1e-3)
    assert result.max_rel == pytest.approx(1e-5)


def test_a_difference_above_tolerance_is_an_error_with_the_numbers() -> None:
    with pytest.raises(VerificationError, match=r"'y'.*0.5.*0.25.*\b2\b.*1e-05"):
        compare_value("output 'y'", np.array([1.5]), np.array([2.0]), 1e-5)


def test_integers_must_be_equal() -> None:
    with pytest.raises(VerificationError, match=r"\b1\b.*\b2\b"):
        compare_value("output 'y'", np.array([1, 2]), np.array([1, 3]), 0.5)


def test_nan_equals_nan_and_nothing_else() -> None:
    compare_value("output 'y'", np.array([np.nan, 1.0, np.inf]), np.array([np.nan, 1.0, np.inf]), 1e-5)
    with pytest.raises(VerificationError, match=r"\b1\b.*\b2\b"):
        compare_value("output 'y'", np.array([np.nan, 1.0]), np.array([0.0, 1.0]), 1e-5)
    with pytest.raises(VerificationError, match=r"\b1\b.*\b1\b"):
        compare_value("output 'y'", np.array([np.inf]), np.array([-np.inf]), 1e-5)


def test_shape_and_dtype_must_agree() -> None:
    with pytest.raises(VerificationError, match=r"float32\[2\].*float32\[1, 2\]"):
        compare_value("output 'y'", np.ones(2, np.float32), np.ones((1, 2), np.float32), 1.0)


def test_none_equals_none_only() -> None:
    compare_value("output 'y'", None, None, 1e-5)
    with pytest.raises(VerificationError):
        compare_value("output 'y'", None, np.ones(1), 1e-5)


def test_a_difference_where_the_whole_model_gives_zeros_is_not_hidden() -> None:
    with pytest.raises(VerificationError):
        compare_value("output 'y'", np.array([0.1]), np.array([0.0]), 1e-5)
