"""One order for a step: branch after branch, those with the least gradients to sum first.

What ends first behind the last stage's backward is summed first. The stages in front end last, so that nothing hides
their sums; and a branch that ends before the next begins sends its result through the stages, not its parts::

    table a -> a1 \
                    top      a, a1, b, b1, top      where b has the larger gradients
    table b -> b1 /

Left out: whether a plan is better in this order (``place_layers.py``).
"""

from collections import Counter

from heterps_compile.cost.layer_orders import LayerOrders
from heterps_compile.cost.problem import Problem


def branch_order(problem: Problem, orders: LayerOrders) -> tuple[int, ...]:
    """Return the order of whole branches; O(layers log layers + edges).

    Args:
        problem: In the order of ``orders``; its ``sync_s`` [L, T] says what gradients take, on the quickest type.
        orders: Of its layers.
    """
    readers = Counter(other for before in orders.before for other in before)
    weights = problem.sync_s.min(axis=1).tolist()
    for layer, before in enumerate(orders.before):  # of a layer that several read, each has a share
        weights[layer] += sum(weights[other] / readers[other] for other in before)
    # from the last layer to the first, the heaviest branch first
    ready, found = sorted((i for i in range(len(weights)) if i not in readers), key=weights.__getitem__), list[int]()
    while ready:
        layer = ready.pop()
        found.append(layer)
        readers.subtract(orders.before[layer])
        ready += sorted((i for i in orders.before[layer] if not readers[i]), key=weights.__getitem__)
    return tuple(reversed(found))
