"""Metrics over all samples of a validation, computed by one process in the data's order.

``metrics(outputs, batch)`` gives a value for every name::

    number, tensor of one element        mean over the batch -> mean over all samples, batches weighted by theirs
    tensor of one for each sample        where samples have weights, and instead of a number -> the weighted mean
    object with update, compute, reset   updated by the function itself -> compute() at the end, reset() before

The values are the same to the last bit whatever ranks the samples were computed on: they come in one order, batch by
batch. The loss is one of them, the mean over the samples, weighted where they have weights; losses by name are more.

Objects of torchmetrics would wait for the other ranks of the run, so they are asked where they find none.

Left out: where outputs come from (``forward_pass.py``).
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from heterps_compile.errors import RunError
from heterps_compile.escape import printable, shorten
from heterps_compile.runtime.c10d import as_one_process
from heterps_compile.runtime.pipeline.batch_loss import (
    loss_metric,
    loss_values,
    refuse_other_names,
    sample_weights,
    total_weight,
)
from heterps_compile.units import counted

from .best import LOSS
from .result import METRIC_NAME

if TYPE_CHECKING:
    from torch import Tensor

MetricsFunction = Callable[[Any, Mapping[str, Any]], Any]

_OF_OBJECTS = ("update", "compute", "reset")
_SHOWN = 60


class MetricsOfSamples:
    """The metrics of one validation after the other.

    Attributes:
        names: That there are, ``loss`` first; empty before the first batch.
    """

    def __init__(
        self,
        loss: MetricsFunction,
        metrics: MetricsFunction | None,
        sample_weight: "Callable[[Mapping[str, Any]], Tensor] | None" = None,
    ) -> None:
        """Take the functions of the training file.

        Args:
            loss: Gives the mean over a batch, or several by name.
            metrics: Gives a dict of metrics; None where there is none but the loss.
            sample_weight: Gives a weight for each sample; None where they count alike.
        """
        self._loss, self._metrics, self._weight = loss, metrics, sample_weight
        self.names: tuple[str, ...] = ()
        self._objects: dict[str, Any] = {}
        self._sums: dict[str, float] = {}
        self._samples = 0
        self._weights: list[float] = []
        self._parts: tuple[str, ...] | None = None

    def begin(self) -> None:
        """Begin a validation: objects that are known forget what they have seen."""
        self._sums, self._samples, self._weights = {}, 0, []
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
        weights = None
        with as_one_process():
            if self._weight is not None:
                weights = sample_weights(self._weight(batch), samples, self._samples, "the validation data")
                self._weights.append(float(weights.sum()))
            losses = loss_values(self._loss(outputs, batch), None if weights is None else samples)
            found: dict[str, Any] = {LOSS: losses.total}
            found |= {loss_metric(name): part for name, part in losses.parts.items()}
            if self._metrics is not None:
                found |= _checked_names(self._metrics(outputs, batch), tuple(found))
        names, count = tuple(found), 1 + len(losses.parts)
        if self._parts is not None:
            refuse_other_names(losses.parts, self._parts, ("here", "before"))
        self._parts = tuple(losses.parts)
        if self.names and set(names) != set(self.names):
            raise RunError(
                f"metrics() of the training file gives {_listed(names[count:])} here and gave "
                f"{_listed(self.names[count:])} before; give the same names for every batch"
            )
        self.names = self.names or names
        for name, value in found.items():
            if _is_object(value):
                self._keep(name, value)
            else:
                if name in self._objects:
                    raise RunError(f"the metric {name!r} is a number here and was an object before; give it one kind")
                whole = (
                    _number(name, value, "metrics() of the training file gives") * samples
                    if weights is None
                    else _weighted(name, value, weights)
                )
                self._sums[name] = self._sums.get(name, 0.0) + whole
        self._samples += samples

    def compute(self) -> dict[str, float]:
        """Return the metrics over all samples that were taken in.

        Raises:
            RunError: where an object gives no finite number.
        """
        found: dict[str, float] = {}
        divisor: float = self._samples
        if self._weight is not None:
            divisor = total_weight(self._weights, f"the {self._samples:,} validation samples")
        with as_one_process():
            for name in self.names:
                if name in self._objects:
                    found[name] = _number(name, self._objects[name].compute(), f"{printable(name)}.compute() gives")
                else:
                    found[name] = self._sums[name] / divisor
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


def _checked_names(found: Any, taken: tuple[str, ...]) -> dict[str, Any]:
    """Check the names of metrics, of which none may be that of a loss."""
    if not isinstance(found, Mapping):
        raise RunError(f"metrics() of the training file gave a {type(found).__name__}; it must give a dict of metrics")
    for name in found:
        if not isinstance(name, str) or not METRIC_NAME.fullmatch(name):
            raise RunError(
                f"metrics() of the training file names a metric {printable(shorten(repr(name), _SHOWN))}; a name has "
                f"up to 64 letters, digits, spaces and _.@+/- and begins with a letter"
            )
        if name in taken:
            raise RunError(
                f"metrics() of the training file has a metric {name!r}, which is what loss() gives over the validation "
                f"data; call it otherwise"
            )
    return dict(found)


def _is_object(value: Any) -> bool:
    return all(callable(getattr(value, name, None)) for name in _OF_OBJECTS)


def _weighted(name: str, value: Any, weights: "Tensor") -> float:
    """Return the sum of a metric's values, each times the weight of its sample.

    Raises:
        RunError: where it has not one for each sample, or one of them is not finite.
    """
    samples = len(weights)
    shape = getattr(value, "shape", None)
    if shape is None or tuple(shape) != (samples,):
        shown = f"a {type(value).__name__}" if shape is None else f"a tensor of shape {list(shape)}"
        raise RunError(
            f"metrics() of the training file gives {shown} for {counted(samples, 'sample')} as the metric {name!r}, "
            f"and samples have weights; give one value for each, a tensor of shape [{samples}], of which the run "
            f"takes the weighted mean, or an object with update(), compute() and reset() that weights them"
        )
    return _number(name, (value.detach().double() * weights.to(value.device)).sum(), "metrics() gives")


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
