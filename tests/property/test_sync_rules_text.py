"""Rules print as text that reads back as the same rules, whatever options and patterns are; nonsense is refused."""

import string

from hypothesis import given
from hypothesis import strategies as st

from heterps_compile.errors import HeterpsError
from heterps_compile.sync_rules.adasum import Adasum
from heterps_compile.sync_rules.adsaga import Adsaga
from heterps_compile.sync_rules.all_reduce_rule import AllReduce
from heterps_compile.sync_rules.assignment import Assignment, LayerWords, RuleEntry, parse_assignment, parse_rule
from heterps_compile.sync_rules.local_steps import LocalSteps
from heterps_compile.sync_rules.network import Network
from heterps_compile.sync_rules.rule import EXACTNESSES, FlatBuffer, SyncGroup
from heterps_compile.sync_rules.rule_text import rule_text
from heterps_compile.sync_rules.shadow import Shadow
from heterps_compile.sync_rules.through_servers import Servers
from heterps_compile.sync_rules.topk import TopK

COUNTS = st.integers(1, 10**15)
RULES = st.one_of(
    st.just(AllReduce()),
    st.builds(
        TopK,
        st.floats(0, 1, exclude_min=True, allow_nan=False),
        st.sampled_from(["threshold", "exact"]),
        feedback=st.booleans(),
    ),
    st.builds(Adasum, st.sampled_from(["gradient", "step"])),
    st.builds(Shadow, COUNTS, st.sampled_from(["easgd", "average", "bmuf"])),
    st.builds(Servers, st.integers(0, 10**15)),
    st.builds(LocalSteps, COUNTS),
    st.builds(
        lambda steps, rule, blocks, rounds, skip: LocalSteps(steps, rule, blocks, steps * rounds, skip),
        COUNTS,
        st.sampled_from(["mm", "mc"]),
        st.integers(2, 10_000),
        st.integers(1, 1000),
        st.integers(0, 1000),
    ),
    st.builds(Adsaga, st.integers(65, 10**9), st.integers(0, 64)),
)
PATTERNS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(str.strip)
SIGNS = st.text(st.sampled_from(string.ascii_letters + string.digits + '()=,"*\\ -._\x00\x1b'), max_size=60)


@given(RULES)
def test_a_rule_reads_back(rule):
    assert parse_rule(rule_text(rule)) == rule
    assert rule.exactness in EXACTNESSES


@given(st.lists(st.builds(RuleEntry, PATTERNS, RULES), min_size=1, max_size=5))
def test_rules_of_stages_read_back(entries):
    assignment = Assignment(tuple(entries))
    again = parse_assignment(str(assignment))
    assert str(again) == str(assignment)
    layers = [[LayerWords(entry.pattern, "gemm")] for entry in entries]
    assert again.of_stages(layers, is_strict=False) == assignment.of_stages(layers, is_strict=False)


def read(text: str) -> tuple[Assignment | None, str]:
    try:
        return parse_assignment(text), ""
    except HeterpsError as error:
        return None, str(error)


@given(SIGNS | st.text(max_size=60))
def test_text_is_read_or_refused(text):
    found, fault = read(text)
    assert fault.isprintable()
    if found is not None:
        assert parse_assignment(str(found)) == found


@given(RULES, st.integers(1, 64), st.integers(1, 10**7), st.integers(1, 8))
def test_what_a_rule_moves_takes_and_holds_is_never_negative_nor_lost(rule, replicas, elements, units):
    network = Network(1e-9, 1e-5, units, 1e-11, 1e-6)
    group = SyncGroup(replicas, (FlatBuffer(elements),), (FlatBuffer(elements),), 1, network)
    exchange, exposed = rule.exchange(group), rule.exposed(group)
    assert isinstance(exchange.sent_bytes, int)
    assert 0 <= exchange.card_bytes <= max(exchange.sent_bytes, 1)
    rounded_s = 8e-9 * group.machines if isinstance(rule, TopK) else 0.0  # a value, which times do not round
    assert 0 <= exposed.time_s <= exchange.time_s + rounded_s
    assert rule.extra_bytes(group) >= 0
    assert (exchange.sent_bytes > 0) == (replicas > 1)
