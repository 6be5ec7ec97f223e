"""Sums of ranks that share machines: what comes out, and what goes between machines, against hand-made ones."""

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
import pytest
import torch
from plain_rules import send_with_feedback
from ranks import run_ranks
from torch import Tensor, nn

from heterps_compile.runtime.pipeline.world import make_group
from heterps_compile.runtime.sync.by_machine import (
    ByMachine,
    Piece,
    all_pieces,
    deal_entries,
    pieces_of,
)
from heterps_compile.runtime.sync.collective import CountedGroup, machines_of, sums_inside_first
from heterps_compile.runtime.sync.contract import Flat, Rule, Shared
from heterps_compile.runtime.sync.find import make_rule
from heterps_compile.runtime.sync.top_k import select_exact
from heterps_compile.sync_rules.assignment import parse_rule
from heterps_compile.sync_rules.network import Network
from heterps_compile.sync_rules.rule import Exchange, FlatBuffer, SyncGroup

LENGTH = 101
STEPS = 3
TOPK = "topk(density=0.1, selection=exact)"
PLACED: dict[str, tuple[int, ...]] = {
    "2 and 2": (0, 0, 1, 1),
    "2 and 1": (0, 0, 1),
    "3 and 1": (0, 0, 0, 1),
    "1 and 3": (0, 1, 1, 1),
}
"""The machine of every rank. Where ranks fill machines in turn a plan has them so too."""
PLANNED = {"2 and 2": 2, "2 and 1": 2, "3 and 1": 3}


def test_a_piece_has_one_owner_on_each_machine_and_pieces_make_the_whole():
    assert pieces_of(10, [(0, 1), (2,)]) == [Piece(0, 5, (0, 2)), Piece(5, 10, (1, 2))]
    assert pieces_of(7, [(0, 1), (2, 3)]) == [Piece(0, 3, (0, 2)), Piece(3, 7, (1, 3))]
    assert [piece.owners for piece in all_pieces([(0, 1, 2), (3, 4)])] == [(0, 3), (1, 3), (1, 4), (2, 4)]
    for length in range(1, 30):
        for machines in ([(0, 1, 2), (3, 4)], [(0,), (1, 2, 3, 4)], [(0, 1), (2, 3), (4,)]):
            found = pieces_of(length, machines)
            assert [piece.begin for piece in found] == [0, *(piece.end for piece in found[:-1])]
            assert found[-1].end == length
            assert all(piece.size > 0 for piece in found)
            assert {piece.owners for piece in found} <= {piece.owners for piece in all_pieces(machines)}


def test_entries_are_dealt_by_size_and_every_piece_has_one():
    assert deal_entries(10, [50, 50]) == [5, 5]
    assert deal_entries(2, [99, 1]) == [1, 1]
    assert deal_entries(4, [1, 97, 1]) == [1, 2, 1]
    for sizes in ([3, 2], [1, 1, 5], [40, 30, 30]):
        for total in range(len(sizes), sum(sizes) + 1):
            dealt = deal_entries(total, sizes)
            assert sum(dealt) == total
            assert all(1 <= k <= size for k, size in zip(dealt, sizes, strict=True))


def test_ranks_sum_inside_first_only_where_that_spares_something():
    assert machines_of((1, 2, 3), (0, 0, 1, 1)) == ((1,), (2, 3))
    assert machines_of((1, 2, 3), ()) == ((1, 2, 3),)
    assert [sums_inside_first(machines) for machines in ([(0, 1)], [(0,), (1,)], [(0, 1), (2,)])] == [
        False,
        False,
        True,
    ]


def gradient_of(rank: int, step: int) -> Tensor:
    return torch.randn(LENGTH, generator=torch.Generator().manual_seed(100 * step + rank))


