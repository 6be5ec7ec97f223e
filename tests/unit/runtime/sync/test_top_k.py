"""Selection of the largest entries: exactly k, whatever the tensor."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_compile.errors import InputError
from heterps_compile.runtime.sync.top_k import select_exact, select_threshold

SELECTIONS = pytest.mark.parametrize("select", [select_exact, select_threshold])


def drawn(law: str, length: int = 200_000) -> torch.Tensor:
    torch.manual_seed(0)
    laws = {
        "gaussian": torch.distributions.Normal(0.0, 1.0),
        "laplace": torch.distributions.Laplace(0.0, 1.0),
        "t3": torch.distributions.StudentT(3.0),
    }
    return laws[law].sample((length,))


@SELECTIONS
def test_the_largest_two_of_five(select):
    selection = select(torch.tensor([1.0, -5.0, 0.0, 4.0, -2.0]), 2)
    assert (selection.values.tolist(), selection.indices.tolist()) == ([-5.0, 4.0], [1, 3])


FLATS = st.lists(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1.0 + 2**-23, 3.4e38, -3.4e38, 1e-45, 2.0**-126, 7.0]),
    min_size=1,
    max_size=40,
)


@SELECTIONS
@settings(max_examples=40, deadline=None)
@given(values=FLATS, data=st.data(), double=st.booleans())
def test_exactly_k_distinct_indices_and_none_left_out_that_is_larger(select, values, data, double):
    """Ties, zeros, denormals and the largest float32 (whose mean must not overflow) among them."""
    flat = torch.tensor(values, dtype=torch.float64 if double else torch.float32)
    k = data.draw(st.integers(0, len(values)))
    selection = select(flat, k)
    assert selection.indices.tolist() == sorted(set(selection.indices.tolist()))
    assert selection.indices.numel() == k
    assert torch.equal(selection.values, flat[selection.indices])
    left_out = torch.ones_like(flat, dtype=torch.bool)
    left_out[selection.indices] = False
    if 0 < k < len(values):
        allowed = float(flat.abs().max()) * 2**-22  # of the bisection in float32
        allowed = 0.0 if select is select_exact else allowed
        assert flat[left_out].abs().max() <= selection.values.abs().min() + allowed


@SELECTIONS
@pytest.mark.parametrize("fill", [0.0, 3.0, -3.0])
def test_a_tensor_of_one_value_gives_its_first_or_any_k(select, fill):
    assert len(set(select(torch.full((1000,), fill), 17).indices.tolist())) == 17


def test_ties_in_the_band_are_taken_from_the_front():
    assert select_threshold(torch.tensor([2.0, 1.0, 1.0, 1.0, 0.0]), 3).indices.tolist() == [0, 1, 2]
    assert select_threshold(torch.tensor([0.0, 5.0, 5.0, 5.0]), 2).indices.tolist() == [1, 2]


def test_more_entries_than_reach_the_mean():
    """Of one spike and a slope below its mean, 900 are the largest 899 of the slope and the spike."""
    flat = torch.cat([torch.arange(1000.0), torch.tensor([1e9])])
    selection = select_threshold(flat, 900, bisections=60)
    assert selection.indices.tolist() == list(range(101, 1001))


@SELECTIONS
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_inf_are_refused_with_their_number(select, bad):
    flat = torch.zeros(10)
    flat[3] = flat[7] = bad
    with pytest.raises(InputError, match=r"\b2\b.*\b10\b.*NaN"):
        select(flat, 2)


@SELECTIONS
def test_what_cannot_be_selected_from_is_refused(select):
    with pytest.raises(InputError, match=r"\b6\b.*\b5\b"):
        select(torch.zeros(5), 6)
    with pytest.raises(InputError, match=r"torch\.float32.*2x3"):
        select(torch.zeros(2, 3), 1)
    with pytest.raises(InputError, match=r"torch\.int64"):
        select(torch.zeros(5, dtype=torch.int64), 1)
    assert select(torch.zeros(0), 0).indices.numel() == 0


def test_bisections_below_none_are_refused():
    with pytest.raises(InputError, match="-1"):
        select_threshold(torch.zeros(5), 1, bisections=-1)


def test_a_selection_becomes_dense_again_and_knows_its_bytes():
    selection = select_exact(torch.tensor([0.0, 3.0, -4.0]), 1)
    assert selection.dense(3).tolist() == [0.0, 0.0, -4.0]
    assert selection.size_bytes == 4 + 4
