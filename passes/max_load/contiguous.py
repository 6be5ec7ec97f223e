"""Contiguous splits: thresholds raised to the optimum over all down-sets, or a sample of them where they are too many.

For each flow of the backward pass (:class:`Flow`):

1. Few down-sets (the ordinary case): a sampled chain gives a first split, then thresholds grow from the lower bound, in
   steps that double, up to the value known. The last one without a split is the bound; the first with one proves it.
2. Too many only because loose blocks stay apart where memory is scarce: the search runs once without their memory, for
   the bound, and where that breaks the memory limit, once with it.
3. Too many blocks for a table: they are cut evenly along one topological order, and that is all.
4. Too many down-sets at all: they are sampled around the best chain until the time is up or the simple bound is met.

The bound of the workload is the lowest of its flows' bounds.

Left out: the search over one family (``passes/chain_search.py``), loads (``device_loads.py``).
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np

from heterps_compile.cost.workload import Workload
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.chain_search import CLOSE, raise_threshold
from heterps_compile.passes.deadline import Deadline, TimeUpError
from heterps_compile.passes.partial_orders import enumerate_down_sets, sample_down_sets
from heterps_compile.units import format_bytes

from .blocks import Blocks, Flow, Loose, contract, has_backward_edges
from .device_loads import DeviceLoads
from .down_sets import tabulate
from .load_bounds import simple_bound
from .split import evaluate_split, faults, in_line

MAX_DOWN_SETS = 100_000
"""Beyond this a table no longer fits comfortably into memory, nor a threshold into a minute."""
MAX_BLOCKS = 5_000
"""Beyond this the table of even one topological order no longer fits comfortably into memory."""
SAMPLED_TIME_LIMIT_S = 60.0
"""How long sampling goes on where the caller set no limit."""
_FIRST_SPLIT_S, _LEAST_REASON_S = 1.0, 1.0
"""What is left for a first split, or for the reason why there is none, however short the limit: they are the answer."""
_MOST_ROUNDS = 10**9


@dataclass(slots=True)
class Best:
    """The best split seen so far, and what it took; changes while a search runs.

    Attributes:
        workload: What is split.
        deadline: When to stop.
        value_ms: Its largest load.
        assignment: Device of every node; empty where none was seen.
        evaluations: Loads and moves weighed.
        notes: For the user.
    """

    workload: Workload
    deadline: Deadline
    value_ms: float = math.inf
    assignment: tuple[int, ...] = ()
    evaluations: int = 0
    notes: list[str] = field(default_factory=list)

    def offer(self, assignment: Sequence[int]) -> bool:
        """Take a split if it keeps every rule; tell whether it does."""
        if next(faults(self.workload, assignment), None) is not None:
            return False
        value_ms = max(evaluate_split(self.workload, assignment))
        if value_ms < self.value_ms:
            self.value_ms, self.assignment = value_ms, tuple(assignment)
        return True


def split_contiguously(best: Best, rng: np.random.Generator) -> float:
    """Improve the best split among contiguous ones, to the optimum where down-sets and time allow.

    Args:
        best: Where splits go.
        rng: For sampling.

    Returns:
        A proven lower bound on every contiguous split's largest load, in ms.

    Raises:
        InfeasibleError: where no contiguous split exists.
    """
    workload = best.workload
    flows = tuple(Flow) if has_backward_edges(workload) else (Flow.AGAINST,)
    lines: list[tuple[Flow, Blocks]] = []
    refusals: list[InfeasibleError] = []
    for flow in flows:
        try:
            lines.append((flow, contract(workload, flow, Loose.JOIN)))
        except InfeasibleError as refusal:
            refusals.append(refusal)
    if not lines:
        raise refusals[0]
    for device in range(workload.device_count):
        best.offer([device] * len(workload.nodes))
    for _, blocks in lines:
        best.offer(blocks.spread(_even(blocks)))
    if max(blocks.count for _, blocks in lines) > MAX_BLOCKS:
        if not best.assignment:
            raise InfeasibleError(
                f"workload {workload.name!r}: over {MAX_BLOCKS:,} blocks of nodes are not searched, and cut evenly "
                "they break a rule of the pool; give the devices more memory, or make fewer nodes of the model"
            )
        best.notes.append(f"over {MAX_BLOCKS:,} blocks of nodes: cut evenly, and not searched")
        return min(simple_bound(blocks) for _, blocks in lines)
    for _, blocks in lines:
        deadline = best.deadline if best.assignment else best.deadline.at_least(_FIRST_SPLIT_S)
        _search(best, blocks, sample_down_sets(blocks, 2, rng), deadline)
    bounds_ms = [_prove(best, flow, blocks) for flow, blocks in lines]
    if None in bounds_ms:
        best.notes.append(f"over {MAX_DOWN_SETS:,} down-sets: a sample of them was searched")
        _sample(best, lines, rng)
    if not best.assignment:
        if all(bound_ms == math.inf for bound_ms in bounds_ms):
            raise InfeasibleError(_why_infeasible(workload, lines[0][0], best.deadline))
        raise InfeasibleError(
            f"workload {workload.name!r}: no contiguous split was found in the time given, and none was ruled out; "
            "give more time or more memory"
        )
    return min(
        simple_bound(blocks) if bound_ms is None else bound_ms
        for bound_ms, (_, blocks) in zip(bounds_ms, lines, strict=True)
    )


def _even(blocks: Blocks) -> Sequence[int]:
    """Cut the topological order into a run for every accelerator, or every CPU, of like times."""
    count = blocks.accelerators or blocks.cpus
    time_ms = blocks.accelerator_ms if blocks.accelerators else blocks.cpu_ms
    share = (np.cumsum(time_ms) - time_ms / 2) / max(float(time_ms.sum()), 1e-300)
    return [int(device) for device in np.minimum(share * count, count - 1)]


def _search(best: Best, blocks: Blocks, family: Collection[int], deadline: Deadline) -> float:
    """Offer the best split over a family of down-sets; give a lower bound on the splits over it.

    The bound is inf where the family has no split at all.
    """
    floor_ms = simple_bound(blocks)
    try:
        loads = DeviceLoads(blocks, tabulate(blocks, family, deadline))
    except TimeUpError:
        return floor_ms
    ceiling_ms = float(blocks.accelerator_ms.sum() + blocks.cpu_ms.sum() + blocks.net_ms.sum())

    def find(limit_ms: float) -> float | None:
        found = loads.best_chain(limit_ms, deadline)
        if found is None:
            return None
        best.offer(blocks.spread(loads.devices(found[1])))
        return found[0] * (1 - 1e-12)

    most_ms = min(ceiling_ms, best.value_ms * (1 - CLOSE))
    bound_ms = raise_threshold(find, floor_ms, most_ms, finds_least=True)
    best.evaluations += loads.evaluations
    return bound_ms if bound_ms < most_ms or best.assignment else math.inf


def _prove(best: Best, flow: Flow, joined: Blocks) -> float | None:
    """Return a flow's proven bound, None where there are too many down-sets for one."""
    try:
        return _proven(best, flow, joined)
    except TimeUpError:
        return simple_bound(joined)