class Placed:
    """A rule on ranks that stand on machines."""

    def __init__(self, text: str, rank: int, placed: Sequence[int], *, is_scaled: bool = False) -> None:
        ranks = range(len(placed))
        self.counted: list[CountedGroup] = []

        def make(of: Sequence[int]) -> CountedGroup:
            self.counted.append(CountedGroup(make_group(of), rank, placed))
            return self.counted[-1]

        self.sums = ByMachine(make_group(ranks), rank, placed, make)
        self.counted.append(self.sums)
        parameters = {"p": nn.Parameter(torch.zeros(LENGTH))}
        shared = Shared(self.sums, rank, parameters, 1 / len(placed), is_scaled, by_machine=self.sums)
        self.rule: Rule = make_rule(parse_rule(text), shared)
        self.flat = Flat(torch.zeros(LENGTH), ("p",), (torch.Size([LENGTH]),))
        self.rule.prepare([self.flat])

    def step(self, gradient: Tensor, *, scale: float = 1.0, is_skipped: bool = False) -> Tensor:
        self.flat.tensor.copy_(gradient)
        self.rule.after_backward([self.flat], scale)
        self.rule.finish()
        self.rule.after_step(0, is_skipped=is_skipped)
        return self.flat.tensor.clone()

    def kept(self) -> Tensor:
        return self.rule.state().get("residual:p", torch.zeros(LENGTH)).clone()

    @property
    def sent(self) -> tuple[int, int]:
        return sum(group.sent_bytes for group in self.counted), sum(group.between_bytes for group in self.counted)


def in_group(rank: int) -> dict[str, Any]:
    """Run all cases in one world: to start processes takes longer than what they do."""
    found: dict[str, Any] = {}
    for case, placed in PLACED.items():
        if rank >= len(placed):
            continue
        for text in ("all-reduce", TOPK, "topk(density=1)", "topk(density=0.001)"):
            one = Placed(text, rank, placed)
            steps = [(one.step(gradient_of(rank, step)).numpy(), one.kept().numpy()) for step in range(STEPS)]
            found[f"{case}, {text}"] = steps, one.sent
        found[f"{case}, overflow"] = overflowing(rank, placed)
    found["moved"] = moved(rank)
    return found


def overflowing(rank: int, placed: Sequence[int]) -> list[Any]:
    """Return what is kept before a step that overflows on the last rank, what comes out, and what is kept then."""
    one = Placed(TOPK, rank, placed, is_scaled=True)
    one.step(gradient_of(rank, 0) * 8, scale=8.0)
    before = one.kept()
    gradient = gradient_of(rank, 1)
    gradient[7] = inf if rank == len(placed) - 1 else gradient[7]
    out = one.step(gradient, is_skipped=True)
    return [before.numpy(), out.numpy(), one.kept().numpy()]


def moved(rank: int) -> list[Any]:
    """Return what is kept by ranks on two machines, and what a step of all-reduce on other machines makes of it."""
    first = Placed(TOPK, rank, (0, 0, 1, 1))
    first.step(gradient_of(rank, 0))
    then = Placed("all-reduce", rank, (0, 1, 1, 1))
    then.rule.load_state(first.rule.state())
    then.rule.prepare([then.flat])
    return [first.kept().numpy(), then.step(gradient_of(rank, 1)).numpy()]


@pytest.fixture(scope="module")
def by_rank() -> list[dict[str, Any]]:
    return run_ranks(in_group, 4)


def of_case(by_rank: list[dict[str, Any]], case: str, text: str) -> list[Any]:
    return [of_rank[f"{case}, {text}"] for of_rank in by_rank[: len(PLACED[case])]]


@pytest.mark.parametrize("case", PLACED)
@pytest.mark.parametrize("text", ["all-reduce", "topk(density=1)"])
def test_a_sum_over_machines_is_the_sum_and_every_rank_has_its_bits(by_rank, case, text):
    for step in range(STEPS):
        total = sum(gradient_of(rank, step).double() for rank in range(len(PLACED[case])))
        outs = [torch.from_numpy(steps[step][0]) for steps, _ in of_case(by_rank, case, text)]
        assert all(torch.equal(out, outs[0]) for out in outs)
        assert torch.allclose(outs[0].double(), total, rtol=0, atol=2e-6)


