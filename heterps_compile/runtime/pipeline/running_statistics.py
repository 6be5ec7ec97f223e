r"""Running statistics of a stage with replicas: what one process would have that runs the micro-batches in order.

BatchNorm moves its statistics b a step towards those of every micro-batch, b <- (1 - m) b + m s_i, with momentum m. Run
in order, M micro-batches lead from b_0 to ::

    (1 - m)^M b_0  +  sum over i of (1 - m)^(M - 1 - i) m s_i

Replicas see some of the micro-batches each. So every micro-batch starts from b_0 and ends at b_i = (1 - m) b_0 + m s_i,
which gives m s_i; each replica adds up its terms, and the terms are summed over the replicas::

    micro-batch | 0    1    2    3
    replica 0   | s_0       s_2             terms of s_0 and s_2  \
    replica 1   |      s_1       s_3        terms of s_1 and s_3  /  summed, plus (1 - m)^4 b_0, on both

Counters of whole numbers (``num_batches_tracked``) add up. Which buffers are running statistics is found out in the
first step: a batch or instance norm is called with them. A stage of jax says it of itself.

Left out: a stage with one replica, which needs none of this; other buffers that a forward changes, whose rule nobody
knows: a stage that has them runs with one replica.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.runtime.sync.collective import Collective, Work

_MEAN, _VARIANCE, _TRAINS, _MOMENTUM = "running_mean", "running_var", "training", "momentum"
_OF_ATEN = ("input", "weight", "bias", _MEAN, _VARIANCE, _TRAINS, _MOMENTUM)
_OF_FUNCTIONAL = ("input", _MEAN, _VARIANCE, "weight", "bias", _TRAINS, _MOMENTUM)
_SPELLINGS = {"use_input_stats": _TRAINS}
_ARGUMENTS: Mapping[Callable[..., Any], tuple[str, ...]] = {
    torch.batch_norm: _OF_ATEN,
    torch.instance_norm: _OF_ATEN,
    torch.ops.aten.batch_norm.default: _OF_ATEN,
    torch.ops.aten.instance_norm.default: _OF_ATEN,
    functional.batch_norm: _OF_FUNCTIONAL,
    functional.instance_norm: _OF_FUNCTIONAL,
}
"""The ops that keep running statistics, and the order of their arguments."""

_DEFAULT_MOMENTUM = 0.1  # of F.batch_norm and F.instance_norm, where a call does not say


class RunningStatistics:
    """The running statistics of one stage with replicas, on one of them."""

    def __init__(
        self,
        stage: int,
        buffers: Mapping[str, Tensor],
        micro_batches: int,
        group: Collective,
        momentum: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Prepare.

        Args:
            stage: Its index.
            buffers: Every buffer of the stage, by name.
            micro_batches: In one step, over all replicas.
            group: The replicas.
            momentum: Of the buffers that are known to be running statistics, by name.
        """
        self._known = dict(momentum)
        self._stage, self._all, self._micro_batches, self._group = stage, dict(buffers), micro_batches, group
        self._changing: _Changing | None = None
        self._work: Work | None = None

    def begin(self) -> None:
        """Begin a step."""
        if self._changing is not None:
            self._changing.begin()

    def run(self, micro_batch: int, forward: Callable[[], Any]) -> Any:
        """Run the forward of a micro-batch from the statistics the step began with, and keep what it made of them.

        Raises:
            RunError: naming a buffer that is changed in a way that nobody can share.
        """
        if self._changing is None:
            return self._learn(micro_batch, forward)
        self._changing.restore()
        result = forward()
        self._changing.collect(self._micro_batches - 1 - micro_batch)
        return result

    def start(self) -> None:
        """Begin to sum over the replicas, after the last forward of the step."""
        if self._changing is not None and self._changing.total.numel():
            self._work = self._group.sum(self._changing.total)

    def finish(self) -> None:
        """Put the statistics in their places, the same on every replica."""
        if self._changing is not None and self._work is not None:
            self._work.wait()
            self._work = None
            self._changing.settle(self._micro_batches)

    def _learn(self, micro_batch: int, forward: Callable[[], Any]) -> Any:
        """Run the first forward of all and see which buffers it changes, and how."""
        before = {name: buffer.clone() for name, buffer in self._all.items()}
        watcher = _Watcher(self._all)
        with watcher:
            result = forward()
        momentum = {**watcher.momentum, **self._known}
        counted = []
        for name, buffer in self._all.items():
            if name in momentum or torch.equal(before[name], buffer):
                continue
            if buffer.is_floating_point() or buffer.is_complex():
                raise RunError(
                    f"stage {self._stage}: a forward changes the buffer {printable(name)!r}, and not as a batch norm "
                    f"does, so that its replicas would not agree on it; give the stage one replica (--replicas)"
                )
            counted.append(name)
        averaged = [name for name in self._all if name in momentum]
        self._changing = _Changing(
            [self._all[name] for name in (*averaged, *counted)],
            [before[name] for name in (*averaged, *counted)],
            [momentum[name] for name in averaged] + [0.0] * len(counted),
        )
        self._changing.collect(self._micro_batches - 1 - micro_batch)
        return result


