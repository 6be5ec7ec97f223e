"""Down-sets: how many, which, and samples of them."""

from dataclasses import dataclass

import numpy as np
import pytest

from heterps_compile.passes.partial_orders import enumerate_down_sets, sample_down_sets


@dataclass(frozen=True)
class Items:
    before: tuple[tuple[int, ...], ...]

    @property
    def after(self) -> tuple[tuple[int, ...], ...]:
        count = range(len(self.before))
        return tuple(tuple(i for i in count if item in self.before[i]) for item in count)


DIAMOND = Items(((), (0,), (0,), (1, 2)))


def test_a_diamond_has_six_down_sets():
    assert enumerate_down_sets(DIAMOND, 100) == {0b0000, 0b0001, 0b0011, 0b0101, 0b0111, 0b1111}


def test_a_chain_has_one_more_than_items_and_loose_items_two_to_their_number():
    chain, free = Items(((), (0,), (1,))), Items(((), (), ()))
    assert [len(enumerate_down_sets(items, 100) or ()) for items in (chain, free)] == [4, 8]


@pytest.mark.parametrize(("limit", "is_within"), [(6, True), (5, False)])
def test_enumeration_stops_at_its_limit(limit, is_within):
    assert (enumerate_down_sets(DIAMOND, limit) is not None) is is_within


def test_a_sample_holds_chains_of_down_sets_and_what_it_passes_through():
    everything = enumerate_down_sets(DIAMOND, 100)
    sample = sample_down_sets(DIAMOND, 1, np.random.default_rng(0), through=(0b0101,))
    assert everything is not None
    assert sample <= everything
    assert {0b0000, 0b0101, 0b1111} <= sample
    assert len(sample_down_sets(DIAMOND, 1, np.random.default_rng(0))) == 5
