"""Which checkpoint of a folder is the best, as the checkpoints themselves say.

Each has the metrics of its own validation and how many validations there had been; nothing else says which is the best.

Left out: what is kept (``folder.py``).
"""

from collections.abc import Iterator
from pathlib import Path

from heterps_compile.errors import RunError, UnknownNameError
from heterps_compile.escape import printable
from heterps_compile.runtime.data.identity import Identity, difference
from heterps_compile.runtime.validation.best import BEFORE_ANY, BestMetric, Standing, parse_best

from .folder import STATE_NAME, find_checkpoints
from .format import Checkpoint, open_checkpoint
from .state import RunState


def find_checkpoint(where: Path, *, best: bool = False) -> Path:
    """Return the checkpoint that a folder is, or the last or the best of those it holds.

    Raises:
        RunError: where it holds none, or the best is not known.
    """
    shown = repr(printable(str(where)))
    if (where / STATE_NAME).is_file():
        if best:
            raise RunError(f"{shown} is one checkpoint; --best chooses among those of a folder")
        return where
    found = find_checkpoints(where)
    if not found:
        fault = "holds no finished checkpoint" if where.is_dir() else "is no folder"
        raise RunError(f"{shown} {fault}; name the folder of --checkpoint, or a step-N in it")
    if not best:
        return found[-1]
    chosen = find_best(where)
    if chosen is None:
        raise RunError(
            f"no checkpoint of {shown} says which is the best: train with --validate and --keep-best METRIC, or leave "
            f"--best out"
        )
    return chosen


def find_best(directory: Path, metric: BestMetric | None = None) -> Path | None:
    """Return the best checkpoint of a folder; None where none of them was validated by the metric.

    Args:
        directory: Of the checkpoints.
        metric: That says which is the best; None for that of the run that wrote the last one (``--keep-best``).

    Raises:
        RunError: where one of them is damaged.
    """
    found = [open_checkpoint(path) for path in find_checkpoints(directory)]
    if metric is None:
        said = next((one.state.keep_best for one in reversed(found) if one.state.keep_best is not None), None)
        metric = None if said is None else parse_best(said)
    standing, best = BEFORE_ANY, None
    for checkpoint in found:
        before, standing = standing, _after(standing, metric, checkpoint.state)
        best = checkpoint.path if standing.best != before.best else best
    return best


def standing_at(start: Checkpoint | None, metric: BestMetric | None) -> Standing:
    """Return where a run stands among its validations that goes on from a checkpoint; None starts at the beginning.

    Raises:
        RunError: where a checkpoint beside it is damaged.
    """
    if start is None:
        return BEFORE_ANY
    standing = BEFORE_ANY
    for state in _states(start.path.parent):
        if state.step <= start.state.step:
            standing = _after(standing, metric, state)
    return Standing(start.state.validations, standing.best)


def check_judged_alike(start: Checkpoint, metric: BestMetric, data: Identity) -> None:
    """Check that a run that goes on from a checkpoint judges its validations as those before were judged.

    Args:
        start: The checkpoint.
        metric: That says which validation is the best.
        data: To validate on.

    Raises:
        RunError: where the validations before were of other data, or had no such metric.
    """
    before = start.state.validation_data
    differ = None if before is None else difference(before, data)
    if differ is not None:
        raise RunError(
            f"{start.name} was validated on other data ({differ[0]}) than this run validates on ({differ[1]}), so that "
            f"nobody could say which is the best; go on with the same, or without --keep-best"
        )
    known = [one.metrics for one in _states(start.path.parent) if one.metrics is not None]
    if known and not any(metric.name in metrics for metrics in known):
        raise UnknownNameError(
            f"metric of --keep-best in the checkpoints of {str(start.path.parent)!r}", metric.name, known[-1]
        )


def _states(directory: Path) -> Iterator[RunState]:
    return (open_checkpoint(path).state for path in find_checkpoints(directory))


def _after(standing: Standing, metric: BestMetric | None, state: RunState) -> Standing:
    """Return a standing that has the validation of one more checkpoint among its own."""
    if metric is None or metric.name not in (state.metrics or {}):
        return standing
    return Standing(state.validations - 1, standing.best).after(metric, state.step, state.metrics or {})
