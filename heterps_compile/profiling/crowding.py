"""Measure how much longer a model takes while the other cores are busy with it too than while they idle.

Cores share a memory, the last of their caches and often a clock, so that processes slow each other down though each has
a core of its own. Layers are profiled while other cores idle, and the ranks of a run are busy at once. One process
runs the model in rounds, by turns alone and beside as many others as there are cores; the factor is the median of the
rounds beside them over those alone next to them::

    measured | alone |     | beside |     | alone |     | beside |
    others   |       |     | ------ - |   |       |     | ------ - |

Left out: neighbours that run something else, as other stages of the model do; more processes than cores, which take
turns (``schedule/shared_cores.py``); which layers suffer most.
"""

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from heterps_compile.backends.contract import Backend
from heterps_compile.cost.profile import Crowding
from heterps_compile.ir.graph import Graph

from .clock import timing
from .measuring_processes import NotMeasured, hear, started, tell
from .replicas import Replicas, write_task

_ROUNDS, _ROUND_S = 7, 0.3
_LIMIT_S, _LIMIT_PASSES = 240.0, 100
_LONGER = 1.5  # the others work until the one that is measured is done
_NOT_MEASURED = NotMeasured("busy neighbours", "--no-replicas")


@dataclass(frozen=True, slots=True)
class Crowd:
    """What runs at once.

    Attributes:
        processes: As many as have a core of their own.
        clock: That times them, a name of :data:`~.clock.CLOCKS`.
        model_s: What the model takes about, so that nobody waits for ever.
    """

    processes: int
    clock: str
    model_s: float


def measure_crowding(
    read: Callable[[int | None], Graph], backend: Backend, batch: int, asked: Replicas, crowd: Crowd
) -> Crowding | None:
    """Measure how much busy cores slow each other down; None where there is one.

    Args:
        read: Gives the graph at a batch.
        backend: What runs it.
        batch: Samples, of every process.
        asked: What is run.
        crowd: By how many at once.

    Raises:
        RunError: where a process fails.
    """
    if crowd.processes < 2:
        return None
    with tempfile.TemporaryDirectory(prefix="heterps-crowding-") as name:
        write_task(Path(name), read, backend, (batch, (1,)), (), asked=asked)
        module = ["heterps_compile.profiling.crowd_process", name, crowd.clock]
        limit_s = _LIMIT_S + _LIMIT_PASSES * crowd.model_s
        with started(module, crowd.processes, asked.threads, limit_s, _NOT_MEASURED) as (measured, *others):
            alone_s, beside_s = [], []
            for _ in range(_ROUNDS):
                tell(measured, f"{_ROUND_S} 1")
                alone_s.append(float(json.loads(hear(measured))))
                for other in others:
                    tell(other, f"{_LONGER * _ROUND_S} 2")
                tell(measured, f"{_ROUND_S} 1")
                beside_s.append(float(json.loads(hear(measured))))
                for other in others:
                    json.loads(hear(other))
    return crowding_of(alone_s, beside_s, len(others), batch)


def crowding_of(alone_s: Sequence[float], beside_s: Sequence[float], others: int, batch: int) -> Crowding | None:
    """Return the factor of rounds that followed each other; None where the clock saw nothing.

    Args:
        alone_s: Of every round.
        beside_s: Of the round after it.
        others: Processes that were busy then.
        batch: Samples.
    """
    if min(alone_s) <= 0:
        return None
    found = timing([beside / alone for alone, beside in zip(alone_s, beside_s, strict=True)])
    return Crowding(found.median_s, found.spread_s, others, batch)
