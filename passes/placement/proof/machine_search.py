"""The exact search where some types are rented as whole machines: branch and bound over how many machines there are.

Rented unit by unit, a plan is no dearer, so that the search which knows no machines bounds all plans from below. What
it leaves open is closed by counting machines. With at least so many of them rented these are paid whatever is used,
and with at most so many the units are limited::

    all counts                      plan found: 9 units in machines of 8; by the unit 9, by the machine 16
      at most 1 machine             units limited to 8
      at least 2 machines           16 paid, and units beyond them
        2 machines                  16 paid, units limited to 16: the fastest plan is the cheapest
        at least 3 machines         24 paid: closed

A node is bounded by the better of two relaxations: units by themselves; and the machines that it rents at least, with
all units of such types free. Where other types are rented by the unit, ``cost`` is paid for a time that depends on
them: the range of times of a batch is split too.

Left out: what a plan costs (``cost/whole_machines.py``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from heterps_compile.cost.evaluate import detail, evaluate_one, slowest_batch_s
from heterps_compile.cost.finders import PROOF
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Ints, Placement, Problem
from heterps_compile.cost.whole_machines import by_unit
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.incumbent import Incumbent

from .best_first import best_first
from .trivial_bounds import GAP, longest_s, per_million_samples, trivial_bound

_FREE = 1e-9  # price of a unit that is paid already; what all of them come to is taken off again

Proved = tuple[Placement | None, float, int]
"""The best plan of a problem without machines, a lower bound, and how many placements were evaluated."""

Prove = Callable[[Problem, Incumbent], Proved]


@dataclass(frozen=True, slots=True)
class _Node:
    """Plans that rent so many machines, and take so long for a batch.

    Attributes:
        bound: Lower bound on their value.
        fewest, most: [T], machines; of types whose units are rented one by one, none and their limit.
        slow_s, fast_s: fast_s < time of a batch <= slow_s; of ``cost`` alone.
        used: [T], units of the plan that seems best; None where there is none.
    """

    bound: float
    fewest: Ints
    most: Ints
    slow_s: float
    fast_s: float
    used: Ints | None = None


class _Heard(Incumbent):
    """The incumbent of a relaxation: its plans are offered to the whole problem's, at what they cost there."""

    def __init__(self, problem: Problem, whole: Incumbent, below: float = np.inf) -> None:
        super().__init__(problem, below)
        self._whole = whole

    def offer(self, placement: Placement, value: float, found_by: str) -> bool:
        is_better = super().offer(placement, value, found_by)
        if is_better:
            self._whole.offer(placement, evaluate_one(self._whole.problem, placement), found_by)
        return is_better

    def exchange(self, work: int) -> None:
        self._whole.exchange(work)


