"""What a worker holds while a step runs: micro-batches begun and not yet let go, over time.

Left out: their bytes, which the caller knows.
"""

from collections.abc import Iterator

from .order import Phase
from .simulate import Span, Timeline


def worker_spans(timeline: Timeline) -> dict[tuple[int, int], list[Span]]:
    """Return what every (stage, replica) runs, in its order; a replica without a micro-batch runs nothing."""
    spans: dict[tuple[int, int], list[Span]] = {
        (stage, replica): [] for stage, count in enumerate(timeline.replicas) for replica in range(count)
    }
    for span in timeline.spans:
        spans[span.action.stage, span.replica].append(span)
    return spans


def held_over_time(spans: list[Span]) -> Iterator[tuple[float, int]]:
    """Yield when a worker's count of held micro-batches (of one chunk, where there are chunks) changes, and to what.

    A micro-batch is taken up as its forward starts and let go as its last action ends: the gradients of weights, else
    the backward, else, in inference, the forward itself.
    """
    phases = {span.action.phase for span in spans}
    last = next((phase for phase in (Phase.WEIGHT, Phase.BACKWARD) if phase in phases), Phase.FORWARD)
    held = 0
    yield 0.0, held
    for span in spans:
        if span.action.phase is Phase.FORWARD:
            held += 1
            yield span.start_s, held
        if span.action.phase is last:
            held -= 1
            yield span.end_s, held
