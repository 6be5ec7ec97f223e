"""Count the trips of loops and scans, and refuse a model whose loops run too many nodes.

For a node of the form ``y = Loop(trips, go, x)`` whose body returns the condition that it reads, or a condition that is
True, the trips are ``trips``: a constant, or what shapes and constants alone decide. A ``Scan`` takes one trip for each
slice of its inputs. Trips multiply where loops are nested.

Not covered: trips that data decide. A run of such a model is bounded by time (:func:`.onnx_budget.bounded_run`).
"""

import math
from dataclasses import dataclass, field

import onnx_ir as ir

from .onnx_bodies import subgraphs
from .onnx_budget import BUDGET, Budget, over_budget
from .onnx_names import describe
from .open_batch.known_values import KnownValues

_FIX = "export the model with a smaller one"


@dataclass(frozen=True, slots=True)
class Trips:
    """The trips of the loops and scans of a normalised model whose inputs are bound.

    Attributes:
        known: Shapes and constants of the model.
    """

    known: KnownValues
    _true: set[ir.Value] = field(default_factory=set)  # conditions that loops pass to their bodies

    def of(self, node: ir.Node) -> float | None:
        """Count the runs of a node's body: ``inf`` without an end, None if data decide."""
        if node.op_type == "Loop":
            limit, go = (*node.inputs, None, None)[:2]
            if not self._goes_on(node, go):
                return None
            if limit is None:
                return math.inf
            number = self.number(limit)
            return None if number is None else max(number, 0)
        if node.op_type == "Scan" and node.inputs and node.inputs[-1] is not None:
            axes = node.attributes.get("scan_input_axes")
            return self.size(node.inputs[-1], 0 if axes is None or not axes.value else axes.value[-1])
        return None

    def number(self, value: ir.Value) -> int | None:
        """Compute the number that shapes and constants make of a value, or None where there is none."""
        try:
            array = self.known.constant(value)
        except RecursionError:  # a chain of very many constants
            return None
        return None if array is None or array.size != 1 else int(array.reshape(-1)[0])

    def size(self, value: ir.Value, axis: int) -> int | None:
        """Compute the size of an axis, or None if it is not known."""
        shape = self.known.shape(value)
        size = shape[axis] if shape and -len(shape) <= axis < len(shape) else None
        return size if isinstance(size, int) else None

    def _goes_on(self, node: ir.Node, go: ir.Value | None) -> bool:
        """Say whether the condition of a loop is True in every trip, whatever the data."""
        body = next(subgraphs(node), None)
        if body is None or not body.outputs or len(body.inputs) < 2:
            return False
        value: ir.Value | None = body.outputs[0]
        while value is not None and (maker := value.producer()) is not None and maker.op_type == "Identity":
            value = maker.inputs[0]
        is_first_true = go is None or go in self._true or self.number(go) == 1
        if is_first_true and value is body.inputs[1]:
            self._true.add(body.inputs[1])
            return True
        return is_first_true and value is not None and (value in self._true or self.number(value) == 1)


def refuse_long_runs(trips: Trips, budget: Budget = BUDGET) -> None:
    """Refuse a model whose loops run more nodes, or whose lists have more tensors, than the budget allows; O(nodes).

    Args:
        trips: Of the model.
        budget: Of node runs and items.

    Raises:
        GraphError: naming the outermost loop, or the list, with its number.
    """
    for node in trips.known.model.graph:
        runs = _runs(node, trips, budget)
        if runs > budget.node_runs:
            taken = trips.of(node)
            in_trips = "" if taken is None else f" ({taken:,.0f} trips)"
            value = f"{runs:,.0f}{in_trips}" if runs < math.inf else "without end"
            name = f"the number of nodes that {describe(node)} runs"
            raise over_budget(name, value, f"{budget.node_runs:,}", _FIX)


def _runs(node: ir.Node, trips: Trips, budget: Budget) -> float:
    """Count the nodes that a node runs, itself included."""
    if node.op_type == "SplitToSequence":
        _refuse_long_list(node, trips, budget)
    bodies = list(subgraphs(node))
    taken = trips.of(node) if bodies else 0  # before the bodies, whose conditions it may decide
    inside = [sum(_runs(inner, trips, budget) for inner in body) for body in bodies]
    if node.op_type == "If":
        return 1 + max(inside, default=0)
    return 1 if taken == 0 else 1 + (1 if taken is None else taken) * (1 + sum(inside))


def _refuse_long_list(node: ir.Node, trips: Trips, budget: Budget) -> None:
    value, split = (*node.inputs, None)[:2]
    axis = node.attributes.get("axis")
    size = None if value is None else trips.size(value, 0 if axis is None else axis.as_int())
    each = 1 if split is None else trips.number(split)
    if size is not None and each is not None and -(-size // max(each, 1)) > budget.items:
        name = f"the number of tensors that {describe(node)} makes"
        raise over_budget(name, f"{-(-size // max(each, 1)):,}", f"{budget.items:,}", _FIX)
