"""The order of whole branches."""

from dataclasses import replace

import numpy as np
from small_problems import plain_problem

from heterps_compile.cost.layer_orders import LayerOrders
from heterps_compile.passes.placement.orders.branch_order import branch_order


def test_whole_branches_stand_one_after_another_those_with_the_least_gradients_first() -> None:
    # branches 0 2, 1 4 and 3; 5 reads all of them
    orders = LayerOrders(((), (), (0,), (), (1,), (2, 3, 4)))
    problem = replace(plain_problem([[1.0]] * 6, [1.0]), sync_s=np.array([[5.0], [1.0], [0.0], [2.0], [0.5], [0.0]]))
    assert branch_order(problem, orders) == (1, 4, 3, 0, 2, 5)


def test_a_layer_that_branches_share_comes_before_all_of_them() -> None:
    orders = LayerOrders(((), (0,), (0,), (1, 2)))
    problem = replace(plain_problem([[1.0]] * 4, [1.0]), sync_s=np.array([[8.0], [2.0], [1.0], [0.0]]))
    assert branch_order(problem, orders) == (0, 2, 1, 3)
