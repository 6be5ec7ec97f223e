"""Rules of synchronisation in process groups, on gradients whose result is known."""

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from plain_rules import combine_all
from ranks import run_ranks
from torch import Tensor, nn

from heterps_compile.errors import PlugInError, RunError
from heterps_compile.runtime.pipeline.world import make_group
from heterps_compile.runtime.sync import find
from heterps_compile.runtime.sync.capabilities import Capabilities
from heterps_compile.runtime.sync.collective import Collective, CountedGroup
from heterps_compile.runtime.sync.contract import Flat, Rule, Shared
from heterps_compile.runtime.sync.find import GROUP, capabilities_of, find_runtime, make_rule
from heterps_compile.sync_rules.assignment import parse_rule
from heterps_compile.sync_rules.rule import (
    NOTHING,
    OWN,
    REFUSED,
    SUMMED,
    Exactness,
    Exchange,
    FlatBuffer,
    SyncGroup,
    SyncRule,
)

LENGTHS = 40, 57
LENGTH = sum(LENGTHS)
STEPS = 4
COUNTS = 3, pytest.param(2, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)
RULES = (
    "all-reduce",
    "topk(density=0.1)",
    "topk(density=0.1, selection=exact)",
    "topk(density=0.07, feedback=false)",
    "topk(density=1)",
    "adasum",
)
ORTHOGONAL, EQUAL, INFINITE = "orthogonal", "equal", "infinite"


def names() -> tuple[str, ...]:
    return tuple(f"p{place}" for place in range(len(LENGTHS)))


def share_of(place: int, count: int) -> float:
    """Return unequal shares: the first of three ranks has half of the micro-batches, the others the rest."""
    return 0.5 if place == 0 else 0.5 / (count - 1)


def gradient_of(place: int, step: int) -> Tensor:
    return torch.randn(LENGTH, generator=torch.Generator().manual_seed(100 * step + place))


def rule_of(text: str, group: Collective, place: int, *, is_scaled: bool = False) -> tuple[Rule, CountedGroup, Flat]:
    counted = CountedGroup(group, place)
    parameters = {name: nn.Parameter(torch.zeros(size)) for name, size in zip(names(), LENGTHS, strict=True)}
    share = share_of(place, len(group.ranks))
    rule = make_rule(parse_rule(text), Shared(counted, place, parameters, share, is_scaled))
    flat = Flat(torch.zeros(LENGTH), names(), tuple(torch.Size([size]) for size in LENGTHS))
    rule.prepare([flat])
    return rule, counted, flat


def combine(rule: Rule, flat: Flat, gradient: Tensor, *, scale: float = 1.0, is_skipped: bool = False) -> Tensor:
    flat.tensor.copy_(gradient)
    rule.after_backward([flat], scale)
    rule.finish()
    rule.after_step(0, is_skipped=is_skipped)
    return flat.tensor.clone()


def residual(rule: Rule) -> Tensor | None:
    parts = rule.state()
    return torch.cat([parts[f"residual:{name}"] for name in names()]) if parts else None


def special(kind: str, place: int, count: int) -> Tensor:
    """Return a rank's mean gradient."""
    if kind == EQUAL:
        return gradient_of(0, 0)
    own = torch.zeros(LENGTH)
    own[place::count] = gradient_of(place, 0)[place::count]  # no two ranks have an entry in common
    return own


def in_group(rank: int, count: int) -> dict[str, Any]:
    group = make_group(range(count))
    found: dict[str, Any] = {}
    for text in RULES:
        rule, counted, flat = rule_of(text, group, rank)
        steps = []
        for step in range(STEPS):
            gradient = gradient_of(rank, step)
            combined = combine(rule, flat, gradient)
            steps.append((gradient, combined, residual(rule)))
        found[text] = steps, counted.sent_bytes
    for kind in (ORTHOGONAL, EQUAL):
        rule, _, flat = rule_of("adasum", group, rank)
        found[kind] = combine(rule, flat, special(kind, rank, count) * share_of(rank, count))
    found[INFINITE] = skipping(group, rank)
    found["restored"] = restoring(group, rank)
    return as_arrays(found)


