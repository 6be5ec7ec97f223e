"""Rules are read and printed by the types of their fields; what they move is what their messages carry, counted."""

from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest

from heterps_compile.errors import HeterpsError, InputError, PlugInError, UnknownNameError
from heterps_compile.sync_rules import rules
from heterps_compile.sync_rules.adasum import Adasum
from heterps_compile.sync_rules.all_reduce_rule import AllReduce
from heterps_compile.sync_rules.assignment import LayerWords, parse_assignment, parse_rule
from heterps_compile.sync_rules.local_steps import LocalSteps
from heterps_compile.sync_rules.network import Network
from heterps_compile.sync_rules.rule import (
    OWN,
    REFUSED,
    SUMMED,
    FlatBuffer,
    SyncGroup,
    SyncRule,
    TensorShape,
    allowed_classes,
    left_uncounted,
)
from heterps_compile.sync_rules.rule_text import rule_text
from heterps_compile.sync_rules.rules import RULES, find_rule
from heterps_compile.sync_rules.shadow import Shadow
from heterps_compile.sync_rules.through_servers import Servers
from heterps_compile.sync_rules.topk import TopK

SLOW = Network(1e-9, 1e-5)
FOUR_A_MACHINE = Network(1e-9, 1e-5, 4, 1e-11, 1e-6)


def group(replicas: int, elements: int = 1000, network: Network = SLOW) -> SyncGroup:
    return SyncGroup(replicas, (FlatBuffer(elements),), (FlatBuffer(elements),), 3, network)


@pytest.mark.parametrize(
    ("text", "rule", "exactness"),
    [
        ("all-reduce", AllReduce(), "exact"),
        ("topk(density=0.01)", TopK(0.01), "bounded"),
        ("topk(density=0.01, selection=exact, feedback=false)", TopK(0.01, "exact", feedback=False), "any"),
        ("adasum", Adasum(), "any"),
        ("shadow(every=5)", Shadow(5), "any"),
        ("shadow(every=1, rule=bmuf)", Shadow(1, "bmuf"), "any"),
        ("servers", Servers(), "exact"),
        ("servers(staleness=4)", Servers(4), "bounded"),
        ("local(steps=8)", LocalSteps(8), "bounded"),
        ("local(steps=8, rule=mm, blocks=5, block_steps=16)", LocalSteps(8, "mm", 5, 16), "any"),
    ],
)
def test_a_rule_is_read_printed_and_has_a_class(text, rule, exactness):
    assert parse_rule(text) == rule
    assert rule_text(rule) == text
    assert rule.exactness == exactness


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topk", r"needs.*topk\(density=0.01"),
        ("topk(density=0)", r"\b0\b.*\b0\b.*\b1\b"),
        ("topk(density=1.5)", "density.*1.5"),
        ("topk(density=nan)", "'nan'"),
        ("topk(densty=0.1)", "'densty'.*'density'"),
        ("topk(density=0.1, density=0.2)", "option 'density'"),
        ("topk(density=0.1, selection=treshold)", "'threshold'"),
        ("topk(density=0.1, feedback=yes)", "'yes'"),
        ("topk(0.1)", "'0.1'.*NAME=VALUE"),
        ("topk(density=0.1", r"topk\(density=0.1\W"),
        ("tokp(density=0.1)", "'tokp'.*'topk'"),
        ("all-reduce(fast=true)", "'fast'"),
        ("servers(staleness=-1)", r"-1.*\b0\b"),
        ("servers(staleness=" + "9" * 40 + ")", "whole"),
        ("shadow(every=0)", r"shadow.*\b0\b.*\b1\b"),
        ("local(steps=0)", r"steps.*\b0\b.*\b1\b"),
        ("\x1b[31m", r"'\\x1b\[31m'"),
        ("topk(density=٣)", "NAME=VALUE"),
    ],
)
def test_text_that_is_no_rule_is_refused_with_the_way_out(text, message):
    with pytest.raises(HeterpsError, match=message):
        parse_rule(text)


def test_a_limit_allows_its_class_and_what_keeps_more():
    assert [allowed_classes(most) for most in ("exact", "bounded", "any")] == [
        ("exact",),
        ("exact", "bounded"),
        ("exact", "bounded", "any"),
    ]


def ring(replicas: int, parts: list[int]) -> int:
    """Send every part from its owner around a ring once, and count the bytes on all edges."""
    return sum(part for part in parts for _ in range(replicas - 1))


