"""Measure what a step has besides layers: the optimizer's step, and what rules make of gradients.

The kinds of work of ``sync_rules/handling.py`` are timed by the functions that a run calls, over as many bytes as do
not fit the caches of a core: an addition of one tensor to another for what is moved, the selection of 1 % and of 10 %
of a Gaussian by its threshold, which tell the part of a byte and that of an entry, additions at random places, and a
combination by adasum. Optimizers are those of ``--optimizer`` that PyTorch has, over two sizes of as many tensors, from
which the part of a tensor and that of a byte follow.

Left out: optimizers of other packages, which count by what they read and write; dtypes other than float32.
"""

from collections.abc import Callable, Mapping
from itertools import cycle
from typing import TYPE_CHECKING

from heterps_compile.cost.step_rates import OptimizerRate, StepRates

from .clock import Now, timing

if TYPE_CHECKING:
    from torch import Tensor, optim

_ELEMENTS = 1 << 21
_PAIRS = 4  # added up in turn, 64 MiB together
_STEPPED = 1 << 21
_ELEMENT_BYTES = 4
_PLACED, _MANY = _ELEMENTS // 100, _ELEMENTS // 10
_TENSORS, _SHORT = 16, 256
_WARM_UP, _REPEATS = 1, 5
_LEAST_S = 1e-9


def measure_step_rates(device: str, now: Now) -> StepRates:
    """Measure a device; half a second on a core.

    Args:
        device: As PyTorch calls it.
        now: Its clock.
    """
    import torch  # noqa: PLC0415 - torch only when something is run

    from heterps_compile.runtime.sync.adasum import combine  # noqa: PLC0415 - as above
    from heterps_compile.runtime.sync.top_k import select_threshold  # noqa: PLC0415

    draws = torch.Generator().manual_seed(0)

    def drawn() -> "Tensor":
        return torch.randn(_ELEMENTS, generator=draws).to(device)

    first, second = drawn(), drawn()
    pairs = cycle([(drawn(), drawn()) for _ in range(_PAIRS)])
    places = torch.randint(_ELEMENTS, (_PLACED,), generator=draws).to(device)
    values = first[:_PLACED].clone()
    size_bytes = _ELEMENTS * _ELEMENT_BYTES

    def timed(call: Callable[[], object]) -> float:
        return max(_LEAST_S, _median_s(call, now))

    def add() -> None:
        into, added = next(pairs)
        into.add_(added)

    def select(entries: int) -> None:
        if bool(first.isfinite().all()):
            select_threshold(first, entries)

    with torch.no_grad():
        few_s, many_s = timed(lambda: select(_PLACED)), timed(lambda: select(_MANY))
        chosen_s = max(_LEAST_S, many_s - few_s) / (_MANY - _PLACED)
        return StepRates(
            3 * size_bytes / timed(add),
            size_bytes / max(_LEAST_S, few_s - _PLACED * chosen_s),
            1 / chosen_s,
            _PLACED / timed(lambda: second.index_add_(0, places, values)),
            size_bytes / timed(lambda: combine(first, second)),
            tuple(_optimizer(name, make, device, now) for name, make in _optimizers().items()),
        )


def _optimizers() -> "Mapping[str, Callable[[list[Tensor]], optim.Optimizer]]":
    """Return those of ``OPTIMIZERS`` (``cost/memory.py``) that PyTorch has."""
    from torch import optim  # noqa: PLC0415 - as above

    return {
        "adam": optim.Adam,
        "sgd": lambda weights: optim.SGD(weights, lr=1e-3),
        "momentum": lambda weights: optim.SGD(weights, lr=1e-3, momentum=0.9),
        "adafactor": optim.Adafactor,
    }


def _optimizer(name: str, make: "Callable[[list[Tensor]], optim.Optimizer]", device: str, now: Now) -> OptimizerRate:
    """Return the rate of an optimizer: a line through its steps on short tensors and on long ones."""
    import torch  # noqa: PLC0415 - as above

    def step_s(elements: int) -> float:
        side = int(elements**0.5)
        weights = [torch.ones(side, side, device=device, requires_grad=True) for _ in range(_TENSORS)]
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        return _median_s(make(weights).step, now)

    short_s, long_s = step_s(_SHORT), step_s(_STEPPED // _TENSORS)
    short, long = (int(elements**0.5) ** 2 * _TENSORS * _ELEMENT_BYTES for elements in (_SHORT, _STEPPED // _TENSORS))
    byte_s = max(_LEAST_S / long, (long_s - short_s) / (long - short))
    return OptimizerRate(name, max(0.0, short_s - short * byte_s) / _TENSORS, 1 / byte_s)


def _median_s(call: Callable[[], object], now: Now) -> float:
    for _ in range(_WARM_UP):
        call()
    times_s = []
    for _ in range(_REPEATS):
        began_s = now()
        call()
        times_s.append(now() - began_s)
    return timing(times_s).median_s
