"""The steps that a run takes, and the checkpoint that it begins with: rank 0 decides, and all ranks hear it.

Left out: the loop over steps (``loop.py``).
"""

import re
import sys
from pathlib import Path

from heterps_compile.errors import RunError
from heterps_compile.runtime.checkpoint.folder import STEP_PATTERN
from heterps_compile.runtime.checkpoint.format import Checkpoint, open_checkpoint
from heterps_compile.runtime.checkpoint.start import check_weights, find_start, start_notes
from heterps_compile.runtime.data.epochs import Epochs
from heterps_compile.runtime.data.identity import Identity, with_contents
from heterps_compile.runtime.data.sample_source import Source

from .combinations import DATA, DataFacts, refuse_combinations
from .outputs import make_output_folder
from .prepare import count_steps
from .rank_context import STEPS_KEY, RankContext
from .run_data import count_data, say_data
from .store_values import read_number, read_word
from .training_file import Training

_START_KEY = "start"
_FILLED_KEY = "filled"
_SAMPLES_KEY = "samples"
_CHECKPOINT_OR_NONE = re.compile(rf"({STEP_PATTERN})?")


def decide_steps(context: RankContext, source: Source, data: Identity, training: Training | None) -> Identity:
    """Find out which steps are to be run, and from which checkpoint, and tell all; rank 0 does this.

    Returns:
        What a checkpoint keeps of the data.
    """
    options, store = context.options, context.store
    if options.output is not None:
        make_output_folder(options.output)
    is_launched = context.spec.parent is not None  # the launcher has checked the files
    check_weights(options, context.prepared, files_too=not is_launched)
    if options.checkpoint is not None:
        data = with_contents(data, source)
    checkpoint = find_start(context.prepared, options, data, files_too=not is_launched)
    for note in () if is_launched or options.quiet else start_notes(options, context.prepared, checkpoint):
        print(f"  {note}", file=sys.stderr, flush=True)
    say_data(store, data)
    samples, batch = _samples(source) or count_data(context, training), context.layout.batch
    refuse_combinations(DATA, DataFacts(context.prepared.sync, context.layout, samples))
    steps = count_steps(samples, options, batch)
    filled = 0 if samples is None or options.steps is not None else max(0, steps * batch - samples * options.epochs)
    store.set(_FILLED_KEY, str(filled))
    store.set(_START_KEY, "" if checkpoint is None else checkpoint.path.name)
    store.set(STEPS_KEY, str(steps))
    store.set(_SAMPLES_KEY, str(samples or 0))
    return data


def steps_to_run(context: RankContext) -> tuple[Checkpoint | None, range]:
    """Wait for what rank 0 decides: the checkpoint to go on from, and the steps to run.

    Raises:
        RunError: where this rank cannot see the checkpoint.
    """
    options = context.options
    name = read_word(context.store, _START_KEY, _CHECKPOINT_OR_NONE, "the name of a checkpoint")
    last = read_number(context.store, STEPS_KEY, "the count of steps")
    if not name or options.checkpoint is None:
        return None, range(last)
    path = Path(options.checkpoint) / name
    if not path.is_dir():
        raise RunError(
            f"{str(path)!r}, which rank 0 goes on from, is not there for rank {context.rank}: the folder "
            f"of checkpoints must be one that all machines share"
        )
    checkpoint = open_checkpoint(path)
    first = checkpoint.state.step
    return checkpoint, range(first, max(first, last))


def filled_samples(context: RankContext) -> int:
    """Return how many samples of the last step only fill it up, and were read before."""
    return read_number(context.store, _FILLED_KEY, "a count of samples")


def samples_of_epoch(context: RankContext) -> int | None:
    """Return how many samples the data have; None for data without an end."""
    return read_number(context.store, _SAMPLES_KEY, "a count of samples") or None


def _samples(source: Source) -> int | None:
    """Return how many samples there are, also where they are repeated."""
    return source.source.samples if isinstance(source, Epochs) else source.samples
