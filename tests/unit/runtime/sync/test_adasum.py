"""Adasum's laws: what it does to orthogonal, parallel and noisy gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_rules import combine_all, tree

from heterps_compile.errors import InputError
from heterps_compile.runtime.sync.adasum import combine, products

COUNTS = [1, 2, 3, 4, 5, 6, 7, 8, 13]


@pytest.mark.parametrize("replicas", COUNTS)
def test_orthogonal_gradients_are_added(replicas):
    rows = torch.eye(replicas, 16, dtype=torch.float64) * 3
    assert torch.equal(combine_all(list(rows)), rows.sum(0))


@pytest.mark.parametrize("replicas", COUNTS)
def test_equal_gradients_are_averaged(replicas):
    gradient = torch.tensor([3.0, -4.0, 12.0], dtype=torch.float64)
    torch.testing.assert_close(combine_all([gradient] * replicas), gradient, rtol=1e-15, atol=0)


def test_a_tree_of_six_folds_two_first():
    assert tree(6) == [[(0, 4), (1, 5)], [(0, 1), (2, 3)], [(0, 2)]]


def test_layers_are_combined_each_on_its_own():
    a, b = torch.tensor([1.0, 1.0]), torch.tensor([1.0, -1.0])
    assert combine(a, b).tolist() == [2.0, 0.0]  # orthogonal as a whole
    assert combine(a, b, [1, 1]).tolist() == [1.0, 0.0]  # each is parallel: averaged
    assert combine_all([a, b], [1, 0, 1]).tolist() == [1.0, 0.0]


def test_zeros_change_nothing_and_long_vectors_do_not_overflow():
    zero, big = torch.zeros(2), torch.tensor([3e30, 4e30])
    assert torch.equal(combine(zero, big), big)
    assert torch.equal(combine(big, zero), big)
    assert torch.equal(combine(zero, zero), zero)
    assert torch.equal(combine(big, big), big)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=8))
def test_a_combination_is_symmetric_and_no_longer_than_the_sum_of_lengths(pairs):
    a, b = (torch.tensor([pair[side] for pair in pairs], dtype=torch.float64) for side in (0, 1))
    torch.testing.assert_close(combine(a, b), combine(b, a))
    assert combine(a, b).norm() <= 1.5 * (a.norm() + b.norm()) + 1e-9


def test_products_of_parts_add_up_to_those_of_the_whole():
    torch.manual_seed(0)
    a, b = torch.randn(2, 10)
    torch.testing.assert_close(products(a, b), products(a[:4], b[:4]) + products(a[4:], b[4:]))


def test_what_does_not_fit_is_refused():
    with pytest.raises(InputError, match="dtype"):
        combine(torch.zeros(2), torch.zeros(3))
    with pytest.raises(InputError, match=r"\b3\b.*\b2\b"):
        combine(torch.zeros(2), torch.zeros(2), [1, 2])
