"""The data of a run: opened by every rank that reads some, told apart, and read ahead as micro-batches.

Step s has samples ``s * batch`` to ``(s + 1) * batch - 1``; micro-batch m of size b the b samples from ``m * b`` on
among them. It depends on nothing else, so that a run that goes on elsewhere finds its place.

Left out: the sources (``data/``).
"""

import json
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from inspect import isgeneratorfunction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from heterps_compile.errors import InputError, RunError
from heterps_compile.escape import printable
from heterps_compile.plan.plan import Plan
from heterps_compile.runtime.data.epochs import Epochs
from heterps_compile.runtime.data.identity import Identity, difference, identity_of, name_with_rows
from heterps_compile.runtime.data.iterable import IterableSource
from heterps_compile.runtime.data.model_inputs import InputSpec, fit, inputs_of_plan, require_columns
from heterps_compile.runtime.data.open_source import is_random, open_source
from heterps_compile.runtime.data.prefetch import Prefetcher, Request
from heterps_compile.runtime.data.sample_source import Columns, Source
from heterps_compile.runtime.pipeline.layout import Layout
from heterps_compile.schedule.order import Phase
from heterps_compile.strict_json import received

from .combinations import DATA, DataFacts, refuse_combinations
from .faults import innermost, is_of_data
from .prepare import Prepared
from .progress import READING, ProgressRecorder
from .rank_context import RankContext
from .run_options import ALL_SAMPLES, GIVEN, RunOptions
from .training_file import Training, called_in, in_function, may_define

if TYPE_CHECKING:
    from torch import Tensor

    from heterps_compile.runtime.c10d import Store


Prepare = Callable[[Mapping[str, "Tensor"]], Mapping[str, "Tensor"]]
ALL = "*"
_AHEAD = 4
_OF_IDS = (torch.int64, torch.int32)