@pytest.mark.parametrize("case", PLACED)
@pytest.mark.parametrize("text", [TOPK, "topk(density=0.001)"])
def test_what_machines_do_not_send_stays_with_them_and_nothing_is_lost(by_rank, case, text):
    total = torch.zeros(LENGTH, dtype=torch.float64)
    for step in range(STEPS):
        found = [steps[step] for steps, _ in of_case(by_rank, case, text)]
        outs = [torch.from_numpy(out) for out, _ in found]
        assert all(torch.equal(out, outs[0]) for out in outs)
        total += sum(gradient_of(rank, step).double() for rank in range(len(found))) - outs[0].double()
        kept = sum(torch.from_numpy(kept).double() for _, kept in found)
        assert torch.allclose(kept, total, rtol=0, atol=5e-6)
    assert kept.count_nonzero() > LENGTH // 2


def test_the_largest_entries_of_machines_are_those_that_the_paper_sends(by_rank):
    residuals = None
    for step in range(STEPS):
        gradients = [gradient_of(rank, step) for rank in range(4)]
        # 101 entries are shards of 50 and 51 here and of 51 and 50 there: one entry more makes them alike
        ours = of_case(by_rank, "2 and 2", TOPK)
        assert pieces_of(LENGTH, [(0, 1), (2, 3)])[0].end == 50
        shards = [[g[:50] for g in gradients], [g[50:] for g in gradients]]
        totals, left = [], []
        for place, of_shard in enumerate(shards):
            machines = [of_shard[0] + of_shard[1], of_shard[2] + of_shard[3]]
            before = None if residuals is None else residuals[place]
            kept = deal_entries(10, [50, 51])[place]
            sent = [
                send_with_feedback(machine, None if before is None else before[i], kept, select_exact)
                for i, machine in enumerate(machines)
            ]
            totals.append(sum(selection.dense(len(machines[0])) for selection, _ in sent))
            left.append([residual for _, residual in sent])
        residuals = left
        out, _ = ours[0][0][step]
        assert torch.allclose(torch.from_numpy(out), torch.cat(totals), rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", PLANNED)
@pytest.mark.parametrize("text", ["all-reduce", TOPK, "topk(density=0.001)"])
def test_bytes_in_all_and_between_machines_are_those_of_the_plan(by_rank, case, text):
    count, units = len(PLACED[case]), PLANNED[case]
    group = SyncGroup(count, (FlatBuffer(LENGTH),), (FlatBuffer(LENGTH),), 1, Network(1e-9, 0.0, units, 1e-11))
    planned: Exchange = parse_rule(text).exchange(group)
    sent = [sent for _, sent in of_case(by_rank, case, text)]
    assert sum(all_bytes for all_bytes, _ in sent) == STEPS * planned.sent_bytes > 0
    assert sum(between for _, between in sent) == STEPS * 2 * planned.card_bytes
    if case == "2 and 2" and text == "all-reduce":
        # reduce-scatter and all-gather: twice a tensor in each machine, and twice between
        assert planned.sent_bytes == 6 * 4 * LENGTH
        assert 2 * planned.card_bytes == 2 * 4 * LENGTH


@pytest.mark.parametrize("case", PLACED)
def test_a_step_that_overflows_on_one_machine_is_seen_by_all_and_leaves_what_is_kept(by_rank, case):
    for before, out, after in of_case(by_rank, case, "overflow"):
        assert not np.isfinite(out).all()
        assert (before == after).all()
    assert any(before.any() for before, _, _ in of_case(by_rank, case, "overflow"))


def test_what_ranks_kept_is_not_lost_where_they_go_on_on_other_machines(by_rank):
    kept = sum(torch.from_numpy(of_rank["moved"][0]).double() for of_rank in by_rank)
    whole = sum(gradient_of(rank, 1).double() for rank in range(4))
    for of_rank in by_rank:
        assert torch.allclose(torch.from_numpy(of_rank["moved"][1]).double(), kept + whole, rtol=0, atol=5e-6)
