"""Whatever widths, speeds and skips: the orders of all ranks come to an end, and no work is left or done twice."""

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from heterps_compile.runtime.pipeline.layout import CHUNKS_OF, Layout, deal_micro_batches, waiting_at_the_end
from heterps_compile.schedule.order import Action, Phase


@dataclass(frozen=True)
class Run:
    layout: Layout
    skips: frozenset[tuple[int, int]]


@st.composite
def runs(draw: st.DrawFn) -> Run:
    schedule = draw(st.sampled_from(sorted(CHUNKS_OF)))
    widths = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    chunks = CHUNKS_OF[schedule]
    count = draw(st.integers(max(widths), 12))
    speeds = [draw(st.lists(st.sampled_from([1.0, 1.5, 4.0]), min_size=w, max_size=w)) for w in widths]
    stages = len(widths) * chunks
    assignment = tuple(deal_micro_batches(count, of_position) for of_position in speeds)
    layout = Layout(schedule, draw(st.booleans()), widths, chunks, count, count, assignment)
    pairs = st.tuples(st.integers(0, stages - 1), st.integers(0, stages - 1)).filter(lambda pair: pair[0] < pair[1])
    skips = draw(st.sets(pairs, max_size=4)) if stages > 1 else set()
    neighbours = {(stage, stage + 1) for stage in range(stages - 1) if draw(st.booleans())}
    return Run(layout, frozenset(skips | neighbours))


def waits_for(run: Run, action: Action) -> set[tuple[int, int, Phase]]:
    """Return what must have ended before an action may run, as (stage, micro-batch, phase)."""
    stage, i = run.layout.stage_of(action), action.micro_batch
    if action.phase is Phase.FORWARD:
        return {(source, i, Phase.FORWARD) for source, target in run.skips if target == stage}
    if action.phase is Phase.WEIGHT:
        return {(stage, i, Phase.BACKWARD)}
    after = {(target, i, Phase.BACKWARD) for source, target in run.skips if source == stage}
    return {(stage, i, Phase.FORWARD), *after}


@given(runs())
def test_orders_come_to_an_end(run):
    layout = run.layout
    left = {rank: list(layout.actions(rank)) for rank in range(layout.world_size)}
    every = Counter(
        (layout.stage_of(action), action.micro_batch, action.phase) for order in left.values() for action in order
    )
    assert waiting_at_the_end(layout) == {}
    phases = [Phase.FORWARD, Phase.BACKWARD] if layout.training else [Phase.FORWARD]
    splits = layout.training and layout.schedule == "zero-bubble"
    assert every == Counter(
        (stage, i, phase)
        for stage in range(layout.stage_count)
        for i in range(layout.micro_batches)
        for phase in (*phases, *([Phase.WEIGHT] if splits and stage else []))
    )
    done: set[tuple[int, int, Phase]] = set()
    while any(left.values()):
        ready = [rank for rank, order in left.items() if order and waits_for(run, order[0]) <= done]
        assert ready, f"all wait for each other at {[str(order[0]) for order in left.values() if order]}"
        for rank in ready:
            action = left[rank].pop(0)
            assert layout.owner(layout.stage_of(action), action.micro_batch) == rank
            done.add((layout.stage_of(action), action.micro_batch, action.phase))