def as_arrays(value: Any, *, back: bool = False) -> Any:
    """Return a value with arrays in place of tensors, which do not outlive their process; or with tensors again."""
    if isinstance(value, dict):
        return {key: as_arrays(one, back=back) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(as_arrays(one, back=back) for one in value)
    if isinstance(value, Tensor):
        return value.numpy()
    return torch.from_numpy(value) if back and isinstance(value, np.ndarray) else value


def skipping(group: Collective, rank: int) -> tuple[Tensor | None, Tensor, Tensor | None, Tensor, Tensor]:
    """Return what topk keeps before, sends in and keeps after a step that overflows on the last rank; and scaled."""
    rule, _, flat = rule_of("topk(density=0.1)", group, rank, is_scaled=True)
    combine(rule, flat, gradient_of(rank, 0) * 8, scale=8.0)
    before = residual(rule)
    gradient = gradient_of(rank, 1)
    if rank == group.ranks[-1]:
        gradient[7] = math.inf
    combined = combine(rule, flat, gradient * 8, scale=8.0, is_skipped=True)
    after = residual(rule)
    halved = combine(rule, flat, gradient_of(rank, 1) * 4, scale=4.0)
    plain, _, flat = rule_of("topk(density=0.1)", group, rank)
    combine(plain, flat, gradient_of(rank, 0))
    return before, combined, after, halved / 4, combine(plain, flat, gradient_of(rank, 1))


def restoring(group: Collective, rank: int) -> dict[str, Tensor]:
    """Return the third step of topk, of it with its state in a new rule, and what all-reduce makes of that state."""
    rule, _, flat = rule_of("topk(density=0.1)", group, rank)
    for step in range(2):
        combine(rule, flat, gradient_of(rank, step))
    kept = {key: tensor.clone() for key, tensor in rule.state().items()}
    found = {"went on": combine(rule, flat, gradient_of(rank, 2)), "kept": torch.cat(list(kept.values()))}
    for text in ("topk(density=0.1)", "all-reduce"):
        counted = CountedGroup(group, rank)
        again = make_rule(parse_rule(text), Shared(counted, rank, {}, share_of(rank, len(group.ranks))))
        again.load_state(kept)
        again.prepare([flat])
        found[text] = combine(again, flat, gradient_of(rank, 2))
        found[f"{text} next"] = combine(again, flat, gradient_of(rank, 3))
    return found


@pytest.fixture(scope="module", params=COUNTS)
def ranks(request) -> list[dict[str, Any]]:
    return as_arrays(run_ranks(in_group, request.param, request.param), back=True)


def test_every_rank_has_the_same_bits_after_every_rule(ranks):
    for text in RULES:
        first, *others = ([combined for _, combined, _ in of_rank[text][0]] for of_rank in ranks)
        for other in others:
            assert all(map(torch.equal, first, other)), text


def test_all_reduce_sums_and_topk_of_everything_is_the_same(ranks):
    for step in range(STEPS):
        expected = sum(gradient_of(place, step) for place in range(len(ranks)))
        for text in ("all-reduce", "topk(density=1)"):
            assert torch.allclose(ranks[0][text][0][step][1], expected, rtol=1e-6, atol=1e-6), text


@pytest.mark.parametrize("text", ["topk(density=0.1)", "topk(density=0.1, selection=exact)"])
def test_what_topk_sends_and_what_it_keeps_are_the_gradient_to_the_bit(ranks, text):
    k = round(0.1 * LENGTH)
    before = [torch.zeros(LENGTH)] * len(ranks)
    for step in range(STEPS):
        sent = torch.zeros(LENGTH)
        for place, of_rank in enumerate(ranks):
            gradient, _, kept = of_rank[text][0][step]
            accumulated = gradient + before[place]
            mine = accumulated - kept
            assert torch.equal(mine + kept, accumulated)
            assert int((kept == 0).sum()) == int(mine.count_nonzero()) == k
            assert kept.abs().max() <= mine[mine != 0].abs().min()
            sent += mine
            before[place] = kept
        assert torch.equal(ranks[0][text][0][step][1], sent)


def test_with_feedback_nothing_is_lost_over_many_steps_and_without_it_is(ranks):
    whole = sum(gradient_of(place, step) for place in range(len(ranks)) for step in range(STEPS))
    moved = {text: sum(combined for _, combined, _ in ranks[0][text][0]) for text in RULES}
    kept = sum(of_rank["topk(density=0.1)"][0][-1][2] for of_rank in ranks)
    assert torch.allclose(moved["topk(density=0.1)"] + kept, whole, atol=1e-5)
    assert ranks[0]["topk(density=0.07, feedback=false)"][0][-1][2] is None
    assert (moved["topk(density=0.07, feedback=false)"] - whole).abs().max() > 1


def test_adasum_adds_orthogonal_gradients_and_averages_equal_ones_whatever_the_shares(ranks):
    count = len(ranks)
    total = sum(special(ORTHOGONAL, place, count) for place in range(count))
    for of_rank in ranks:
        assert torch.allclose(of_rank[ORTHOGONAL], total, atol=1e-6)
        assert torch.allclose(of_rank[EQUAL], gradient_of(0, 0), atol=1e-6)


def test_adasum_combines_the_means_of_replicas_as_the_tree_over_whole_tensors_does(ranks):
    count = len(ranks)
    for step in range(STEPS):
        means = [gradient_of(place, step) / share_of(place, count) for place in range(count)]
        expected = combine_all(means, LENGTHS)
        assert torch.allclose(ranks[0]["adasum"][0][step][1], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("text", RULES)
def test_bytes_that_are_counted_are_those_of_the_rules_formula(ranks, text):
    buffers = (FlatBuffer(LENGTH),)
    expected = parse_rule(text).exchange(SyncGroup(len(ranks), buffers, buffers, len(LENGTHS))).sent_bytes
    assert sum(of_rank[text][1] for of_rank in ranks) == STEPS * expected
    assert expected > 0


def test_a_step_that_overflows_somewhere_is_seen_by_all_and_leaves_what_is_kept(ranks):
    for of_rank in ranks:
        before, combined, after, halved, plain = of_rank[INFINITE]
        assert not combined.isfinite().all()
        assert torch.equal(before, after)
        assert torch.equal(halved, plain)


def test_a_state_goes_on_in_another_object_and_all_reduce_adds_it_once(ranks):
    whole = sum(gradient_of(place, 2) for place in range(len(ranks)))
    kept = sum(of_rank["restored"]["kept"] for of_rank in ranks)
    for of_rank in ranks:
        restored = of_rank["restored"]
        assert torch.equal(restored["went on"], restored["topk(density=0.1)"])
        assert torch.allclose(restored["all-reduce"], whole + kept, atol=1e-6)
        following = sum(gradient_of(place, 3) for place in range(len(ranks)))
        assert torch.allclose(restored["all-reduce next"], following, atol=1e-6)


def test_a_rule_that_would_lose_what_was_kept_refuses_it_and_one_that_nothing_runs_is_named():
    group: Any = SimpleNamespace(ranks=(0,))
    for text in ("adasum", "local(steps=2)"):
        rule = make_rule(parse_rule(text), Shared(group, 0, {}, 1.0, where="stage 3"))
        rule.load_state({"residual:a": torch.zeros(3)})
        with pytest.raises(RunError, match=r"'a'.*stage 3\b"):
            rule.load_state({"residual:a": torch.ones(3)})
    with pytest.raises(RunError, match="'gossip'"):
        find_runtime(Gossip())


def test_what_was_kept_of_a_parameter_that_has_no_dense_gradient_any_more_is_not_lost_in_silence():
    group: Any = SimpleNamespace(ranks=(0,))
    rule = make_rule(parse_rule("topk(density=0.5)"), Shared(group, 0, {}, 1.0))
    rule.load_state({"residual:gone": torch.ones(3), "residual:nothing": torch.zeros(3)})
    with pytest.raises(RunError, match="'gone'"):
        rule.prepare([Flat(torch.zeros(2), ("here",), (torch.Size([2]),))])


@dataclass(frozen=True, slots=True)
class Gossip(SyncRule):
    """A third party's rule as data."""

    name: ClassVar[str] = "gossip"
    example: ClassVar[str] = "gossip"

    @property
    def exactness(self) -> Exactness:
        return "any"

    def exchange(self, group: SyncGroup) -> Exchange:
        return NOTHING


class Gossiping(Rule):
    """What runs it."""

    can: ClassVar[Capabilities] = Capabilities(steps_alone=True, apart=True)


def test_a_third_party_brings_a_rule_and_what_runs_it(monkeypatch):
    entry = SimpleNamespace(name="gossip", value="gossip:Gossiping", group=GROUP, load=lambda: Gossiping)
    monkeypatch.setattr(find, "entry_points", lambda group: [entry] if group == GROUP else [])
    group: Any = SimpleNamespace(ranks=(0,))
    assert isinstance(make_rule(Gossip(), Shared(group, 0, {}, 1.0)), Gossiping)
    assert capabilities_of(Gossip()).apart
    entry.load = lambda: Gossip
    with pytest.raises(PlugInError, match=r"'gossip'.*Rule.*heterps_compile"):
        find_runtime(Gossip())


@pytest.mark.parametrize("text", [*RULES, "adasum(on=step)", "local(steps=2)", "shadow(every=2)", "adsaga(batches=4)"])
def test_what_a_plan_says_becomes_of_sparse_gradients_is_what_a_run_does(text):
    rule = parse_rule(text)
    can = capabilities_of(rule)
    assert rule.of_sparse == (OWN if can.steps_alone else SUMMED if can.takes_sparse else REFUSED)
