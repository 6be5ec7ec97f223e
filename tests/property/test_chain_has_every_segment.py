"""The segments of a chain have the work, bytes and memory that the stages of a placement have."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_problems import plain_bytes, plain_memory, small_problems, with_shared_storage

from heterps_compile.cost.problem import Problem
from heterps_compile.cost.replicas import StageWork
from heterps_compile.passes.placement.geometry import Chain
from heterps_compile.passes.placement.traffic import box_sums


@pytest.mark.slow  # more of the same kind on larger problems
@settings(max_examples=150, deadline=None)
@given(problem=small_problems() | st.builds(with_shared_storage, small_problems(), st.integers(0, 2**32 - 1)))
@pytest.mark.parametrize("cells", [1, 40, 1 << 16])
def test_the_list_holds_every_segment_once(cells: int, problem: Problem) -> None:
    chain = Chain(problem)
    segments = chain.all_segments(cells_at_once=cells)
    found = {}
    for s in range(len(segments)):
        key = (int(segments.first[s]), int(segments.end[s]), int(segments.type[s]))
        assert key not in found
        found[key] = segments.demand.take(np.array([s]))
    assert list(found) == sorted(found)
    positions = [
        p for p in range(problem.layer_count + 1) if p in (0, problem.layer_count) or not problem.uncuttable[p]
    ]
    assert chain.borders.tolist() == positions
    for (a, i), (c, j) in itertools.combinations(enumerate(positions), 2):
        received, sent = plain_bytes(problem, i, j)
        for t in range(problem.type_count):
            usable = (problem.allowed[i:j, t] & np.isfinite(problem.compute_s[i:j, t])).all()
            fits = plain_memory(problem, i, j) <= problem.memory_bytes[t]
            assert ((a, c, t) in found) == (usable and fits)
            if (a, c, t) in found:
                traffic_s = (received + sent) * problem.seconds_per_byte[t]
                traffic_s += problem.latency_s[t] * (int(received > 0) + int(sent > 0))
                alpha, beta = (
                    np.broadcast_to(f, problem.compute_s.shape)[i:j, t] for f in (problem.alpha, problem.beta)
                )
                compute_s, data_s = problem.compute_s[i:j, t], problem.data_s[i:j, t]
                work = StageWork(
                    np.array([compute_s.sum()]),
                    np.array([data_s.sum() + traffic_s]),
                    np.array([problem.sync_s[i:j, t].sum()]),
                    np.array([compute_s @ (1 - alpha)]),
                    np.array([data_s @ (1 - beta) + traffic_s * (1 - problem.data_parallel[t])]),
                    None if problem.shared_s is None else np.array([problem.shared_s[i:j, t].sum()]),
                ).demand()
                for name in work.__slots__:
                    expected = getattr(work, name)
                    if expected is None:
                        assert getattr(found[a, c, t], name) is None
                    else:
                        assert getattr(found[a, c, t], name) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    some = segments.keep(slice(None, None, 3))
    again = chain.segments_at(some.first[::-1], some.end[::-1], some.type[::-1])
    for name in ("first", "end", "type"):
        assert getattr(again, name).tolist() == getattr(some, name).tolist()
    assert again.demand.once_s == pytest.approx(some.demand.once_s, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 60), st.booleans())
def test_box_sums_add_every_box(seed: int, height: int, width: int, whole: bool) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(0, 12))
    top, left = rng.integers(0, height, count), rng.integers(0, width, count)
    bottom, right = top + rng.integers(1, height + 2, count), left + rng.integers(1, width + 2, count)
    if whole:
        top[::2], bottom[::2] = 0, height
    amounts = rng.integers(1, 100, count).astype(float)
    expected = np.zeros((height, width))
    for box in range(count):
        expected[top[box] : bottom[box], left[box] : right[box]] += amounts[box]
    assert box_sums((top, bottom), (left, right), amounts, (height, width)).tolist() == expected.tolist()
