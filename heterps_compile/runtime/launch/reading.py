"""A rank's micro-batches out of the data: which samples, which columns, read ahead.

Step s has samples ``s * batch`` to ``(s + 1) * batch - 1``; micro-batch m of size b the b samples from ``m * b`` on
among them. It depends on nothing else, so that a run that goes on elsewhere finds its place.

Left out: the sources (``data/``).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from heterps_compile.errors import InputError, RunError
from heterps_compile.escape import printable
from heterps_compile.runtime.data.model_inputs import Wanted, fit, require_columns
from heterps_compile.runtime.data.prefetch import Prefetcher, Request
from heterps_compile.runtime.data.sample_source import Columns, Source
from heterps_compile.runtime.pipeline.layout import Layout
from heterps_compile.schedule.order import Phase

from .faults import innermost, is_of_data
from .progress import READING, ProgressRecorder
from .training import in_function

if TYPE_CHECKING:
    from torch import Tensor

Prepare = Callable[[Mapping[str, "Tensor"]], Mapping[str, "Tensor"]]
ALL = "*"
_AHEAD = 4
_OF_IDS = (torch.int64, torch.int32)


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
        wanted: Sequence[str],
        progress: ProgressRecorder,
        inputs: Mapping[str, Wanted] | None = None,
        prepare: "Prepare | None" = None,
        device: "torch.device | None" = None,
    ) -> None:
        """Begin to read.

        Args:
            source: Of samples.
            layout: Says which micro-batches are this rank's.
            rank: This one.
            steps: That will be run.
            wanted: Graph inputs this rank reads; ``"*"`` among them for every column.
            progress: Is told while the rank waits for data.
            inputs: What the model takes, by name; None where nobody knows.
            prepare: Makes inputs and targets out of raw columns.
            device: Where tensors are put.

        Raises:
            InputError: where the source lacks a column.
        """
        self._layout = layout
        self._progress = progress
        self._prepare = prepare
        self._device = device
        needs_all = prepare is not None or ALL in wanted
        names = [name for name in wanted if name != ALL]
        if prepare is None:
            require_columns(source, names, "the data")
        self._inputs = {name: Wanted() if inputs is None else inputs.get(name, Wanted()) for name in names}
        self.columns = tuple(source.columns) if needs_all else tuple(names)
        actions = (action for action in layout.actions(rank) if action.phase is Phase.FORWARD)
        mine = tuple(dict.fromkeys(action.micro_batch for action in actions))
        depth = min(max(_AHEAD, len(mine)), 2 * _AHEAD)
        self._last: Mapping[str, Tensor] = {}
        self._reader = Prefetcher(source, self._requests(steps, mine), depth=depth)

    def of_step(self, step: int) -> "Callable[[int, Sequence[str]], Mapping[str, Tensor]]":
        """Return what the engine calls for the micro-batches of a step."""

        def read(micro_batch: int, names: Sequence[str]) -> "Mapping[str, Tensor]":
            size = self._layout.micro_batch_size
            with self._progress.during(READING):
                found: Mapping[str, Tensor] = self._reader.read(self._first(step, micro_batch), size, self.columns)
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

    def _only(self, names: Sequence[str]) -> dict[str, Wanted]:
        return {name: self._inputs.get(name, Wanted()) for name in names}

    def _first(self, step: int, micro_batch: int) -> int:
        return step * self._layout.batch + micro_batch * self._layout.micro_batch_size

    def _requests(self, steps: range, mine: Sequence[int]) -> Iterator[Request]:
        for step in steps:
            for micro_batch in mine:
                yield Request(self._first(step, micro_batch), self._layout.micro_batch_size, self.columns)


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
