r"""Who sends what to whom: a route for every pair of stages that share values.

A value goes straight from the stage that makes it to every stage that reads it, never through the stages between. All
that one stage has for another goes in one message a micro-batch. Graph outputs go to the last stage, where the loss
is. Three stages, of which the first makes ``a``, ``b`` and the graph output ``y0``::

    stage 0 --- a -----> stage 1 --- c -----> stage 2 (last)
        \----- b, y0 ----------------------/

    route 0: stage 0 -> 1, a        route 1: stage 0 -> 2, b y0        route 2: stage 1 -> 2, c

In the backward, gradients go the same ways in the other direction. Between replicas, micro-batch i of a route goes from
the replica that has it in the one stage to the replica that has it in the other::

    stage 0, 2 replicas    0: F0 F2     1: F1 F3
                              |  |\        |  |
    stage 1, 1 replica     0: F0 F1 F2 F3

Every message has a tag of its own in a step, so that it does not matter in which order they arrive.

Left out: what a message looks like (``message.py``), who waits for whom (``transport.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from heterps_compile.errors import PlanError
from heterps_compile.ir.partition import Boundary


@dataclass(frozen=True, slots=True)
class Route:
    """The values that one stage sends another, every micro-batch.

    Attributes:
        index: Place among all routes.
        source: Index of the stage that makes them.
        target: Index of the stage that reads them; a later one.
        values: Their names, in the order in which they are made.
    """

    index: int
    source: int
    target: int
    values: tuple[str, ...]

    def tag(self, micro_batch: int, micro_batches: int, *, is_backward: bool) -> int:
        """Return the tag of a message's content; the same in every step."""
        return (2 * self.index + is_backward) * (micro_batches + 1) + micro_batch

    def header_tag(self, micro_batches: int, *, is_backward: bool) -> int:
        """Return the tag of what describes the content, which is sent once."""
        return self.tag(micro_batches, micro_batches, is_backward=is_backward)


def count_tags(routes: Sequence[Route], micro_batches: int) -> int:
    """Return how many tags there are, from 0."""
    return 2 * len(routes) * (micro_batches + 1)


def make_routes(stages: Sequence[Boundary], graph_outputs: Sequence[str]) -> tuple[Route, ...]:
    """Return every route, by source and then target.

    Args:
        stages: In order of execution.
        graph_outputs: Names of what the model returns.

    Raises:
        PlanError: where a stage reads a value of a later one.
    """
    maker = {name: index for index, stage in enumerate(stages) for name in stage.outputs}
    last = len(stages) - 1
    read: dict[tuple[int, int], set[str]] = {}
    for target, stage in enumerate(stages):
        wanted = [*stage.inputs, *graph_outputs] if target == last else stage.inputs
        for name in wanted:
            source = maker.get(name, target)
            if source > target:
                raise PlanError(f"stage {target} reads {name!r}, which stage {source} makes after it")
            if source < target:
                read.setdefault((source, target), set()).add(name)
    return tuple(
        Route(index, source, target, tuple(name for name in stages[source].outputs if name in names))
        for index, ((source, target), names) in enumerate(sorted(read.items()))
    )