_DATA_KEY = "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """What a rank takes of the data.

    Attributes:
        wanted: Graph inputs it reads; ``"*"`` among them for every column.
        inputs: What the model takes, by name; None where nobody knows.
        prepare: Makes inputs and targets out of raw columns.
        device: Where tensors are put.
        samples: That there are, where the last step is not full; None where every step is.
        first: The sample with which the first step begins.
    """

    wanted: Sequence[str]
    inputs: Mapping[str, InputSpec] | None = None
    prepare: "Prepare | None" = None
    device: "torch.device | None" = None
    samples: int | None = None
    first: int = 0


class MicroBatches:
    """Reads what a rank needs, ahead of its steps.

    Attributes:
        columns: Of the source that are read.
    """

    def __init__(
        self,
        source: Source,
        layout: Layout,
        rank: int,
        steps: range,
        *,
        feed: Feed,
        progress: ProgressRecorder,
    ) -> None:
        """Begin to read.

        Args:
            source: Of samples.
            layout: Says which micro-batches are this rank's.
            rank: This one.
            steps: That will be run.
            feed: What this rank takes of them.
            progress: Is told while the rank waits for data.

        Raises:
            InputError: where the source lacks a column.
        """
        self._layout = layout
        self._progress = progress
        self._prepare = feed.prepare
        self._device, self._samples, self._first = feed.device, feed.samples, feed.first
        needs_all = feed.prepare is not None or ALL in feed.wanted
        names = [name for name in feed.wanted if name != ALL]
        if feed.prepare is None:
            require_columns(source, names, "the data")
        inputs = feed.inputs or {}
        self._inputs = {name: inputs.get(name, InputSpec()) for name in names}
        self.columns = tuple(source.columns) if needs_all else tuple(names)
        actions = (action for action in layout.actions(rank) if action.phase is Phase.FORWARD)
        mine = tuple(dict.fromkeys(action.micro_batch for action in actions))
        depth = min(max(_AHEAD, len(mine)), 2 * _AHEAD)
        self._last: Mapping[str, Tensor] = {}
        self._reader = Prefetcher(source, self._requests(steps, mine), depth=depth)

    def of_step(self, step: int) -> "Callable[[int, Sequence[str]], Mapping[str, Tensor]]":
        """Return what the engine calls for the micro-batches of a step."""

        def read(micro_batch: int, names: Sequence[str]) -> "Mapping[str, Tensor]":
            first, size = self._range(step, micro_batch)
            with self._progress.during(READING):
                found: Mapping[str, Tensor] = self._reader.read(first, size, self.columns)
                if self._prepare is not None:
                    with in_function("prepare", self._prepare):
                        found = self._prepare(Columns(found))
                    _check_prepared(found, names, size)
                if ALL in names:
                    found = fit(found, self._inputs)
                else:
                    found = fit({name: found[name] for name in names if name in found}, self._only(names))
                self._last = found
                device = self._device
                return found if device is None else {name: value.to(device) for name, value in found.items()}

        return read

    def say_ids(self) -> str:
        """Tell the least and the largest of the whole numbers that were read last."""
        columns = {name: column for name, column in self._last.items() if column.dtype in _OF_IDS and column.numel()}
        ranges = (f"{name!r} from {int(c.min()):,} to {int(c.max()):,}" for name, c in sorted(columns.items()))
        return f"where the micro-batch has {', '.join(map(printable, ranges)) or 'no whole numbers'}"

    def close(self) -> None:
        """Stop reading."""
        self._reader.close()

    def _only(self, names: Sequence[str]) -> dict[str, InputSpec]:
        return {name: self._inputs.get(name, InputSpec()) for name in names}

    def _range(self, step: int, micro_batch: int) -> tuple[int, int]:
        """Return the first sample of a micro-batch, and how many it has."""
        size = self._layout.micro_batch_size
        first = step * self._layout.batch + micro_batch * size
        return self._first + first, size if self._samples is None else min(size, self._samples - first)

    def _requests(self, steps: range, mine: Sequence[int]) -> Iterator[Request]:
        for step in steps:
            for micro_batch in mine:
                first, size = self._range(step, micro_batch)
                if size > 0:
                    yield Request(first, size, self.columns)


@contextmanager
def telling_ids(reader: MicroBatches | None) -> Iterator[None]:
    """Add to the exception of an id that no table has which ids there were."""
    try:
        yield
    except RunError as error:  # the pipeline's word about where it was
        if reader is not None and is_of_data(cause := innermost(error)):
            cause.add_note(reader.say_ids())
        raise


def _check_prepared(found: object, names: Sequence[str], samples: int) -> None:
    """Check what ``prepare`` gave: columns, and of the graph's inputs as many samples as it was given.

    Raises:
        InputError: where it is something else.
    """
    from torch import Tensor  # noqa: PLC0415 - torch only in the processes of a run

    if not isinstance(found, Mapping):
        raise InputError(f"prepare() of the training file gave a {type(found).__name__}; it must give columns by name")
    for name, column in found.items():
        if not isinstance(column, Tensor):
            kind = type(column).__name__
            raise InputError(f"prepare() of the training file gave {printable(str(name))!r} as a {kind}; give tensors")
        if name in names and (not column.dim() or len(column) != samples):
            raise InputError(
                f"prepare() of the training file gave {printable(name)!r} of shape {list(column.shape)} for "
                f"{samples} samples; the first dimension must be these"
            )


def open_data(context: RankContext, training: Training | None) -> tuple[Source, Identity]:
    """Open the data of a run; what ends is repeated.

    Raises:
        HeterpsError: where there are none, or they cannot be read.
    """
    source = _open(context, training)
    name = name_with_rows(source, name_of_data(context.options, context.spec.source))
    window = context.options.shuffle
    if source.samples is not None:
        source = Epochs(source, seed=context.options.seed, window_samples=_samples_of(window, source.samples))
    elif window is not None:
        raise _unshufflable(name)
    return source, identity_of(source, name if window is None else f"{name} --shuffle {window}")


def count_data(context: RankContext, training: Training | None) -> int | None:
    """Count the samples of an epoch of data() by going through them; None if the number of steps is given.

    Random numbers are drawn afterwards as if they had not been counted.

    Raises:
        HeterpsError: where they cannot be read, or have no end.
    """
    if training is None or training.data is None or context.options.steps is not None:
        return None
    drawn, drawn_by_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=()):
        samples = _data_of(training).count()
    random.setstate(drawn)
    np.random.set_state(drawn_by_numpy)
    return samples


def _unshufflable(name: str) -> InputError:
    return InputError(
        f"--shuffle mixes data whose length is known, and that of {printable(name)} is not; use files, or shuffle in "
        f"data() by a seed"
    )


def _samples_of(window: int | str | None, samples: int) -> int | None:
    return samples if window == ALL_SAMPLES else None if window is None else int(window)


def try_data(options: RunOptions, prepared: Prepared) -> None:
    """Read the first sample of a run's files before any process has started, as its ranks will.

    Args:
        options: Of the run.
        prepared: The run.

    Raises:
        HeterpsError: where there is none, or it is not what the model takes.
    """
    if options.shuffle is not None and options.data and is_random(options.data):
        raise _unshufflable(options.data)
    if not options.data or is_random(options.data):
        return
    wanted = inputs_of_run(prepared.plan, prepared.folder, options)
    source = open_source(options.data, wanted=wanted, seed=options.seed)
    try_sample(source, prepared.plan, wanted, options.train)
    refuse_combinations(DATA, DataFacts(prepared.sync, prepared.layout, source.samples))


def inputs_of_run(
    plan: Plan, folder: Path, options: RunOptions, training: Training | None = None
) -> dict[str, InputSpec]:
    """Return what every input takes, for the columns of a run's data.

    A column is looked up in the table of the input of its name unless ``prepare`` makes inputs of columns, or tables
    grow with the ids that come.

    Args:
        plan: Of the run.
        folder: Where its stages were written.
        options: Of the run.
        training: What the training file has; None for a file that is not run here, or none.
    """
    wanted = inputs_of_plan(plan, folder)
    if training is not None:
        prepares = training.prepare is not None
    else:
        prepares = options.train == GIVEN or (options.train is not None and may_define(options.train, "prepare"))
    if prepares or options.servers.grow_tables:
        return {name: replace(spec, rows=None) for name, spec in wanted.items()}
    return wanted


def try_sample(source: Source, plan: Plan, wanted: Mapping[str, InputSpec], train: str | None) -> None:
    """Read the first sample of a source, as the ranks of a run will.

    Args:
        source: Of samples.
        plan: Of the run.
        wanted: What its inputs take, by name.
        train: The training file; None where there is none.

    Raises:
        HeterpsError: where there is none, or it is not what the model takes.
    """
    if train is not None and may_define(train, "prepare"):
        source.read(0, 1, source.columns)  # what prepare() makes of it, nobody knows
        return
    taken = {name for stage in plan.stages for name in stage.inputs}
    names = [name for name in plan.graph_inputs if name in taken]
    require_columns(source, names, "the data")
    fit(source.read(0, 1, names), {name: wanted.get(name, InputSpec()) for name in names})


def name_of_data(options: RunOptions, given: Source | None = None) -> str:
    """Return what people know the data by, without the folders they lie in."""
    if given is not None or options.data:
        return name_of_spec(options.data, given)
    return (
        "data()" if options.train is None or options.train == GIVEN else f"data() of {os.path.basename(options.train)}"
    )


def name_of_spec(spec: str | None, given: Source | None = None) -> str:
    """Return what people know data by that are named, or given as an object."""
    if given is not None or spec is None:
        return type(given).__name__
    path, mark, how = spec.partition("?")
    return spec if is_random(spec) else os.path.basename(path.rstrip("/")) + mark + how


def say_data(store: "Store", identity: Identity) -> None:
    """Tell all ranks what rank 0 reads."""
    store.set(_DATA_KEY, json.dumps(asdict(identity)))


def check_same_data(store: "Store", rank: int, identity: Identity) -> None:
    """Check that a rank reads what rank 0 reads.

    Raises:
        RunError: where it does not, with what differs.
    """
    first = received(Identity, store.get(_DATA_KEY), "what rank 0 says of the data")
    differ = difference(first, identity)
    if differ is not None:
        raise RunError(
            f"ranks read other data: rank 0 {differ[0]}, rank {rank} {differ[1]}; give all the same, in "
            f"the same order (seed what shuffles them)"
        )


def _open(context: RankContext, training: Training | None) -> Source:
    spec = context.spec
    if spec.source is not None:
        return spec.source
    if spec.options.data:
        prepared = context.prepared
        wanted = inputs_of_run(prepared.plan, prepared.folder, spec.options, training)
        return open_source(spec.options.data, wanted=wanted, seed=spec.options.seed)
    return _data_of(training)


def _data_of(training: Training | None) -> IterableSource:
    assert training is not None and training.data is not None  # noqa: S101, PT018 - missing data were refused
    make = called_in("data", training.data)
    return IterableSource(make(), is_batched=True, make_again=make if isgeneratorfunction(training.data) else None)
