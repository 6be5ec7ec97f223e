"""Positions and segments of small chains, with the answers in sight."""

from dataclasses import replace

import numpy as np
import pytest
from small_problems import plain_problem

from heterps_compile.cost.problem import Problem
from heterps_compile.passes.placement.geometry import Chain, Segments
from heterps_compile.passes.placement.proof.linked_chain import LinkedChain, has_near_readers, linked_segment_count


def listed(segments: Segments) -> list[str]:
    return [f"{a}-{c} on {t}" for a, c, t in zip(segments.first, segments.end, segments.type, strict=True)]


def test_a_chain_of_two_layers_has_three_segments_a_type() -> None:
    chain = Chain(plain_problem([[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0]))
    segments = chain.all_segments()
    assert listed(segments) == ["0-1 on 0", "0-1 on 1", "0-2 on 0", "0-2 on 1", "1-2 on 0", "1-2 on 1"]
    assert segments.demand.once_s.tolist() == [1, 2, 4, 6, 3, 4]
    assert chain.segment_count == 6


def test_layers_that_no_stage_may_part_are_one_block() -> None:
    chain = Chain(plain_problem([[1.0], [2.0], [4.0]], [1.0], uncuttable=np.array([False, True, False, False])))
    assert chain.borders.tolist() == [0, 2, 3]
    assert listed(chain.all_segments()) == ["0-1 on 0", "0-2 on 0", "1-2 on 0"]


def test_a_type_that_may_not_run_a_layer_has_no_segment_with_it() -> None:
    allowed = np.array([[True, True], [True, False]])
    chain = Chain(plain_problem([[1.0, 1.0], [1.0, 1.0]], [1.0, 1.0], allowed=allowed))
    assert listed(chain.all_segments()) == ["0-1 on 0", "0-1 on 1", "0-2 on 0", "1-2 on 0"]
    assert chain.usable_blocks().tolist() == [[True, True], [True, False]]


def test_a_segment_that_does_not_fit_is_none() -> None:
    chain = Chain(
        plain_problem([[1.0], [1.0]], [1.0], weight_bytes=np.array([6.0, 5.0]), memory_bytes=np.array([10.0]))
    )
    assert listed(chain.all_segments()) == ["0-1 on 0", "1-2 on 0"]
    asked = (np.array([1, 0, 0]), np.array([2, 2, 1]), np.array([0, 0, 0]))
    assert listed(chain.segments_at(*asked)) == ["0-1 on 0", "1-2 on 0"]


def test_time_at_the_storage_behind_the_replicas_adds_up_along_a_segment() -> None:
    problem = replace(plain_problem([[1.0], [1.0]], [1.0]), shared_s=np.array([[2.0], [3.0]]))
    least_s = Chain(problem).all_segments().demand.least_s
    assert least_s is not None
    assert least_s.tolist() == [2, 5, 3]


def test_a_path_is_a_placement_whose_cuts_are_where_the_type_stays() -> None:
    chain = Chain(plain_problem([[1.0, 1.0]] * 4, [1.0, 1.0]))
    one, two, three = (np.array(places) for places in ([0, 1, 3], [1, 3, 4], [1, 1, 0]))
    placement = chain.placement(chain.segments_at(one, two, three))
    assert placement.types == (1, 1, 1, 0)
    assert placement.cuts == (1,)


def linked_pair(**changes: object) -> Problem:
    """Two layers with 10 bytes between them; type 0 talks with itself at 1 s a byte, with type 1 at 3 s."""
    return replace(
        plain_problem([[1.0, 1.0], [1.0, 1.0]], [1.0, 1.0], edge_bytes=np.array([10.0])),
        seconds_per_byte=np.array([1.0, 2.0]),
        link_seconds_per_byte=np.array([[1.0, 3.0], [3.0, 2.0]]),
        link_latency_s=np.zeros((2, 2)),
        **changes,  # type: ignore[arg-type]  # fields of a problem
    )


def test_where_pairs_of_types_have_links_a_segment_is_listed_for_every_pair_around_it() -> None:
    chain = LinkedChain(Chain(linked_pair()))
    segments = chain.all_segments()
    assert chain.is_exact
    assert len(segments) == linked_segment_count(Chain(linked_pair())) == 2 + 2 * 4
    begins = segments.keep((segments.first == 0) & (segments.end < chain.length))
    moved_s = begins.demand.fixed_data_s + begins.demand.shared_data_s
    assert sorted(zip(begins.type.tolist(), moved_s.tolist(), strict=True)) == [(0, 10), (0, 30), (1, 20), (1, 30)]


def test_a_value_that_skips_a_block_is_read_far_away() -> None:
    three = plain_problem([[1.0]] * 3, [1.0], edge_bytes=np.array([1.0, 1.0]))
    assert has_near_readers(Chain(three))
    assert not has_near_readers(
        Chain(replace(three, edge_readers=np.array([1, 2, 2]), edge_starts=np.array([0, 2, 3])))
    )


def test_no_segments_are_made_where_none_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Chain, "all_segments")  # of a long chain they fill the memory
    nowhere = np.zeros(0, np.int64)
    assert listed(Chain(plain_problem([[1.0, 2.0]] * 3, [1.0, 1.0])).segments_at(nowhere, nowhere, nowhere)) == []
