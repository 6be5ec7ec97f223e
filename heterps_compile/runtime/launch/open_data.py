"""The data of a run, opened by every rank that reads some, and what they are told apart by.

Left out: which samples a rank reads (``reading.py``), the sources (``data/``).
"""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from heterps_compile.errors import RunError
from heterps_compile.runtime.data.epochs import Epochs
from heterps_compile.runtime.data.identity import Identity, difference, identity_from_json, identity_of
from heterps_compile.runtime.data.iterable import IterableSource
from heterps_compile.runtime.data.model_inputs import Wanted, fit, require_columns, wanted_by_plan
from heterps_compile.runtime.data.open_source import is_random, open_source
from heterps_compile.runtime.data.sample_source import Source

from .options import GIVEN, RunOptions
from .prepare import Prepared
from .task import Joined, Task
from .training import Training, in_function
from .training_syntax import may_define, two_sources

if TYPE_CHECKING:
    from heterps_compile.runtime.c10d import Store

_DATA_KEY = "data"


def open_data(joined: Joined, task: Task, training: Training | None) -> tuple[Source, Identity]:
    """Open the data of a run; what ends is repeated.

    Raises:
        HeterpsError: where there are none, or they cannot be read.
    """
    source = _open(joined, task, training)
    identity = identity_of(source, name_of_data(task.options, task.source))
    return (source if source.samples is None else Epochs(source)), identity


def try_data(options: RunOptions, prepared: Prepared, index_folder: Path) -> None:
    """Read the first sample of a run's files before any process has started, as its ranks will.

    Args:
        options: Of the run.
        prepared: The run.
        index_folder: Where indices of text files are kept for the ranks.

    Raises:
        HeterpsError: where there is none, or it is not what the model takes.
    """
    if not options.data or is_random(options.data):
        return
    wanted = wanted_by_plan(prepared.plan, prepared.folder)
    source = open_source(options.data, wanted=wanted, seed=options.seed, index_folder=index_folder)
    if options.train is not None and may_define(options.train, "prepare"):
        source.read(0, 1, source.columns)  # what prepare() makes of it, nobody knows
        return
    taken = {name for stage in prepared.plan.stages for name in stage.inputs}
    names = [name for name in prepared.plan.graph_inputs if name in taken]
    require_columns(source, names, "the data")
    fit(source.read(0, 1, names), {name: wanted.get(name, Wanted()) for name in names})


def name_of_data(options: RunOptions, given: Source | None = None) -> str:
    """Return what people know the data by, without the folders they lie in."""
    if given is not None:
        return type(given).__name__
    if options.data:
        path, mark, how = options.data.partition("?")
        return options.data if is_random(options.data) else os.path.basename(path.rstrip("/")) + mark + how
    return (
        "data()" if options.train is None or options.train == GIVEN else f"data() of {os.path.basename(options.train)}"
    )


def say_data(store: "Store", identity: Identity) -> None:
    """Tell all ranks what rank 0 reads."""
    store.set(_DATA_KEY, json.dumps(asdict(identity)))


def check_same_data(store: "Store", rank: int, identity: Identity) -> None:
    """Check that a rank reads what rank 0 reads.

    Raises:
        RunError: where it does not, with what differs.
    """
    first = identity_from_json(json.loads(store.get(_DATA_KEY)))
    differ = difference(first, identity)
    if differ is not None:
        raise RunError(
            f"ranks read other data: rank 0 {differ[0]}, rank {rank} {differ[1]}; give all the same, in "
            f"the same order (seed what shuffles them)"
        )


def _open(joined: Joined, task: Task, training: Training | None) -> Source:
    if training is not None and training.data is not None and (task.source is not None or task.options.data):
        raise RunError(two_sources("the training file", name_of_data(task.options, task.source)))
    if task.source is not None:
        return task.source
    if task.options.data:
        prepared = joined.prepared
        index_folder = task.telemetry  # of this run alone, and gone with it
        wanted = wanted_by_plan(prepared.plan, prepared.folder)
        return open_source(task.options.data, wanted=wanted, seed=task.options.seed, index_folder=index_folder)
    if training is not None and training.data is not None:
        with in_function("data", training.data):
            items = training.data()
        return IterableSource(items, is_batched=True)
    raise RunError("there are no data: name some (--data FILE), or define data() in the training file")
