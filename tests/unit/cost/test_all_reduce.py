"""The all-reduce against closed forms: one ring, and machines whose units share a card."""

import numpy as np
import pytest

from heterps_compile.cost.all_reduce import Machines
from heterps_compile.sync_rules.network import Network, endless_s, ring_share

GIGABYTE_A_SECOND = Network(1e-9)


@pytest.mark.parametrize(
    ("size_bytes", "replicas", "bytes_per_s", "seconds"),
    [(1e9, 1, 1e9, 0.0), (1e9, 2, 1e9, 1.0), (1e9, 4, 1e9, 1.5), (1e9, 4, 2e9, 0.75), (0.0, 4, 1e9, 0.0)],
)
def test_every_byte_is_sent_twice_but_for_the_part_that_is_there(size_bytes, replicas, bytes_per_s, seconds):
    assert Network(1 / bytes_per_s).all_reduce_s(size_bytes, replicas) == pytest.approx(seconds)


def test_messages_follow_one_another():
    network = Network(1e-9, 1e-3)
    assert network.hops_s(4) == pytest.approx(6e-3)
    assert network.all_reduce_s(1e9, 4) == pytest.approx(1.5 + 6e-3)
    assert network.all_reduce_s(0.0, 4) == 0.0


def test_ever_more_replicas_take_the_whole():
    assert endless_s(1e9, 1e-9) == pytest.approx(GIGABYTE_A_SECOND.all_reduce_s(1e9, 10**9))
    assert ring_share(np.array([1.0, 2.0, 4.0])).tolist() == [0.0, 0.5, 0.75]


@pytest.mark.parametrize(
    ("replicas", "seconds"),
    [(1, 0.0), (2, 2 * 0.1 / 2), (4, 2 * 0.1 * 3 / 4), (5, 2 * 0.1 * 3 / 4 + 1.0), (16, 2 * 0.1 * 3 / 4 + 1.5)],
)
def test_units_of_a_machine_sum_inside_and_machines_through_their_cards(replicas, seconds):
    """Four a machine; 1 GB takes 0.1 s inside and 1 s through a card."""
    machines = Network(1e-9, 1e-3, units_per_machine=4, inner_seconds_per_byte=1e-10, inner_latency_s=1e-6)
    hops_s = 2 * (min(replicas, 4) - 1) * 1e-6 + 2 * (-(-replicas // 4) - 1) * 1e-3
    assert machines.all_reduce_s(1e9, replicas) == pytest.approx(seconds + hops_s)
    share = Machines(np.array([4.0]), np.array([0.1])).share(np.array([float(replicas)]))
    assert share * endless_s(1e9, 1e-9) == pytest.approx(seconds)


def test_machines_of_one_unit_are_a_ring():
    counts = np.arange(1.0, 20.0)
    assert Machines(np.array([1.0]), np.array([0.3])).share(counts) == pytest.approx(ring_share(counts))