@pytest.mark.parametrize("replicas", [2, 3, 5, 8])
def test_an_all_reduce_sends_what_its_parts_carry(replicas):
    parts = [4 * len(range(at, 1000, replicas)) for at in range(replicas)]  # uneven where k does not divide n
    assert AllReduce().exchange(group(replicas)).sent_bytes == 2 * ring(replicas, parts)


@pytest.mark.parametrize("replicas", [2, 3, 5, 8])
def test_topk_sends_what_its_pairs_carry(replicas):
    pairs = [8 * 10] * replicas
    found = TopK(0.01).exchange(group(replicas))
    assert found.sent_bytes == ring(replicas, pairs) == replicas * (replicas - 1) * 80
    assert found.time_s == pytest.approx((replicas - 1) * (80e-9 + 1e-5))


def test_topk_sends_one_value_of_few():
    assert [TopK(0.01).kept(n) for n in (1, 49, 50, 150, 1000)] == [1, 1, 1, 2, 10]


def test_in_machines_of_four_only_the_card_is_spared():
    of = group(64, 1_000_000, FOUR_A_MACHINE)
    dense, sparse = AllReduce().exchange(of), TopK(0.01).exchange(of)
    assert dense.card_bytes / sparse.card_bytes == pytest.approx(6.25)
    inside = 2 * 48 * 4_000_000  # 16 machines of 4: each reduces and gathers 3 x 4 MB twice
    assert (dense.sent_bytes, sparse.sent_bytes) == (inside + 2 * 15 * 4_000_000, inside + 16 * 15 * 80_000)
    assert dense.time_s == FOUR_A_MACHINE.all_reduce_s(4_000_000, 64)


def test_local_steps_and_shadow_share_an_exchange_out_over_their_steps():
    of, dense = group(4), AllReduce().exchange(group(4))
    assert LocalSteps(4).sent_bytes_a_step(of) == dense.sent_bytes / 4 / 4
    assert LocalSteps(4).exposed(of).time_s == pytest.approx(dense.time_s / 4)
    assert Shadow(5).exposed(of).time_s == 0
    assert Shadow(5).sent_bytes_a_step(of) == dense.sent_bytes / 4 / 5


def test_memory_that_rules_take_besides():
    of = group(4)
    taken = {text: parse_rule(text).extra_bytes(of) for text in (
        "all-reduce", "topk(density=0.1)", "topk(density=0.1, feedback=false)", "shadow(every=1, rule=average)",
        "local(steps=2)",
    )}  # fmt: skip
    pairs = 4 * 8 * 100  # of all four replicas
    assert list(taken.values()) == [0, 4000 + pairs, pairs, 3 * 4000, 4000]


@pytest.mark.parametrize("rule", [AllReduce(), TopK(0.01), Adasum(), Shadow(2), Servers(), LocalSteps(2)])
def test_one_replica_and_a_stage_without_gradients_exchange_nothing(rule):
    for alone in (group(1), group(3, 0)):
        assert rule.exchange(alone).sent_bytes == 0
        assert rule.exposed(alone).time_s == 0
        assert rule.extra_bytes(alone) == 0


@pytest.mark.parametrize(
    ("buffer", "pair_bytes"), [(FlatBuffer(100), 8), (FlatBuffer(100, 2), 6), (FlatBuffer(2**31), 12)]
)
def test_a_pair_has_the_bytes_of_its_value_and_of_an_index_that_is_long_enough(buffer, pair_bytes):
    assert TopK(0.01).pairs_bytes(buffer) == pair_bytes * TopK(0.01).kept(buffer.elements)


STAGES = (
    (LayerWords("/emb/Gather", "embedding", "data"),),
    (LayerWords("/fc1/MatMul", "linear", "compute"), LayerWords("/fc2/MatMul", "linear", "data")),
    (LayerWords("a, b=(c)", "linear", "compute"),),
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("all-reduce", "all-reduce all-reduce all-reduce"),
        ("adasum", "adasum adasum adasum"),
        ("embedding=servers(staleness=4), *=topk(density=0.01)", "servers topk topk"),
        ("*=adasum, embedding=servers", "adasum adasum adasum"),
        ("stage 1=adasum", "all-reduce adasum all-reduce"),
        ("data-intensive=adasum", "adasum adasum all-reduce"),
        ("/fc*=adasum", "all-reduce adasum all-reduce"),
        ("/fc2/MatMul=adasum", "all-reduce adasum all-reduce"),
        ('"a, b=(c)"=adasum,linear=local(steps=2)', "all-reduce local adasum"),
        ("parameter-server", "servers servers servers"),
    ],
)
def test_the_first_entry_that_matches_is_a_stages_rule(text, names):
    found = parse_assignment(text)
    assert " ".join(rule.name for rule in found.of_stages(STAGES)) == names
    assert parse_assignment(str(found)) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "end.*rule"),
        ("adasum topk", "'topk'"),
        ("=adasum", "'=adasum'"),
        ("linear=embedding=adasum", "'embedding'|comma"),
        ('"\\q"=adasum', r"'\\\\q'"),
        ('""=adasum', "'='"),
        ("adasum, " * 2000 + "adasum", "1000"),
        ("x" * 200_000, "200,000"),
        ("topk(density=(0.1))", "comma"),
    ],
)
def test_text_that_is_no_list_of_rules_is_refused(text, message):
    with pytest.raises(HeterpsError, match=message):
        parse_assignment(text)


