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
   called. It is at most the time of the shortest layer, and at most what a call cost at a smaller batch: what is beyond
   that is noise of the long layers. A layer keeps :data:`LEAST_KEPT` of its time;
2. what still differs is a factor for all layers.

Every pass reads other inputs than the one before, as in a real run: rows of an embedding are not in the caches already.

Layers whose tables parameter servers could hold are timed a second time, in a chain of their own that takes its turn,
with the tables on servers (``served_chain.py``). They are corrected as in the first chain: calls cost what they cost
there, and so much of the time is of running one by one.

Left out: the key under which a time is found (``cost/layer_key.py``); optimiser steps.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import count, cycle
from typing import Any

from heterps_compile.backends.contract import Backend
from heterps_compile.cost.precision import FULL
from heterps_compile.cost.profile import Timing, Whole
from heterps_compile.cost.roofline import Phases
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.layers import LayerGraph
from heterps_compile.ir.partition import Partition, cut_graph

from .clock import Now, timing
from .layer_passes import Passes, forget_gradients
from .served_chain import ServedPasses

LEAST_KEPT = 0.2
ANY_CALLS = Phases(math.inf, math.inf, math.inf)
_WARM_UP = 3
_MOST_REPEATS = 500
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
        calls: What calling a layer was found to cost.
        repeats: How often each was timed.
        served: By number of the layer what those took whose tables were on servers.
    """

    layers: tuple[LayerTiming, ...]
    whole: Whole
    calls: Phases
    repeats: int
    served: Mapping[int, LayerTiming] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TimingSetup:
    """What a model is timed with.

    Attributes:
        backend: What builds and runs the layers.
        inputs: Graph inputs by name, on the device; passes take them in turn.
        now: The clock.
        device: Where torch stages are put.
        precision: In which forwards compute, as :class:`~heterps_compile.runtime.pipeline.autocast.Autocast` takes it.
    """

    backend: Backend
    inputs: Sequence[Mapping[str, Any]]
    now: Now
    device: str = "cpu"
    precision: str = FULL


@dataclass(frozen=True, slots=True)
class Repeats:
    """How often a model is timed.

    Attributes:
        at_least: Times, after a warm-up that is not counted.
        least_s: More follow until so many seconds have passed, since a machine's speed drifts.
    """

    at_least: int
    least_s: float = 0.0


def time_chain(
    layer_graph: LayerGraph,
    setup: TimingSetup,
    repeats: Repeats,
    *,
    training: bool,
    calls: Phases = ANY_CALLS,
    tables: Sequence[str] = (),
    on_progress: Progress = lambda _done, _total: None,
) -> ChainTimes:
    """Time every layer of a model, and the whole.

    Args:
        layer_graph: The layers.
        setup: What they are timed with.
        repeats: How often.
        training: Whether there are backwards; stages of torch and of jax only.
        calls: What calling a layer costs at most.
        tables: Parameters that servers could hold; layers that read some are timed with them there, too.
        on_progress: Called after every repeat.

    Raises:
        BackendError: where a layer cannot be built or run by itself, naming it.
    """
    graph = layer_graph.graph
    groups = [layer.nodes for layer in layer_graph.layers]
    chain = _passes(graph, cut_graph(graph, groups), setup)
    whole = _passes(graph, cut_graph(graph, [range(len(graph.nodes))]), setup)
    inputs, half = setup.inputs, len(setup.inputs) // 2
    turns: list[tuple[Passes, Iterator[Mapping[str, Any]]]] = [
        (chain, cycle(inputs)),
        (whole, cycle([*inputs[half:], *inputs[:half]])),
    ]
    served = None
    if tables:
        served = ServedPasses(_passes(graph, cut_graph(graph, groups), setup), tables)
        for each in inputs:  # which rows they look up is then known
            served.infer(each)
        turns.append((served, cycle([*inputs[half:], *inputs[:half]])))
    began_s = time.monotonic()
    try:
        for repeat in count(1 - _WARM_UP):
            for passes, given in turns:
                _run_once(passes, given, training=training)
            if repeat == 0:
                for passes, _ in turns:
                    passes.forget()
                began_s = time.monotonic()
            on_progress(min(max(0, repeat), repeats.at_least), repeats.at_least)
            long_enough = time.monotonic() - began_s >= repeats.least_s
            if repeat >= repeats.at_least and (repeat >= _MOST_REPEATS or long_enough):
                break
    finally:
        for stage in [stage for passes, _ in turns for stage in passes.stages] if setup.device != "cpu" else ():
            _move(stage, "cpu")  # its parameters are the model's own
    found = _corrected(chain, whole, graph.batch, calls, training=training)
    return found if served is None else replace(found, served=_corrected_served(served, chain, whole, found.calls))


def _passes(graph: Graph, partition: Partition, setup: TimingSetup) -> Passes:
    import torch  # noqa: PLC0415 - torch only when something is run

    from heterps_compile.runtime.pipeline.autocast import Autocast  # noqa: PLC0415 - as above

    backend, where = setup.backend, torch.device(setup.device)
    stages = [backend.as_module(stage, where) for stage in backend.build(graph, partition)]  # as a pipeline runs them
    return Passes(graph, partition, stages, setup.now, Autocast(setup.precision, where))


def _move(stage: Any, device: str) -> None:
    """Move a torch stage, in place."""
    stage.to(device)


def _run_once(passes: Passes, given: Iterator[Mapping[str, Any]], *, training: bool) -> None:
    if not training:
        passes.infer(next(given))
        return
    for grads_at_hand in _GRADS_AT_HAND:
        if not grads_at_hand:
            forget_gradients(passes.stages)
        passes.train(next(given), grads_at_hand=grads_at_hand)


def _corrected(chain: Passes, whole: Passes, batch: int, at_most: Phases, *, training: bool) -> ChainTimes:
    forwards = [timing(times) for times in chain.forward_s]
    of_whole_s = timing(whole.forward_s[0]).median_s
    call_s = call_time(forwards, of_whole_s, at_most.forward_s)
    fixed = correct(forwards, of_whole_s, call_s)
    repeats, layers_s = len(whole.forward_s[0]), sum(t.median_s for t in forwards)
    if not training:
        layers = tuple(LayerTiming(forward, None, None) for forward in fixed)
        return ChainTimes(layers, Whole(batch, of_whole_s, layers_s), Phases(call_s, 0.0, 0.0), repeats)
    backwards = [timing(times) for times in chain.backward_s]
    accumulates = [timing(times) for times in chain.accumulate_s]
    back_of_whole_s = timing(whole.backward_s[0]).median_s
    again_of_whole_s = timing(whole.accumulate_s[0]).median_s
    calls = Phases(
        call_s,
        call_time(backwards, back_of_whole_s, at_most.backward_s),
        call_time(accumulates, again_of_whole_s, at_most.accumulate_s),
    )
    backs = correct(backwards, back_of_whole_s, calls.backward_s)
    agains = correct(accumulates, again_of_whole_s, calls.accumulate_s)
    layers = tuple(LayerTiming(*timings) for timings in zip(fixed, backs, agains, strict=True))
    backs_s = sum(t.median_s for t in backwards)
    return ChainTimes(layers, Whole(batch, of_whole_s, layers_s, back_of_whole_s, backs_s), calls, repeats)


def _corrected_served(served: ServedPasses, chain: Passes, whole: Passes, calls: Phases) -> dict[int, LayerTiming]:
    """Return what layers took whose tables were on servers, corrected as the chain with the tables in it was."""
    found: list[list[Timing]] = []
    for name, call_s in zip(("forward_s", "backward_s", "accumulate_s"), astuple(calls), strict=True):
        (of_whole_s,) = getattr(whole, name)
        if of_whole_s:
            layers, own = ([timing(times) for times in getattr(passes, name)] for passes in (chain, served))
            found.append(correct(layers, timing(of_whole_s).median_s, call_s, of=own))
    kept = [each + [None] * (3 - len(each)) for each in map(list, zip(*found, strict=True))]
    return {index: LayerTiming(*kept[index]) for index in served.looking_up}


def call_time(layers: Sequence[Timing], whole_s: float, at_most_s: float = math.inf) -> float:
    """Find what calling a layer costs, by the first rule of the module."""
    timed_s = [timing.median_s for timing in layers if timing.median_s > 0]
    if len(timed_s) < 2:
        return 0.0
    excess_s = max(0.0, sum(timed_s) - whole_s)
    return min(excess_s / (len(timed_s) - 1), *timed_s, at_most_s)


def correct(
    layers: Sequence[Timing], whole_s: float, call_s: float, *, of: Sequence[Timing] | None = None
) -> list[Timing]:
    """Correct the times of layers so that they add up to the whole, by the two rules of the module.

    Args:
        layers: As they were timed.
        whole_s: The whole.
        call_s: What calling a layer costs.
        of: Times to correct in the same way instead; None for those of the layers.
    """

    def kept_s(timed: Timing) -> float:
        return max(timed.median_s - call_s, LEAST_KEPT * timed.median_s)

    sum_s = sum(map(kept_s, layers))
    factor = whole_s / sum_s if sum_s > 0 else 1.0
    return [Timing(kept_s(timed) * factor, timed.spread_s * factor) for timed in (layers if of is None else of)]
