"""Metrics over all samples of a validation, computed by one process in the data's order.

``metrics(outputs, batch)`` gives a value for every name::

    number, tensor of one element        mean over the batch -> mean over all samples, batches weighted by theirs
    object with update, compute, reset   updated by the function itself -> compute() at the end, reset() before

The values are the same to the last bit whatever ranks the samples were computed on: they come in one order, batch by
batch. The loss is one of them, the mean over the samples.

Objects of torchmetrics would wait for the other ranks of the run, so they are asked where they find none.

Left out: where outputs come from (``launch/validation_pass.py``).
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from heterps_compile.errors import RunError
from heterps_compile.escape import printable, shorten
from heterps_compile.runtime.c10d import as_one_process

from .best import LOSS
from .result import METRIC_NAME

MetricsFunction = Callable[[Any, Mapping[str, Any]], Any]

_OF_OBJECTS = ("update", "compute", "reset")
_SHOWN = 60


class MetricsOfSamples:
    """The metrics of one validation after the other.

    Attributes:
        names: That there are, ``loss`` first; empty before the first batch.
    """

    def __init__(self, loss: MetricsFunction, metrics: MetricsFunction | None) -> None:
        """Take the functions of the training file.

        Args:
            loss: Gives the mean over a batch.
            metrics: Gives a dict of metrics; None where there is none but the loss.
        """
        self._loss, self._metrics = loss, metrics
        self.names: tuple[str, ...] = ()
        self._objects: dict[str, Any] = {}
        self._sums: dict[str, float] = {}
        self._samples = 0

    def begin(self) -> None:
        """Begin a validation: objects that are known forget what they have seen."""
        self._sums, self._samples = {}, 0
        with as_one_process():
            for metric in self._objects.values():
                metric.reset()

    def add(self, outputs: Any, batch: Mapping[str, Any], samples: int) -> None:
        """Take in a batch.

        Args:
            outputs: What the model returns for it.
            batch: Its columns.
            samples: In it.

        Raises:
            RunError: where a value is no metric, is not finite, or there are other names than before.
        """
        with as_one_process():
            found = {LOSS: self._loss(outputs, batch)}
            if self._metrics is not None:
                found |= _checked_names(self._metrics(outputs, batch))
        names = tuple(found)
        if self.names and set(names) != set(self.names):
            raise RunError(
                f"metrics() of the training file gives {_listed(names[1:])} here and gave {_listed(self.names[1:])} "
                f"before; give the same names for every batch"
            )
        self.names = self.names or names
        for name, value in found.items():
            if _is_object(value):
                self._keep(name, value)
            else:
                if name in self._objects:
                    raise RunError(f"the metric {name!r} is a number here and was an object before; give it one kind")
                mean = _number(name, value, "metrics() of the training file gives")
                self._sums[name] = self._sums.get(name, 0.0) + mean * samples
        self._samples += samples

    def compute(self) -> dict[str, float]:
        """Return the metrics over all samples that were taken in.

        Raises:
            RunError: where an object gives no finite number.
        """
        found: dict[str, float] = {}
        with as_one_process():
            for name in self.names:
                if name in self._objects:
                    found[name] = _number(name, self._objects[name].compute(), f"{printable(name)}.compute() gives")
                else:
                    found[name] = self._sums[name] / self._samples
        return found

    def _keep(self, name: str, metric: Any) -> None:
        known = self._objects.setdefault(name, metric)
        if name in self._sums:
            raise RunError(f"the metric {name!r} is an object here and was a number before; give it one kind")
        if known is not metric:
            raise RunError(
                f"metrics() of the training file gives a new object as {name!r} for every batch, which has seen that "
                f"batch alone; make it once, beside the function, and update it there"
            )


def _checked_names(found: Any) -> dict[str, Any]:
    if not isinstance(found, Mapping):
        raise RunError(f"metrics() of the training file gave a {type(found).__name__}; it must give a dict of metrics")
    for name in found:
        if not isinstance(name, str) or not METRIC_NAME.fullmatch(name):
            raise RunError(
                f"metrics() of the training file names a metric {printable(shorten(repr(name), _SHOWN))}; a name has "
                f"up to 64 letters, digits, spaces and _.@+/- and begins with a letter"
            )
        if name == LOSS:
            raise RunError(
                f"metrics() of the training file has a metric {LOSS!r}, which is what loss() gives over the validation "
                f"data; call it otherwise"
            )
    return dict(found)


def _is_object(value: Any) -> bool:
    return all(callable(getattr(value, name, None)) for name in _OF_OBJECTS)


def _number(name: str, value: Any, who: str) -> float:
    """Return a metric as a number.

    Raises:
        RunError: where it is none, or not finite.
    """
    shape = getattr(value, "shape", ())
    if isinstance(value, str | bytes) or math.prod(shape) != 1:
        shown = f"a {type(value).__name__}" + (f" of shape {list(shape)}" if len(shape) else "")
        raise RunError(f"{who} {shown} as the metric {name!r}; it must be one number, the mean over the samples")
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise RunError(
            f"{who} a {type(value).__name__} as the metric {name!r}; it must be a number, a tensor of one element, or "
            f"an object with update(), compute() and reset()"
        ) from error
    if not math.isfinite(number):
        raise RunError(f"the metric {name!r} is {number}; look at the validation data, or at how it is computed")
    return number


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names)) or "none"
