"""What ``loss()`` and ``sample_weight()`` of a training file give for some samples, checked.

::

    loss() gives                     without sample_weight()         with it
    a tensor of one element          the mean over the samples       refused
    a tensor of one for each sample  refused                         l_i, of which the weighted mean is taken
    a dict of such, by name          their sum is trained, each is told

Nothing is broadcast: a shape that is not the one expected is refused.

Left out: means over a batch (``pipeline/batch_loss.py``) and over the samples of a validation
(``validation/metrics.py``).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heterps_compile.errors import RunError
from heterps_compile.escape import printable, shorten
from heterps_compile.units import counted

from .validation.best import LOSS
from .validation.result import METRIC_NAME

if TYPE_CHECKING:
    from torch import Tensor

_SHOWN = 60
_LEAST_TOTAL, _LARGEST_TOTAL = 2.0**-126, 2.0**126  # what float32 divides by without loss


@dataclass(frozen=True, slots=True)
class LossValues:
    """What ``loss()`` gave.

    Attributes:
        total: That is trained: the only loss, or the sum of those by name; of no dimension, or one for each sample.
        parts: By name; empty where there is one loss without a name.
    """

    total: "Tensor"
    parts: "Mapping[str, Tensor]"


def loss_values(found: Any, weighted_samples: int | None = None, *, is_scaled: bool = True) -> LossValues:
    """Check what ``loss()`` gave.

    Args:
        found: That it gave.
        weighted_samples: How many values it must give, where samples are weighted; None for one number, the mean.
        is_scaled: Whether values may be infinite or NaN, as a step with such a loss is skipped.

    Raises:
        RunError: where it is something else, not finite, or a dict with a name that cannot be shown.
    """
    if not is_scaled:
        for name, value in found.items() if isinstance(found, Mapping) else [("", found)]:
            _refuse_not_finite(name, value)
    if not isinstance(found, Mapping):
        return LossValues(_checked(None, found, weighted_samples), {})
    if not found:
        raise RunError("the loss gives an empty dict; it must have one loss or more by name, whose sum is trained")
    for name in found:
        if not isinstance(name, str) or not METRIC_NAME.fullmatch(name) or not METRIC_NAME.fullmatch(loss_metric(name)):
            raise RunError(
                f"the loss gives a dict with the name {printable(shorten(repr(name), _SHOWN))}; a name has up to "
                f"{64 - len(loss_metric(''))} letters, digits, spaces and _.@+/- and begins with a letter"
            )
    parts = {name: _checked(name, value, weighted_samples) for name, value in found.items()}
    first, *others = parts.values()
    total = first
    for other in others:
        total = total + other
    return LossValues(total, parts)


def loss_metric(name: str) -> str:
    """Return what a loss of this name is called among the metrics of a validation."""
    return f"{LOSS}/{name}"


def refuse_other_names(names: Iterable[str], first: Iterable[str], places: tuple[str, str]) -> None:
    """Refuse losses of other names than those of the first micro-batch.

    Args:
        names: That there are.
        first: That there were.
        places: Where the one and the other are.

    Raises:
        RunError: with both.
    """
    now, then = tuple(names), tuple(first)
    if set(now) != set(then):
        raise RunError(
            f"the loss gives {_listed(now)} {places[0]}, and {_listed(then)} {places[1]}; give the same names for "
            f"every micro-batch"
        )


def sample_weights(found: Any, samples: int, first: int, of: str) -> "Tensor":
    """Check what ``sample_weight()`` gave; return it in float64, without a gradient.

    Args:
        found: That it gave.
        samples: For which it must have one number each.
        first: Number of the first of them.
        of: Among what: "the step".

    Raises:
        RunError: where it is something else, or one of them is negative or not finite.
    """
    from torch import Tensor  # noqa: PLC0415 - torch only in the processes of a run

    if not isinstance(found, Tensor) or found.is_complex() or tuple(found.shape) != (samples,):
        raise RunError(
            f"sample_weight() of the training file gives {_shown(found)} for {counted(samples, 'sample')}; it must "
            f"give one number for each, a tensor of shape [{samples}]"
        )
    weights = found.detach().double()
    wrong = (~(weights.isfinite() & (weights >= 0))).nonzero().flatten().tolist()
    if wrong:
        raise RunError(
            f"sample_weight() of the training file gives {float(weights[wrong[0]]):g} for sample "
            f"{first + wrong[0]:,} of {of}; a weight is a finite number of 0 or more"
        )
    return weights


def total_weight(weights: Iterable[float], of: str) -> float:
    """Add up the weights that a weighted mean is divided by, with one rounding.

    Args:
        weights: Sums of some samples each.
        of: What samples they are: "the 12 samples of a step".

    Raises:
        RunError: where they are all zero, or their sum cannot be divided by.
    """
    total = math.fsum(weights)
    if not total:
        raise RunError(
            f"sample_weight() of the training file gives 0 for each of {of}, which have no weighted mean then; leave "
            f"such samples out of the data, or give one of them a weight"
        )
    if not _LEAST_TOTAL <= total <= _LARGEST_TOTAL:
        raise RunError(
            f"sample_weight() of the training file gives weights that add up to {total:.3g} for {of}, and float32 "
            f"divides by {_LEAST_TOTAL:.3g} to {_LARGEST_TOTAL:.3g}; multiply all of them by a number"
        )
    return total


def sum_of(numbers: Iterable[float]) -> float:
    """Add numbers up with one rounding; one that is not finite makes the sum so."""
    values = list(numbers)
    return math.fsum(values) if all(map(math.isfinite, values)) else sum(values)


def _refuse_not_finite(name: Any, value: Any) -> None:
    if hasattr(value, "isfinite") and not bool(value.isfinite().all()):
        shown = f"{printable(shorten(repr(name), _SHOWN))} " if name else ""
        raise RunError(
            f"the loss {shown}is {float(value.detach().sum())}; look at the data of that micro-batch, lower the "
            f"learning rate, or go on from an earlier checkpoint (--resume)"
        )


def _checked(name: str | None, value: Any, weighted_samples: int | None) -> "Tensor":
    """Return a loss of no dimension, or with one value for each sample where these are weighted."""
    from torch import Tensor  # noqa: PLC0415 - as above

    which = "the loss gives" if name is None else f"the loss gives, as {name!r},"
    if weighted_samples is None:
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise RunError(f"{which} {_shown(value)}; it must be one number as a tensor, the mean over the micro-batch")
        return value.reshape(())
    if not isinstance(value, Tensor) or tuple(value.shape) != (weighted_samples,):
        raise RunError(
            f"{which} {_shown(value)} for {counted(weighted_samples, 'sample')}, and the training file has "
            f"sample_weight(); it must give one value for each sample, a tensor of shape [{weighted_samples}] "
            f"(reduction='none'), of which the run takes the weighted mean"
        )
    return value


def _shown(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" if shape is None else f"a tensor of shape {list(shape)}"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names)) or "one number without a name"
