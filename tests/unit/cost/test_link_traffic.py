"""What stages pay over links of their own: as the definition says, value by value."""

import numpy as np
import pytest
from small_problems import linked, small_problem

from heterps_compile.cost.link_traffic import link_traffic


@pytest.mark.parametrize("seed", range(6))
def test_a_value_is_received_by_every_stage_that_reads_it_and_sent_once_over_the_slowest_link(seed: int) -> None:
    problem = linked(small_problem(seed, layers=9, types=3), seed)
    rng = np.random.default_rng(seed)
    starts = [np.flatnonzero(np.append(True, rng.random(8) < 0.4)) for _ in range(20)]
    placement = np.repeat(np.arange(20), [len(first) for first in starts])
    first, end = np.concatenate(starts), np.concatenate([np.append(of[1:], 9) for of in starts])
    types = rng.integers(0, 3, len(first))
    per_byte, latency_s = problem.link_seconds_per_byte, problem.link_latency_s
    assert per_byte is not None
    assert latency_s is not None
    expected = np.zeros(len(first))
    for stage in range(len(first)):
        received, sent = [0.0], [0.0]
        for value, producer in enumerate(problem.edge_producer):
            readers = problem.edge_readers[problem.edge_starts[value] : problem.edge_starts[value + 1]]
            mine = np.flatnonzero(placement == placement[stage])
            made_in = mine[(first[mine] <= producer) & (producer < end[mine])][0]
            read_in = [s for s in mine if s != made_in and np.any((first[s] <= readers) & (readers < end[s]))]
            size_bytes = problem.edge_bytes[value]
            if stage in read_in and size_bytes > 0:
                expected[stage] += size_bytes * per_byte[types[stage], types[made_in]]
                received.append(float(latency_s[types[stage], types[made_in]]))
            if stage == made_in and read_in and size_bytes > 0:
                expected[stage] += size_bytes * max(per_byte[types[stage], types[s]] for s in read_in)
                sent += [float(latency_s[types[stage], types[s]]) for s in read_in]
        expected[stage] += max(received) + max(sent)
    links = link_traffic(problem)
    assert links is not None
    paid_s = links.seconds(placement, first, end, types)
    assert paid_s == pytest.approx(expected, rel=1e-12)
    assert paid_s.max() > 0
