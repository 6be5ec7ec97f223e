"""Stages run over and over, each timed: forward, and in training the backward of each by itself.

For the backward every stage keeps an autograd graph of its own: what enters it is detached, and the gradients that
gather there are handed to the stage that made the value.

Left out: what is made of the times (``chain.py``).
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from heterps_compile.backends.contract import Stage
from heterps_compile.ir.partition import Boundary

from .clock import Now

if TYPE_CHECKING:
    from heterps_compile.runtime.pipeline.autocast import Autocast


class HasOutputs(Protocol):
    """What is known of a graph whose stages are at hand."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Values that it gives."""
        ...


class HasStages(Protocol):
    """What is known of a partition whose stages are at hand."""

    @property
    def stages(self) -> Sequence[Boundary]:
        """In order."""
        ...


class Passes:
    """Stages of one partition, run over and over; times of every pass are kept.

    Attributes:
        forward_s: Of every stage, one time a pass.
        backward_s: Of every stage, one time a pass that made gradients anew.
        accumulate_s: Of every stage, one time a pass that added to them.
    """

    def __init__(
        self, graph: HasOutputs, partition: HasStages, stages: Sequence[Stage], now: Now, autocast: "Autocast"
    ) -> None:
        """Take stages, what enters and leaves each in order, and what the graph gives."""
        self.graph, self.partition, self.stages, self.now, self.autocast = graph, partition, stages, now, autocast
        self.last_reader = {name: cut.index for cut in partition.stages for name in cut.inputs}
        self.forget()

    def forget(self) -> None:
        """Forget the times so far."""
        self.forward_s: list[list[float]] = [[] for _ in self.stages]
        self.backward_s: list[list[float]] = [[] for _ in self.stages]
        self.accumulate_s: list[list[float]] = [[] for _ in self.stages]

    def infer(self, inputs: Mapping[str, Any]) -> None:
        """Run and time all forwards; a value is dropped after its last reader, as in a real run."""
        live = dict(inputs)
        for cut, stage, times_s in zip(self.partition.stages, self.stages, self.forward_s, strict=True):
            values = [live[name] for name in cut.inputs]
            began = self.now()
            with self.autocast.context():
                results = stage(*values)
            times_s.append(self.now() - began)
            live.update(zip(cut.outputs, results, strict=True))
            values.clear()
            for name in (*cut.inputs, *cut.outputs):
                if self.last_reader.get(name, -1) <= cut.index:
                    live.pop(name, None)

    def train(self, inputs: Mapping[str, Any], *, grads_at_hand: bool) -> None:
        """Run and time all forwards, then all backwards in reverse order.

        Args:
            inputs: Graph inputs by name.
            grads_at_hand: Whether parameters have gradients already, to which these are added.
        """
        import torch  # noqa: PLC0415 - training is torch's

        leaves = dict(inputs)
        made = []
        for cut, stage, times_s in zip(self.partition.stages, self.stages, self.forward_s, strict=True):
            values = [leaves[name] for name in cut.inputs]
            began = self.now()
            with self.autocast.context():
                results = stage(*self.autocast.entering(values))
            times_s.append(self.now() - began)
            for name, value in zip(cut.outputs, results, strict=True):
                is_trained = isinstance(value, torch.Tensor) and value.requires_grad
                leaves[name] = value.detach().requires_grad_() if is_trained else value
            made.append([pair for pair in zip(cut.outputs, results, strict=True) if leaves[pair[0]] is not pair[1]])
        kept = self.accumulate_s if grads_at_hand else self.backward_s
        returned = set(self.graph.outputs)
        for results, times_s in zip(reversed(made), reversed(kept), strict=True):
            roots, gradients = [], []
            for name, value in results:
                gradient = leaves[name].grad
                if gradient is None and name in returned:
                    gradient = torch.ones_like(value)
                if gradient is not None:
                    roots.append(value)
                    gradients.append(gradient)
            results.clear()
            began = self.now()
            if roots:
                torch.autograd.backward(roots, gradients)
            times_s.append(self.now() - began)


def forget_gradients(stages: Sequence[Any]) -> None:
    """Take the gradients off every parameter of torch stages."""
    for stage in stages:
        for parameter in stage.parameters():
            parameter.grad = None