class _Changing:
    """Buffers that every forward changes. A counter is an average of momentum 0: b_i - b_0 is what it adds."""

    def __init__(self, buffers: Sequence[Tensor], firsts: Sequence[Tensor], momentums: Sequence[float]) -> None:
        self.buffers, self._firsts = list(buffers), list(firsts)
        sizes = self._counts = [buffer.numel() for buffer in self.buffers]
        device = self.buffers[0].device if self.buffers else torch.device("cpu")
        self._sizes = torch.tensor(sizes, dtype=torch.int64, device=device)
        # float64: a counter is exact up to 2^53, and an average loses nothing on the way
        self._kept = torch.tensor([1 - m for m in momentums], dtype=torch.float64, device=device)
        self._first = _flat(self._firsts, device)
        self._kept_of_first = self._power(1) * self._first
        self.total = torch.zeros_like(self._first)

    def _power(self, exponent: int) -> Tensor:
        """Return (1 - m)^exponent for every element; its given size spares a wait for the GPU."""
        return (self._kept**exponent).repeat_interleave(self._sizes, output_size=self._first.numel())

    def begin(self) -> None:
        """Take the buffers as they are for what the step begins with."""
        for buffer, first in zip(self.buffers, self._firsts, strict=True):
            first.copy_(buffer)
        self._first = _flat(self._firsts, self.total.device)
        self._kept_of_first = self._power(1) * self._first
        self.total.zero_()

    def restore(self) -> None:
        # by .data, since micro-batches whose backward is to come have the buffers saved, though they will not read them
        for buffer, first in zip(self.buffers, self._firsts, strict=True):
            buffer.data.copy_(first)

    def collect(self, later: int) -> None:
        """Add the term of a micro-batch after which so many others come."""
        if self.buffers:
            self.total += self._power(later) * (_flat(self.buffers, self.total.device) - self._kept_of_first)

    def settle(self, micro_batches: int) -> None:
        """Write the sum of all terms into the buffers."""
        parts = torch.split(self._power(micro_batches) * self._first + self.total, self._counts)
        for buffer, part in zip(self.buffers, parts, strict=True):
            buffer.copy_((part if buffer.is_floating_point() else part.round()).view(buffer.shape))


def _flat(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    if not tensors:
        return torch.zeros(0, dtype=torch.float64, device=device)
    return torch.cat([tensor.reshape(-1).to(torch.float64) for tensor in tensors])


class _Watcher(TorchFunctionMode):
    """Sees the calls that keep running statistics.

    Attributes:
        momentum: Of every buffer that such a call changed, by name.
    """

    def __init__(self, buffers: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._names = {id(buffer): name for name, buffer in buffers.items()}
        self.momentum: dict[str, float] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _ARGUMENTS:
            named = dict(zip(_ARGUMENTS[func], args, strict=False))
            named.update({_SPELLINGS.get(name, name): value for name, value in (kwargs or {}).items()})
            if named.get(_TRAINS, func is functional.instance_norm):
                for place in (_MEAN, _VARIANCE):
                    name = self._names.get(id(named.get(place)))
                    if name is not None:
                        self.momentum[name] = float(named.get(_MOMENTUM, _DEFAULT_MOMENTUM))
        return func(*args, **(kwargs or {}))
