"""Whatever the stages, replicas and times: a timeline is one that could happen."""

from collections import defaultdict
from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import given
from simulated import simulate

from heterps_compile.schedule.interleaved import CHUNKS
from heterps_compile.schedule.names import SCHEDULES, orders
from heterps_compile.schedule.order import Action, Phase
from heterps_compile.schedule.simulate import Timeline

# Halves add up without rounding, so that equal times compare equal.
TIMES = st.integers(0, 20).map(lambda halves: halves / 2)


@st.composite
def steps(draw, most_replicas=4):
    """Draw name, replicas, micro-batches, forward, backward (None in inference) and transfer times."""
    counts = draw(st.lists(st.integers(1, most_replicas), min_size=1, max_size=6))
    per_stage = st.lists(TIMES, min_size=len(counts), max_size=len(counts))
    return (
        draw(st.sampled_from(sorted(SCHEDULES))),
        counts,
        draw(st.integers(1, 12)),
        draw(per_stage),
        draw(st.none() | per_stage),
        draw(st.lists(TIMES, min_size=len(counts) - 1, max_size=len(counts) - 1)),
    )


def run(step) -> Timeline:
    name, replicas, micro_batches, forward_s, backward_s, transfer_s = step
    order = orders(name, replicas, micro_batches, training=backward_s is not None)
    return simulate(order, forward_s, backward_s, replicas=replicas, transfer_s=transfer_s)


@given(steps())
def test_every_action_runs_once(step):
    name, replicas, micro_batches, _, backward_s, _ = step
    phases = [Phase.FORWARD] if backward_s is None else [Phase.FORWARD, Phase.BACKWARD]
    splits = backward_s is not None and name == "zero-bubble"
    chunks = range(CHUNKS if name == "interleaved-1f1b" else 1)
    stages = range(len(replicas))
    wanted = {Action(s, m, p, c) for s in stages for m in range(micro_batches) for p in phases for c in chunks}
    wanted |= {Action(s, m, Phase.WEIGHT) for s in stages[1:] for m in range(micro_batches) if splits}
    actions = [span.action for span in run(step).spans]
    assert len(actions) == len(wanted)
    assert set(actions) == wanted


@given(steps())
def test_no_action_starts_before_its_input_is_there(step):
    _, replicas, _, _, _, transfer_s = step
    last = len(replicas) - 1
    timeline = run(step)
    spans = {span.action: span for span in timeline.spans}
    for action, span in spans.items():
        stage, batch, chunk = action.stage, action.micro_batch, action.chunk
        if action.phase is Phase.FORWARD and stage > 0:
            before = spans[Action(stage - 1, batch, Phase.FORWARD, chunk)]
            assert span.start_s >= before.end_s + transfer_s[stage - 1]
        elif action.phase is Phase.FORWARD and chunk > 0:
            before = spans[Action(last, batch, Phase.FORWARD, chunk - 1)]
            assert span.start_s >= before.end_s + max(transfer_s, default=0)
        elif action.phase is Phase.BACKWARD:
            assert span.start_s >= spans[Action(stage, batch, Phase.FORWARD, chunk)].end_s
            after = spans.get(Action(stage + 1, batch, Phase.BACKWARD, chunk))
            if after is not None:
                assert span.start_s >= after.end_s + transfer_s[stage]
            elif chunk + 1 < timeline.chunks:
                assert span.start_s >= spans[Action(0, batch, Phase.BACKWARD, chunk + 1)].end_s
        elif action.phase is Phase.WEIGHT:
            assert span.start_s >= spans[Action(stage, batch, Phase.BACKWARD, chunk)].end_s


@given(steps())
def test_a_replica_does_one_thing_at_a_time_and_only_its_own_micro_batches(step):
    _, replicas, *_ = step
    workers = defaultdict(list)
    for span in run(step).spans:
        assert span.replica == span.action.micro_batch % replicas[span.action.stage]
        workers[span.action.stage, span.replica].append(span)
    for spans in workers.values():
        assert all(before.end_s <= after.start_s for before, after in pairwise(spans))


@given(steps())
def test_the_makespan_is_the_last_end_and_the_bubble_a_share(step):
    timeline = run(step)
    assert timeline.makespan_s == max(span.end_s for span in timeline.spans)
    assert 0 <= timeline.bubble <= 1


@given(steps(most_replicas=1))
def test_1f1b_holds_one_micro_batch_for_each_stage_to_come(step):
    _, replicas, micro_batches, forward_s, _, transfer_s = step
    trained = ("1f1b", replicas, micro_batches, forward_s, forward_s, transfer_s)
    stages = len(replicas)
    assert all(peak <= stages - s for s, peak in enumerate(run(trained).peak_in_flight))


@given(steps())
def test_1f1b_holds_at_most_one_micro_batch_for_each_replica_to_come(step):
    _, replicas, micro_batches, forward_s, _, transfer_s = step
    timeline = run(("1f1b", replicas, micro_batches, forward_s, forward_s, transfer_s))
    for stage, count in enumerate(replicas):
        assert timeline.peak_in_flight[stage] <= -(-sum(replicas[stage:]) // count)


@given(steps())
def test_1f1b_never_holds_more_than_gpipe(step):
    _, replicas, micro_batches, forward_s, _, transfer_s = step
    rest = (replicas, micro_batches, forward_s, forward_s, transfer_s)
    pairs = zip(run(("1f1b", *rest)).peak_in_flight, run(("gpipe", *rest)).peak_in_flight, strict=True)
    assert all(one <= all_of_them for one, all_of_them in pairs)
