"""One server's shard of a table that grows, with the rows of a checkpoint where a run goes on.

Left out: what it does with them (``growing_shard.py``), the files (``saved_tables.py``).
"""

import math

import numpy as np

from .growing_shard import GrowingShard, Initial
from .saved_tables import Saved, check_shard, open_shard, refuse_not_grown, refuse_other_optimizer, stage_rows
from .shard import CHUNK_ROWS
from .spec import ServerSpec, TableSpec
from .tiered_cache import Floats


def make_growing(table: TableSpec, index: int, spec: ServerSpec, saved: Saved | None) -> GrowingShard:
    """Make one server's shard of a table that grows, without rows or with those of a checkpoint.

    Raises:
        RunError: where the checkpoint's do not fit.
    """
    assert table.growth is not None  # noqa: S101 - a caller's mistake
    mine: list[Floats] = []
    total = squares = 0.0
    for first, rows in stage_rows(table, table.weights, table.name):
        mine.append(rows[(index - first) % spec.count :: spec.count])
        total += float(rows.sum(dtype=np.float64))
        squares += float(np.square(rows, dtype=np.float64).sum())
    numbers = max(table.rows * table.width, 1)
    mean = total / numbers
    deviation = math.sqrt(max(squares / numbers - mean * mean, 0.0))
    initial = Initial(np.concatenate(mine), index, spec.count, mean, deviation, table.growth.seed)
    shard = GrowingShard(table, spec.optimizer, initial)
    old = None if saved is None else next((entry for entry in saved.tables if entry.name == table.name), None)
    if saved is None and table.states == () and table.updates == 0:
        return shard
    if saved is None or old is None or old.grown is None or spec.weights_only:
        refuse_not_grown(table.name)
    refuse_other_optimizer(saved, spec.optimizer)
    shard.updates = old.updates
    for number in range(len(old.files)):
        check_shard(saved, old, number)
        part = open_shard(saved, old, number)
        for first in range(0, len(part), CHUNK_ROWS):
            shard.fill(np.array(part[first : first + CHUNK_ROWS]))
    return shard
