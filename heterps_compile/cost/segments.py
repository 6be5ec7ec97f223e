"""The stages of a batch of placements, as flat arrays: layers, type, work, bytes in and out, memory.

Left out: replicas (``replicas.py``, ``best_units.py``), and all segments of a chain (``passes/placement/geometry.py``).
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .link_traffic import link_traffic
from .problem import Bools, Floats, Ints, Problem
from .replicas import LayerSums, StageWork


@dataclass(frozen=True, slots=True, eq=False)
class ProblemTables:
    """What depends on the problem alone, computed once.

    Attributes:
        usable: [L, T], whether the type may run the layer.
        layers: [L, T] each, 0 where not usable.
        sent_by, sent_until: Of every value with readers, its producer and its last reader.
        sent_bytes: Its size.
        read_by: [R], reader of a value.
        read_after: [R], the reader before it, or the value's producer.
        read_bytes: [R], size of the value.
        memory_binds: Whether some type cannot hold the whole model.
    """

    usable: Bools
    layers: LayerSums
    sent_by: Ints
    sent_until: Ints
    sent_bytes: Floats
    read_by: Ints
    read_after: Ints
    read_bytes: Floats
    memory_binds: bool

    @property
    def compute_s(self) -> Floats:
        """[L, T], 0 where not usable."""
        return self.layers.compute_s

    @property
    def data_s(self) -> Floats:
        """[L, T], 0 where not usable."""
        return self.layers.data_s


@lru_cache(maxsize=8)
def problem_tables(problem: Problem) -> ProblemTables:
    """Return the tables of a problem; kept for the problems used last, since a search asks thousands of times."""
    usable = problem.allowed & np.isfinite(problem.compute_s) & np.isfinite(problem.data_s)
    counts = np.diff(problem.edge_starts)
    read = counts > 0
    read_after = np.roll(problem.edge_readers, 1)
    read_after[problem.edge_starts[:-1][read]] = problem.edge_producer[read]
    activations = problem.activation_bytes
    held = problem.weight_bytes.sum() + (activations.sum() if problem.keeps_activations else activations.max())
    compute_s, data_s = np.where(usable, problem.compute_s, 0.0), np.where(usable, problem.data_s, 0.0)
    return ProblemTables(
        usable=usable,
        layers=LayerSums(
            compute_s=compute_s,
            data_s=data_s,
            sync_s=problem.sync_s if np.any(problem.sync_s > 0) else None,
            shared_s=problem.shared_s,
            serial_compute_s=_serial_s(compute_s, problem.layer_compute_parallel),
            serial_data_s=_serial_s(data_s, problem.layer_data_parallel),
            rules=problem.rules,
        ),
        sent_by=problem.edge_producer[read],
        sent_until=problem.edge_readers[problem.edge_starts[1:][read] - 1],
        sent_bytes=problem.edge_bytes[read],
        read_by=problem.edge_readers,
        read_after=read_after,
        read_bytes=np.repeat(problem.edge_bytes, counts),
        memory_binds=bool(np.any(problem.memory_bytes < held)),
    )


def _serial_s(times_s: Floats, fractions: Floats | None) -> Floats | None:
    """Return [L, T], what no replicas divide; None where layers have the fractions of their types."""
    return None if fractions is None else times_s * (1 - fractions)


def crossing_bytes(problem: Problem) -> Floats:
    """Return [L + 1], bytes made before a position and read after it: what a cut there sends; 0 at both ends."""
    tables = problem_tables(problem)
    change = np.zeros((problem.layer_count + 1, 2))
    of_values: Floats = np.stack([tables.sent_bytes, (tables.sent_bytes > 0).astype(np.float64)], axis=1)
    np.add.at(change, tables.sent_by + 1, of_values)
    np.add.at(change, tables.sent_until + 1, -of_values)
    size_bytes, values = np.cumsum(change, axis=0).T
    return np.where(values > 0, size_bytes, 0.0)  # sums of what is no longer there leave rounding


@dataclass(frozen=True, slots=True, eq=False)
class FlatStages:
    """The stages of B placements, one placement after the other.

    Attributes:
        placement: [N], which of the B placements.
        offsets: [B], index of the first stage of every placement.
        first, end: [N], layers first .. end - 1.
        type: [N].
        work: [N], computation, data movement and synchronisation of a batch on one unit.
        received_bytes, sent_bytes: [N].
        memory_bytes: [N], of one replica; zeros where nobody asked and no type is too small.
        forbidden: [N], layers of the stage that its type may not run.
    """

    placement: Ints
    offsets: Ints
    first: Ints
    end: Ints
    type: Ints
    work: StageWork
    received_bytes: Floats
    sent_bytes: Floats
    memory_bytes: Floats
    forbidden: Ints

    def of(self, chosen: Bools) -> "FlatStages":
        """Return the stages of some of the placements, which are numbered anew."""
        kept = chosen[self.placement]
        placement = (np.cumsum(chosen) - 1)[self.placement[kept]]
        return FlatStages(
            placement=placement,
            offsets=np.searchsorted(placement, np.arange(np.count_nonzero(chosen))),
            first=self.first[kept],
            end=self.end[kept],
            type=self.type[kept],
            work=self.work.take(kept),
            received_bytes=self.received_bytes[kept],
            sent_bytes=self.sent_bytes[kept],
            memory_bytes=self.memory_bytes[kept],
            forbidden=self.forbidden[kept],
        )


def flatten_stages(problem: Problem, types: Ints, cuts: Bools | None, *, memory: bool = False) -> FlatStages:
    """Cut placements into stages; O(B * (L + readers)), without a loop over placements.

    Args:
        problem: The problem.
        types: [B, L].
        cuts: [B, L], True at p where a stage begins at layer p in any case.
        memory: Fill in memory even where it cannot bind.
    """
    tables = problem_tables(problem)
    batch, layers = types.shape
    begins = np.ones((batch, layers), np.bool_)
    np.not_equal(types[:, 1:], types[:, :-1], out=begins[:, 1:])
    if cuts is not None:
        begins[:, 1:] |= cuts[:, 1:]
    starts = np.flatnonzero(begins)
    stage_of = (np.cumsum(begins) - 1).reshape(batch, layers)
    count = len(starts)
    placement, first = np.divmod(starts, layers)
    end = np.append(starts[1:], batch * layers) - placement * layers
    chosen = types.ravel()[starts]
    cell = types + np.arange(layers) * problem.type_count

    def total(table: Floats | Bools | Ints) -> Floats:
        return np.asarray(np.add.reduceat(np.take(table, cell).ravel(), starts), np.float64)

    enters = stage_of[:, tables.read_by]
    comes_in = enters != stage_of[:, tables.read_after]
    received = np.bincount(enters.ravel(), (comes_in * tables.read_bytes).ravel(), count)
    leaves = stage_of[:, tables.sent_by]
    goes_out = leaves != stage_of[:, tables.sent_until]
    sent = np.bincount(leaves.ravel(), (goes_out * tables.sent_bytes).ravel(), count)
    links = link_traffic(problem)
    if links is None:
        talks = (received > 0).astype(np.float64) + (sent > 0)
        traffic_s = (received + sent) * problem.seconds_per_byte[chosen] + talks * problem.latency_s[chosen]
    else:
        traffic_s = links.seconds(placement, first, end, chosen)
    return FlatStages(
        placement=placement,
        offsets=np.searchsorted(placement, np.arange(batch)),
        first=first,
        end=end,
        type=chosen,
        work=tables.layers.map(total).with_traffic(problem, chosen, traffic_s).work(problem, chosen),
        received_bytes=np.asarray(received, np.float64),
        sent_bytes=np.asarray(sent, np.float64),
        memory_bytes=_memory(problem, stage_of, starts) if memory or tables.memory_binds else np.zeros(count),
        forbidden=np.add.reduceat(np.take(~tables.usable, cell).ravel(), starts, dtype=np.int64),
    )


def _memory(problem: Problem, stage_of: Ints, starts: Ints) -> Floats:
    batch = len(stage_of)
    weights = np.add.reduceat(np.tile(problem.weight_bytes, batch), starts)
    together = stage_of[:, problem.tied_first] == stage_of[:, problem.tied_second]
    saved = np.bincount(stage_of[:, problem.tied_first].ravel(), (together * problem.tied_bytes).ravel(), len(starts))
    gather = np.add.reduceat if problem.keeps_activations else np.maximum.reduceat
    activations = gather(np.tile(problem.activation_bytes, batch), starts)
    return np.asarray(weights - saved + activations, np.float64)
