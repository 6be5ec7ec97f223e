"""What adasum sends by recursive halving, followed message by message."""

import pytest

from heterps_compile.sync_rules.adasum import Adasum
from heterps_compile.sync_rules.network import Network
from heterps_compile.sync_rules.rule import FlatBuffer, SyncGroup

ELEMENTS, TENSORS = 999, 3
SIZE, PRODUCTS = 4 * ELEMENTS, 24 * TENSORS


def messages(replicas: int) -> list[tuple[int, int, int]]:
    """Return source, target and bytes of every message; halves of what has an odd count are uneven."""
    power = 1 << (replicas.bit_length() - 1)
    found = [(place, place - power, SIZE) for place in range(power, replicas)]
    parts, distance = dict.fromkeys(range(power), ELEMENTS), 1
    while distance < power:
        after = {}
        for place, part in parts.items():
            first = part // 2
            after[place] = first if not place & distance else part - first
            found += [(place, place ^ distance, 4 * (part - after[place]))]  # there
            found += [(place, place ^ distance, 4 * after[place])]  # and back
            found += [(place, place ^ 1 << bit, PRODUCTS) for bit in range(distance.bit_length())]
        parts, distance = after, 2 * distance
    return found + [(place - power, place, SIZE) for place in range(power, replicas)]


@pytest.mark.parametrize("units", [1, 2, 3, 4])
@pytest.mark.parametrize("replicas", [2, 3, 4, 5, 7, 8, 16])
def test_what_is_planned_is_what_messages_carry(replicas, units):
    network = Network(1e-9, 1e-5, units, 1e-12, 1e-6)
    buffer = (FlatBuffer(ELEMENTS),)
    planned = Adasum().exchange(SyncGroup(replicas, buffer, buffer, TENSORS, network))
    sent = messages(replicas)
    assert planned.sent_bytes == sum(size for _, _, size in sent)
    cards = dict.fromkeys(range(-(-replicas // units)), 0)
    for source, target, size in sent:
        cards[source // units] += size * (source // units != target // units)
    assert planned.card_bytes == pytest.approx(max(cards.values()), abs=replicas * 4 * 4)


def test_a_power_of_two_sends_what_a_ring_does_and_the_products():
    buffer = (FlatBuffer(1024),)
    network = Network(1e-9, 1e-5)
    found = Adasum().exchange(SyncGroup(8, buffer, buffer, 1, network))
    assert found.sent_bytes == 2 * 7 * 4096 + 8 * 24 * (1 + 2 + 3)
    assert found.bytes_s == pytest.approx((2 * 7 / 8 * 4096 + 24 * 6) * 1e-9)
    assert found.hops_s == pytest.approx((2 * 3 + 6) * 1e-5)
    folded = Adasum().exchange(SyncGroup(9, buffer, buffer, 1, network))
    assert folded.bytes_s == pytest.approx(found.bytes_s + 2 * 4096e-9)
    assert folded.sent_bytes - found.sent_bytes == 2 * 4096


def test_memory_is_what_arrives_and_the_weights_before_a_step():
    buffer, weights = (FlatBuffer(100),), (FlatBuffer(150),)
    assert Adasum().extra_bytes(SyncGroup(4, buffer, weights)) == 200
    assert Adasum().extra_bytes(SyncGroup(5, buffer, weights)) == 400
    assert Adasum("step").extra_bytes(SyncGroup(4, buffer, weights)) == 300 + 600
