"""What `powersgd` takes the processor of a replica beside what plans count of it: `bench_sync.py --factors`.

Plans count the traffic with memory of its products. Here the rule of the runtime works on flat buffers with sums that
take no time, on one core, and rates are measured on the same core as `profile` does. Both of one run, so that their
ratio hangs little on the machine; nothing is wanted of it, as it is what plans leave out.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from heterps_compile.profiling.step_rates import measure_step_rates
from heterps_compile.runtime.sync.contract import Flat, Shared
from heterps_compile.runtime.sync.find import make_rule
from heterps_compile.sync_rules.assignment import parse_rule
from heterps_compile.sync_rules.handling import Handling, Work, flat_gradients
from heterps_compile.sync_rules.rule import FlatBuffer, SyncGroup, TensorShape

SHAPES: dict[str, list[tuple[int, int]]] = {
    "wide: 3 matrices": [(1024, 512), (1024, 1024), (64, 1024)],
    "encoder: 8 matrices": [(576, 192), (192, 192), (768, 192), (192, 768)] * 2,
    "16 of 256 x 256": [(256, 256)] * 16,
}
RANKS = (1, 2, 4, 8, 16)
ROUNDS = 9


class NoWork:
    def wait(self) -> None:
        pass


class TwoRanks:
    """Two ranks that are there at once."""

    ranks = (0, 1)

    def sum(self, _tensor: Tensor) -> NoWork:
        return NoWork()


def factors() -> Iterator[str]:
    """Yield a table of times by matrices and rank."""
    rates = measure_step_rates("cpu", time.perf_counter)
    yield "what powersgd takes a core a step, beside what plans count of it (traffic with memory)"
    yield ""
    yield "| matrices | rank | taken | counted | taken over counted |"
    yield "|---|---|---|---|---|"
    for name, shapes in SHAPES.items():
        for rank in RANKS:
            taken_s = _taken_s(shapes, rank)
            group = _group(shapes)
            handling = parse_rule(f"powersgd(rank={rank})").handling(group)
            without = flat_gradients(group.gradient_bytes).moved  # which is the backward's, and not timed here
            once = Work(moved=handling.once.moved - without)
            counted_s = rates.handling_s(Handling(once, handling.shared), 2)
            ratio = taken_s / counted_s
            yield f"| {name} | {rank} | {1e3 * taken_s:.2f} ms | {1e3 * counted_s:.2f} ms | {ratio:.1f} |"
    yield ""


def _group(shapes: Sequence[tuple[int, int]]) -> SyncGroup:
    flat = (FlatBuffer(sum(rows * columns for rows, columns in shapes)),)
    return SyncGroup(2, flat, flat, len(shapes), shapes=tuple(TensorShape(shape) for shape in shapes))


def _taken_s(shapes: Sequence[tuple[int, int]], rank: int) -> float:
    """Return the median time of the rule's part of a step."""
    parameters = {f"p{place}": nn.Parameter(torch.zeros(shape)) for place, shape in enumerate(shapes)}
    drawn = torch.randn(sum(parameter.numel() for parameter in parameters.values()))
    group: Any = TwoRanks()
    rule = make_rule(parse_rule(f"powersgd(rank={rank})"), Shared(group, 0, parameters, 0.5))
    flat = Flat(drawn.clone(), tuple(parameters), tuple(parameter.shape for parameter in parameters.values()))
    rule.prepare([flat])

    def step() -> None:
        rule.after_backward([flat], 1.0)
        rule.finish()
        rule.after_step(0, is_skipped=False)

    times_s = [_timed_s(step, flat.tensor, drawn) for _ in range(2 + ROUNDS)]
    return median(times_s[2:])


def _timed_s(step: Callable[[], None], tensor: Tensor, drawn: Tensor) -> float:
    tensor.copy_(drawn)
    began_s = time.perf_counter()
    step()
    return time.perf_counter() - began_s
