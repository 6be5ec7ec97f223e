"""Ranges of samples are checked alike in every source."""

import pytest
import torch

from heterps_compile.errors import InputError, RunError, UnknownNameError
from heterps_compile.runtime.data.sample_source import TensorSource, join

SOURCE = TensorSource({"id": torch.arange(5), "x": torch.zeros(5, 2)})


@pytest.mark.parametrize(("first", "count"), [(3, 3), (-1, 2), (0, 0), (5, 1)])
def test_a_range_outside_is_refused(first, count):
    with pytest.raises(RunError, match=rf"samples {first}.*{first + count - 1}.*\b5\b"):
        SOURCE.read(first, count, ["id"])


def test_an_unknown_column_is_named_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"'idd'.*'id'"):
        SOURCE.read(0, 1, ["idd"])


def test_columns_of_different_length_are_refused():
    with pytest.raises(InputError, match=r"'y'.*\b4\b.*'x'.*\b3\b"):
        TensorSource({"x": torch.zeros(3), "y": torch.zeros(4)})


@pytest.mark.parametrize("tensors", [{}, {"x": torch.zeros(0)}, {"x": torch.tensor(1.0)}])
def test_nothing_is_no_source(tensors):
    with pytest.raises(InputError, match=r"no samples|no columns"):
        TensorSource(tensors)


def test_samples_of_different_shape_do_not_join():
    with pytest.raises(InputError, match=r"'x'.*\[2\].*\[3\]"):
        join([{"x": torch.zeros(1, 2)}, {"x": torch.zeros(1, 3)}])
