"""Which positions the start on a long chain with links looks at."""

import numpy as np
from small_problems import plain_problem

from heterps_compile.passes.placement.geometry import Chain
from heterps_compile.passes.placement.proof.linked_search import _thinned


def test_of_neighbouring_positions_the_one_that_the_fewest_bytes_cross_is_kept() -> None:
    edge_bytes = np.array([9.0, 1.0, 9.0, 9.0, 3.0, 2.0, 9.0])  # value i leaves layer i: position i + 1 crosses it
    chain = Chain(plain_problem([[1.0]] * 8, [1.0], edge_bytes=edge_bytes))
    assert _thinned(chain, 4).tolist() == [0, 2, 5, 8]


def test_the_ends_are_always_kept() -> None:
    chain = Chain(plain_problem([[1.0]] * 5, [1.0]))
    assert _thinned(chain, 1).tolist() == [0, 5]