@pytest.mark.parametrize(
    ("pattern", "near"), [("embeding", "embedding"), ("stage 7", "stage 2"), ("/fc3/MatMul", "/fc1/MatMul")]
)
def test_a_pattern_that_matches_nothing_is_refused_with_the_nearest_name(pattern, near):
    with pytest.raises(UnknownNameError, match=rf"'{near}'|'/fc2/MatMul'|'stage [01]'"):
        parse_assignment(f"{pattern}=adasum").of_stages(STAGES)


@dataclass(frozen=True)
class Half(SyncRule):
    """A third party's."""

    part: float = 0.5
    name = "half"
    example = "half(part=0.5)"

    @property
    def exactness(self):
        return "any"

    def exchange(self, group):
        return AllReduce().exchange(group)


@dataclass(frozen=True)
class Broken(Half):
    """One that fails with its options."""

    def __post_init__(self):
        raise ValueError(f"part {self.part}\nis broken")


class NoRule:
    name = "half"


def plug_in(monkeypatch, what: str) -> None:
    entry = EntryPoint("half", f"{__name__}:{what}", rules.ENTRY_POINT_GROUP)
    monkeypatch.setattr(rules, "entry_points", lambda *, group: [entry] if group == rules.ENTRY_POINT_GROUP else [])


def test_a_third_partys_rule_is_found_by_its_entry_point(monkeypatch):
    plug_in(monkeypatch, "Half")
    rule = parse_rule("half(part=0.25)")
    assert (type(rule).__name__, rule_text(rule)) == ("Half", "half(part=0.25)")


def test_a_third_partys_rule_that_fails_is_told_as_theirs(monkeypatch):
    plug_in(monkeypatch, "Broken")
    with pytest.raises(PlugInError, match=r"'half'.*ValueError.*0\.5.*broken"):
        parse_rule("half")


def test_a_third_partys_rule_that_is_none_is_told_as_theirs(monkeypatch):
    plug_in(monkeypatch, "NoRule")
    with pytest.raises(PlugInError, match="SyncRule"):
        find_rule("half")


def test_every_rule_is_in_the_table_by_its_name_and_its_example_is_read():
    for name, rule in RULES.items():
        assert rule.name == name
        assert parse_rule(rule.example).name == name


def test_rules_check_what_python_gives_them():
    with pytest.raises(InputError, match="density"):
        TopK(2.0)


def test_what_times_leave_out_is_told_once_whatever_stages_have_the_rule():
    powersgd = parse_rule("powersgd(rank=2)")
    assert powersgd.uncounted
    assert left_uncounted([TopK(0.01), powersgd, AllReduce(), powersgd]) == [powersgd.uncounted]
    assert left_uncounted([TopK(0.01), AllReduce()]) == []


def test_powersgd_sums_what_is_no_thin_product_as_it_is():
    """A square of 1000 as two factors of 2000 elements; a bias, and what factors would not make smaller, whole."""
    shapes = tuple(TensorShape(shape) for shape in ((1000, 1000), (888,), (3, 3)))
    flat = (FlatBuffer(1000 * 1000 + 888 + 9),)
    rule = parse_rule("powersgd(rank=2, feedback=false)")
    summed_bytes = 4 * (2 * 1000 + 2 * 1000 + 888 + 9)
    assert rule.extra_bytes(SyncGroup(2, flat, flat, 3, SLOW, shapes)) == summed_bytes
    assert rule.exchange(SyncGroup(2, flat, flat, 3, SLOW, shapes)).sent_bytes == 2 * summed_bytes


@pytest.mark.parametrize(("text", "becomes"), [("adasum", REFUSED), ("adasum(on=step)", OWN), ("all-reduce", SUMMED)])
def test_what_becomes_of_sparse_gradients(text, becomes):
    assert parse_rule(text).of_sparse == becomes