def _proven(best: Best, flow: Flow, joined: Blocks) -> float | None:
    """Do so.

    Raises:
        TimeUpError: where the time is up before the search can begin.
    """
    deadline = best.deadline
    deadline.check()
    apart = contract(best.workload, flow, Loose.STAY)
    family = enumerate_down_sets(apart, MAX_DOWN_SETS, deadline)
    if family is not None:
        return _search(best, apart, family, deadline)
    deadline.check()
    floating = contract(best.workload, flow, Loose.FLOAT)
    family = enumerate_down_sets(floating, MAX_DOWN_SETS, deadline)
    if family is None:
        return None
    # Without the memory of loose blocks a split may look better than any that fits, so it is kept apart from the best.
    relaxed = Best(replace(best.workload, memory_bytes=_total_bytes(best.workload)), deadline)
    bound_ms = _search(relaxed, floating, family, deadline)
    best.evaluations += relaxed.evaluations
    if not relaxed.assignment or not best.offer(relaxed.assignment):
        try:
            family = enumerate_down_sets(joined, MAX_DOWN_SETS, deadline)
        except TimeUpError:
            return bound_ms
        if family is not None:
            _search(best, joined, family, deadline)
    return bound_ms


def _sample(best: Best, lines: Sequence[tuple[Flow, Blocks]], rng: np.random.Generator) -> None:
    """Search samples of down-sets around the best split, round after round."""
    deadline = best.deadline.within(SAMPLED_TIME_LIMIT_S)
    for _ in range(_MOST_ROUNDS):
        for _, blocks in lines:
            if deadline.is_over or best.value_ms <= simple_bound(blocks):
                return
            through = _prefixes(blocks, best.assignment) if best.assignment else []
            orders = max(4, 4000 // blocks.count)
            _search(best, blocks, sample_down_sets(blocks, orders, rng, through), deadline)


def _prefixes(blocks: Blocks, assignment: Sequence[int]) -> list[int]:
    """Return the down-sets along a split's line; empty where these blocks cannot express it."""
    devices = blocks.gather(assignment)
    if blocks.spread(devices) != tuple(assignment):
        return []
    pairs = {(devices[earlier], devices[b]) for b, before in enumerate(blocks.before) for earlier in before}
    held = (sum(1 << b for b in range(blocks.count) if devices[b] == device) for device in in_line(devices, pairs))
    return list(accumulate(held))


def _total_bytes(workload: Workload) -> float:
    return sum(node.size_bytes for node in workload.nodes)


def _why_infeasible(workload: Workload, flow: Flow, deadline: Deadline) -> str:
    """Say what stands against every contiguous split, and the least memory that would do, where the time suffices."""
    deadline = deadline.at_least(_LEAST_REASON_S)
    roomy = replace(workload, memory_bytes=_total_bytes(workload))
    blocks = contract(roomy, flow, Loose.JOIN)
    weights = replace(
        blocks,
        accelerator_ms=np.where(blocks.on_accelerator, blocks.size_bytes, 0.0),
        cpu_ms=np.zeros(blocks.count),
        nets=(),
        net_ms=np.zeros(0),
    )
    pool = f"{workload.accelerators} accelerators and {workload.cpus} CPUs"
    room = format_bytes(workload.memory_bytes)
    heaviest_bytes: float | None = None
    try:
        family = enumerate_down_sets(weights, MAX_DOWN_SETS, deadline)
        is_all = family is not None
        table = tabulate(weights, family or sample_down_sets(weights, 2, np.random.default_rng(0)), deadline)
        found = DeviceLoads(weights, table).best_chain(float(weights.accelerator_ms.sum()) + 1.0, deadline)
        if found is not None:
            heaviest_bytes = found[0]  # in bytes: the weights stand in place of times
        elif is_all:
            return (
                f"workload {workload.name!r}: contiguity is impossible on {pool}: nodes that only accelerators or only "
                "CPUs can run take turns along the graph more often than the devices do; add devices"
            )
    except TimeUpError:
        pass  # the reason stands without the number
    would_do = "" if heaviest_bytes is None else f"; {format_bytes(heaviest_bytes)} would do"
    them = "more memory" if heaviest_bytes is None else "that much"
    return (
        f"workload {workload.name!r}: no contiguous split on {pool} keeps every accelerator within {room}{would_do}. "
        f"Give the accelerators {them}, or add devices"
    )
