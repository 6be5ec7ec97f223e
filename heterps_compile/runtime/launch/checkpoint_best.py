"""Which checkpoint of a folder is the best, as the checkpoints themselves say.

Each has the metrics of its own validation and how many validations there had been; nothing else says which is the best.

Left out: what is kept (``checkpoint_folder.py``).
"""

from collections.abc import Iterator
from pathlib import Path

from heterps_compile.errors import RunError, UnknownNameError
from heterps_compile.runtime.data.identity import Identity, difference
from heterps_compile.runtime.validation.best import BEFORE_ANY, Best, BestMetric, Standing, parse_best

from .checkpoint_folder import find_checkpoints
from .checkpoint_format import read_state
from .checkpoint_state import RunState


def find_best(directory: Path, metric: BestMetric | None = None) -> Path | None:
    """Return the best checkpoint of a folder; None where none of them was validated by the metric.

    Args:
        directory: Of the checkpoints.
        metric: That says which is the best; None for that of the run that wrote the last one (``--keep-best``).

    Raises:
        RunError: where one of them is damaged.
    """
    states = list(_states(directory))
    if metric is None:
        said = next((state.keep_best for _, state in reversed(states) if state.keep_best is not None), None)
        metric = None if said is None else parse_best(said)
    standing = BEFORE_ANY
    found = None
    for checkpoint, state in states:
        before = standing
        standing = _after(standing, metric, state)
        found = checkpoint if standing.best != before.best else found
    return found


def standing_at(start: Path | None, metric: BestMetric | None) -> Standing:
    """Return where a run stands among its validations that goes on from a checkpoint; None starts at the beginning.

    Raises:
        RunError: where a checkpoint beside it is damaged.
    """
    if start is None:
        return BEFORE_ANY
    standing, last = BEFORE_ANY, read_state(start)
    for _, state in _states(start.parent):
        if state.step <= last.step:
            standing = _after(standing, metric, state)
    return Standing(last.validations, standing.best)


def check_judged_alike(start: Path, metric: BestMetric, data: Identity) -> None:
    """Check that a run that goes on from a checkpoint judges its validations as those before were judged.

    Args:
        start: The checkpoint.
        metric: That says which validation is the best.
        data: To validate on.

    Raises:
        RunError: where the validations before were of other data, or had no such metric.
    """
    state = read_state(start)
    differ = None if state.validation_data is None else difference(state.validation_data, data)
    if differ is not None:
        raise RunError(
            f"{start.name} was validated on other data ({differ[0]}) than this run validates on ({differ[1]}), so that "
            f"nobody could say which is the best; go on with the same, or without --keep-best"
        )
    known = [one.metrics for _, one in _states(start.parent) if one.metrics is not None]
    if known and not any(metric.name in metrics for metrics in known):
        raise UnknownNameError(
            f"metric of --keep-best in the checkpoints of {str(start.parent)!r}", metric.name, known[-1]
        )


def _states(directory: Path) -> Iterator[tuple[Path, RunState]]:
    for checkpoint in find_checkpoints(directory):
        yield checkpoint, read_state(checkpoint)


def _after(standing: Standing, metric: BestMetric | None, state: RunState) -> Standing:
    """Return a standing that has the validation of one more checkpoint among its own."""
    if metric is None or state.metrics is None or metric.name not in state.metrics:
        return standing
    value = state.metrics[metric.name]
    is_better = standing.best is None or metric.is_better(value, standing.best.value)
    return Standing(state.validations, Best(state.step, value, state.validations)) if is_better else standing
