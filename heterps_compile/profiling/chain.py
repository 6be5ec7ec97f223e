"""Time every layer of a model where it stands: all layers run in order, each on what the ones before it gave.

Every layer is built as a stage of its own, by the backend that builds the real ones, and the model as one stage beside
it. A repeat runs the chain and the whole one after the other, so that both see the machine at the same speed::

    chain   | F layer 0 | F layer 1 | F layer 2 | B layer 2 | B layer 1 | B layer 0 |   each timed
    whole   |           F model                 |           B model                 |   two timed

For the backward every layer keeps an autograd graph of its own: what enters it is detached, and the gradients that
gather there are handed to the layer that made the value. Backwards are timed that make the gradients of the parameters
and such as add to them, as the later micro-batches of a step do.

The chain pays for calling every layer, which a stage pays once. So the layers' sum is corrected to the time of the
whole, at every batch, forward and backward apart:

1. where the sum is larger, an equal part of the excess is taken off every layer, as a call costs the same whatever is
   called, but never more than :data:`MOST_OVERHEAD` of the layer's own time;
2. what still differs is a factor for all layers.

Left out: the key under which a time is found (``cost/layer_key.py``); optimiser steps.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heterps_compile.backends.contract import Backend, Stage
from heterps_compile.cost.profile import Timing, Whole
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.layers import LayerGraph
from heterps_compile.ir.partition import Partition, cut_graph

from .clock import Now, timing

MOST_OVERHEAD = 0.8
_WARM_UP = 3
_GRADS_AT_HAND = (False, True, True, True)  # memory settles after the first

Progress = Callable[[int, int], None]
"""Called with repeats done, repeats in all."""


@dataclass(frozen=True, slots=True)
class LayerTiming:
    """What a layer took, corrected; ``backward`` and ``accumulate`` are None in inference."""

    forward: Timing
    backward: Timing | None
    accumulate: Timing | None


@dataclass(frozen=True, slots=True)
class ChainTimes:
    """What all layers took at one batch.

    Attributes:
        layers: In order.
        whole: The model in one piece, and the sum of the layers before they were corrected.
    """

    layers: tuple[LayerTiming, ...]
    whole: Whole


class Passes:
    """Stages of one partition, run over and over; times of every pass are kept.

    Attributes:
        forward_s: Of every stage, one time a pass.
        backward_s: Of every stage, one time a pass that made gradients anew.
        accumulate_s: Of every stage, one time a pass that added to them.
    """

    def __init__(self, graph: Graph, partition: Partition, stages: Sequence[Stage], now: Now) -> None:
        self.graph, self.partition, self.stages, self.now = graph, partition, stages, now
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
            results = stage(*values)
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


def time_chain(
    layer_graph: LayerGraph,
    backend: Backend,
    inputs: Mapping[str, Any],
    now: Now,
    *,
    training: bool,
    repeats: int,
    device: str = "cpu",
    on_progress: Progress = lambda _done, _total: None,
) -> ChainTimes:
    """Time every layer of a model, and the whole.

    Args:
        layer_graph: The layers.
        backend: What builds and runs them.
        inputs: Graph inputs by name, on the device.
        now: The clock.
        training: Whether there are backwards; torch stages only.
        repeats: Of every time, after a warm-up that is not counted.
        device: Where torch stages are put.
        on_progress: Called after every repeat.

    Raises:
        BackendError: where a layer cannot be built or run by itself, naming it.
    """
    graph = layer_graph.graph
    groups = [layer.nodes for layer in layer_graph.layers]
    chain = _passes(graph, cut_graph(graph, groups), backend, now, device)
    whole = _passes(graph, cut_graph(graph, [range(len(graph.nodes))]), backend, now, device)
    try:
        for repeat in range(_WARM_UP + repeats):
            if repeat == _WARM_UP:
                chain.forget()
                whole.forget()
            for passes in (chain, whole):
                _run_once(passes, inputs, training=training)
            on_progress(max(0, repeat + 1 - _WARM_UP), repeats)
    finally:
        for stage in (*chain.stages, *whole.stages) if device != "cpu" else ():
            _move(stage, "cpu")  # its parameters are the model's own
    return _corrected(chain, whole, graph.batch, training=training)


def _passes(graph: Graph, partition: Partition, backend: Backend, now: Now, device: str) -> Passes:
    stages: Sequence[Any] = backend.build(graph, partition)
    if device != "cpu":
        for stage in stages:
            _move(stage, device)
    return Passes(graph, partition, stages, now)


def _move(stage: Any, device: str) -> None:
    """Move a torch stage, in place."""
    stage.to(device)


def _run_once(passes: Passes, inputs: Mapping[str, Any], *, training: bool) -> None:
    if not training:
        passes.infer(inputs)
        return
    for grads_at_hand in _GRADS_AT_HAND:
        if not grads_at_hand:
            forget_gradients(passes.stages)
        passes.train(inputs, grads_at_hand=grads_at_hand)


def forget_gradients(stages: Sequence[Any]) -> None:
    """Take the gradients off every parameter of torch stages."""
    for stage in stages:
        for parameter in stage.parameters():
            parameter.grad = None


def _corrected(chain: Passes, whole: Passes, batch: int, *, training: bool) -> ChainTimes:
    forwards = [timing(times) for times in chain.forward_s]
    of_whole = timing(whole.forward_s[0]).median_s
    fixed = correct(forwards, of_whole)
    if not training:
        layers = tuple(LayerTiming(forward, None, None) for forward in fixed)
        return ChainTimes(layers, Whole(batch, of_whole, sum(t.median_s for t in forwards)))
    backwards = [timing(times) for times in chain.backward_s]
    accumulates = [timing(times) for times in chain.accumulate_s]
    back_of_whole = timing(whole.backward_s[0]).median_s
    again_of_whole = timing(whole.accumulate_s[0]).median_s
    layers = tuple(
        LayerTiming(*timings)
        for timings in zip(fixed, correct(backwards, back_of_whole), correct(accumulates, again_of_whole), strict=True)
    )
    return ChainTimes(
        layers,
        Whole(
            batch,
            of_whole,
            sum(t.median_s for t in forwards),
            back_of_whole,
            sum(t.median_s for t in backwards),
        ),
    )


def correct(layers: Sequence[Timing], whole_s: float) -> list[Timing]:
    """Correct the times of layers so that they add up to the whole, by the two rules of the module."""
    count = sum(timing.median_s > 0 for timing in layers)
    excess_s = sum(timing.median_s for timing in layers) - whole_s
    overhead_s = max(0.0, excess_s) / max(1, count - 1)
    kept = [t.median_s - min(overhead_s, MOST_OVERHEAD * t.median_s) for t in layers]
    factor = whole_s / sum(kept) if sum(kept) > 0 else 1.0
    return [Timing(kept_s * factor, t.spread_s * factor) for kept_s, t in zip(kept, layers, strict=True)]