class MachineSearch:
    """The search, which can be stopped at any time.

    Attributes:
        bound: A proven lower bound on the value of every placement; inf where it is proven that none is feasible.
        evaluations: Placements evaluated.
    """

    def __init__(
        self, problem: Problem, deadline: Deadline, most_nodes: int, incumbent: Incumbent, prove: Prove
    ) -> None:
        """Take a problem with whole machines, and what proves those without."""
        if problem.rented_together is None:
            raise ValueError("every unit is rented by itself here")
        self.problem, self.deadline, self._most_nodes = problem, deadline, most_nodes
        self._incumbent, self._prove = incumbent, prove
        self._together = problem.rented_together
        self._whole = self._together > 1
        self._relaxed = by_unit(problem)
        self.bound, self.evaluations, self._nodes = trivial_bound(problem), 0, 1

    def run(self, starts: Sequence[Placement]) -> None:
        """Search to the proof, to the deadline, or until the tree is too large."""
        for start in starts:
            self._incumbent.offer(start, evaluate_one(self.problem, start), PROOF)
        most = np.where(self._whole, self.problem.max_units // self._together, self.problem.max_units)
        slow_s = min(slowest_batch_s(self.problem), longest_s(self.problem))
        root = _Node(self.bound, np.zeros_like(most), most, slow_s, 0.0)
        bound = best_first(
            self._bounded(root),
            self._branch,
            lambda: self._incumbent.value * (1 - GAP),
            self._incumbent.raise_bound,
            is_over=lambda: self.deadline.left_s() <= 0 or self._nodes >= self._most_nodes,
        )
        self.bound = self._incumbent.value if bound >= self._incumbent.value * (1 - GAP) else bound

    def _branch(self, node: _Node) -> list[_Node] | None:
        parts = self._parts(node)
        self._nodes += len(parts)
        return [self._bounded(part) for part in parts] or None

    def _bounded(self, node: _Node) -> _Node:
        """Bound a node by both relaxations."""
        limits = np.where(self._whole, node.most * self._together, node.most)
        relaxed = replace(self._relaxed, max_units=limits)
        if self.problem.objective == "cost" and np.isfinite(node.slow_s):
            relaxed = replace(relaxed, min_throughput=max(relaxed.min_throughput, self.problem.batch / node.slow_s))
        placement, bound, tried = self._prove(relaxed, _Heard(relaxed, self._incumbent, self._incumbent.value))
        self.evaluations += tried
        bound = max(node.bound, bound)
        used = None if placement is None else _used(relaxed, placement)
        if bound < self._incumbent.value * (1 - GAP):
            bound = max(bound, self._with_machines(relaxed, node))
        return replace(node, bound=bound, used=used)

    def _with_machines(self, relaxed: Problem, node: _Node) -> float:
        """Bound a node by the machines that it rents at least, with units of their types free."""
        problem, objective = self.problem, self.problem.objective
        paid = float((node.fewest * self._together * problem.price_per_hour)[self._whole].sum())
        if paid <= 0:
            return -np.inf
        if paid > problem.budget_per_hour * (1 + GAP):
            return np.inf
        free = replace(relaxed, price_per_hour=np.where(self._whole, _FREE, problem.price_per_hour))
        slack = _FREE * float(relaxed.max_units[self._whole].sum())
        if OBJECTIVES[objective].takes_budget:
            return self._bound(replace(free, budget_per_hour=problem.budget_per_hour - paid + slack))
        others = 0.0 if np.all(self._whole) else self._bound(free)
        if np.isinf(others):
            return others
        if objective == "price":
            return paid + max(0.0, others - slack)
        within = replace(relaxed, objective="throughput", budget_per_hour=np.inf)
        fastest_s = max(node.fast_s, self._bound(within))
        extra = max(0.0, others - per_million_samples(problem, slack * node.slow_s))
        return per_million_samples(problem, paid * fastest_s) + extra

    def _bound(self, relaxed: Problem) -> float:
        _, bound, tried = self._prove(relaxed, _Heard(relaxed, self._incumbent))
        self.evaluations += tried
        return bound

    def _parts(self, node: _Node) -> list[_Node]:
        """Split a node by the machines of the type of which most is paid for nothing, else by the time of a batch."""
        can_split = self._whole & (node.fewest < node.most)
        if np.any(can_split):
            used = node.fewest * self._together if node.used is None else node.used
            idle = (-used % self._together) * self.problem.price_per_hour
            type_ = int(np.argmax(np.where(can_split, idle, -1.0)))
            rented = int(-(-used[type_] // self._together[type_]))
            middle = min(max(rented, int(node.fewest[type_]) + 1), int(node.most[type_]))
            fewer, more = node.most.copy(), node.fewest.copy()
            fewer[type_], more[type_] = middle - 1, middle
            return [replace(node, most=fewer), replace(node, fewest=more)]
        if self.problem.objective != "cost" or np.all(self._whole):
            return []
        slow_s, fast_s = node.slow_s, node.fast_s
        middle_s = float(np.sqrt(slow_s * fast_s)) if fast_s > 0 else slow_s / 2
        if not fast_s < middle_s * (1 - GAP) < slow_s * (1 - GAP):
            return []
        return [replace(node, fast_s=middle_s), replace(node, slow_s=middle_s)]


def _used(problem: Problem, placement: Placement) -> Ints:
    """Return [T], the units that a placement uses."""
    stages = detail(problem, placement).stages
    units = np.bincount([s.type for s in stages], [s.replicas for s in stages], problem.type_count)
    return np.asarray(units, np.int64)
