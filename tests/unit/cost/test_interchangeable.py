"""Layers that may change places in every plan."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_problems import plain_problem, small_problem

from heterps_compile.cost.evaluate import evaluate
from heterps_compile.cost.interchangeable import class_of, interchangeable_layers
from heterps_compile.cost.problem import Problem
from heterps_compile.passes.placement.baselines.brute import every_placement


def tables(**changes: Any) -> Problem:
    """Three equal embeddings and one with a wider result feed one product; a second product follows."""
    return plain_problem(
        [[1.0, 2.0]] * 4 + [[9.0, 1.0]] * 2,
        [1.0, 3.0],
        **{
            "edge_producer": np.array([0, 1, 2, 3, 4]),
            "edge_bytes": np.array([8.0, 8.0, 8.0, 9.0, 4.0]),
            "edge_readers": np.array([4, 4, 4, 4, 5]),
            "edge_starts": np.arange(6),
            "seconds_per_byte": np.array([0.1, 0.2]),
        }
        | changes,
    )


def test_embeddings_of_one_size_that_feed_one_product_are_a_class():
    assert interchangeable_layers(tables()) == (0, 0, 0, 3, 4, 5)
    assert class_of(interchangeable_layers(tables()), 1) == (0, 1, 2)
    assert class_of(interchangeable_layers(tables()), 4) == (4,)


@pytest.mark.parametrize(
    ("changes", "classes"),
    [
        ({"compute_s": np.array([[1.0, 2.0], [1.0, 2.1], [1.0, 2.0], [1.0, 2.0], [9.0, 1.0], [9.0, 1.0]])}, (0, 1, 0)),
        ({"weight_bytes": np.array([1.0, 1.0, 2.0, 1.0, 1.0, 1.0])}, (0, 0, 2)),
        ({"allowed": np.array([[True, True], [True, True], [True, False]] + [[True, True]] * 3)}, (0, 0, 2)),
        ({"edge_bytes": np.array([8.0, 7.0, 8.0, 9.0, 4.0])}, (0, 1, 0)),
        ({"edge_readers": np.array([4, 5, 4, 4, 5])}, (0, 1, 0)),
        ({"uncuttable": np.array([False, False, True, False, False, False, False])}, (0, 1, 2)),
        (
            {"tied_first": np.array([0]), "tied_second": np.array([4]), "tied_bytes": np.array([3.0])},
            (0, 1, 1),
        ),
        ({"tied_first": np.array([0]), "tied_second": np.array([1]), "tied_bytes": np.array([3.0])}, (0, 0, 2)),
    ],
)
def test_what_sets_a_layer_apart(changes, classes):
    assert interchangeable_layers(tables(**changes))[:3] == classes


def test_readers_of_one_value_and_makers_for_one_reader_are_interchangeable():
    # 0 is read by 1, 2 and 3, of which 1 and 2 feed 3: a query and a key
    problem = plain_problem(
        [[1.0]] * 4,
        [1.0],
        edge_producer=np.array([0, 1, 2]),
        edge_bytes=np.array([8.0, 4.0, 4.0]),
        edge_readers=np.array([1, 2, 3, 3, 3]),
        edge_starts=np.array([0, 3, 4, 5]),
    )
    assert interchangeable_layers(problem) == (0, 1, 1, 3)
    chain = replace(problem, edge_readers=np.array([1, 2, 3, 2, 3]))
    assert interchangeable_layers(chain) == (0, 1, 2, 3)


def test_to_swap_interchangeable_layers_never_changes_a_value():
    seen = 0
    for seed in range(40):
        drawn = small_problem(seed, layers=5, types=2, structure=False)
        same = {
            name: np.repeat(getattr(drawn, name)[:1], 5, axis=0)
            for name in ("compute_s", "data_s", "sync_s", "weight_bytes", "activation_bytes", "allowed")
        }
        rng = np.random.default_rng(seed)
        readers = rng.integers(3, 5, 3)
        problem = replace(
            drawn,
            **same,
            layer_kinds=("gemm",) * 5,
            edge_producer=np.arange(3),
            edge_bytes=np.full(3, 10.0),
            edge_readers=readers,
            edge_starts=np.arange(4),
        )
        alike = interchangeable_layers(problem)
        for one, other in ((0, 1), (1, 2), (3, 4)):
            if alike[one] != alike[other]:
                continue
            seen += 1
            for types, cuts in every_placement(problem):
                swapped = types.copy()
                swapped[:, [one, other]] = types[:, [other, one]]
                # both stand wherever a type stands: cut everywhere, so that neighbours do not count
                everywhere = np.ones_like(cuts)
                values = evaluate(problem, types, everywhere).values
                assert evaluate(problem, swapped, everywhere).values == pytest.approx(values, rel=1e-12)
    assert seen > 20
