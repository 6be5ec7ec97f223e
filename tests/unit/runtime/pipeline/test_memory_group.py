"""Sums, maxima, gatherings and messages of ranks through shared memory, against what each rank computes alone."""

from functools import reduce
from typing import Any

import pytest
import torch
from ranks import run_ranks
from torch import Tensor

from heterps_compile.runtime.pipeline.shared_memory import memory_group, neighbours
from heterps_compile.runtime.pipeline.shared_memory.memory_group import MemoryGroup
from heterps_compile.runtime.pipeline.world import make_group

pytestmark = pytest.mark.skipif(not neighbours.machine(), reason="this system or processor has no neighbours")

RANKS = 3
SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (5,), (3, 7), (1001,))
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.complex64)
CHUNK_BYTES = 256  # the largest tensor has several chunks


def drawn(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(100 * rank + len(shape))
    if dtype is torch.int64:
        return torch.randint(-1000, 1000, shape, generator=generator)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def in_order(tensors: list[Tensor]) -> Tensor:
    return reduce(torch.add, tensors)


def sparse_of(rank: int) -> Tensor:
    """Return rows of which some are on several ranks, and on the second rank none."""
    indices = torch.tensor([[4, 1], [], [1, 6]][rank], dtype=torch.int64).view(1, -1)
    return torch.sparse_coo_tensor(indices, drawn(rank, (indices.numel(), 3), torch.float32), (8, 3)).coalesce()


def summing(rank: int) -> list[str]:
    """Return the cases that are not as this rank computes them alone."""
    memory_group.CHUNK_BYTES = CHUNK_BYTES
    group, wrong = make_group(range(RANKS)), []
    assert isinstance(group, MemoryGroup)
    for shape in SHAPES:
        for dtype in DTYPES:
            of_all = [drawn(other, shape, dtype) for other in range(RANKS)]
            mine, whole = of_all[rank].clone(), of_all[rank].clone()
            gathering, gathered = group.gather(mine)
            sums = group.sum(whole)
            gathering.wait()
            sums.wait()
            sums.wait()  # a second time does nothing
            if not torch.equal(whole, in_order(of_all)):
                wrong.append(f"sum {shape} {dtype}")
            if not all(map(torch.equal, gathered, of_all)):
                wrong.append(f"gathering {shape} {dtype}")
            if not dtype.is_complex:
                group.maximum(mine).wait()
                if not torch.equal(mine, reduce(torch.maximum, of_all)):
                    wrong.append(f"maximum {shape} {dtype}")
    turned = drawn(rank, (3, 7), torch.float32).t()
    group.sum(turned).wait()
    if not torch.equal(turned, in_order([drawn(other, (3, 7), torch.float32) for other in range(RANKS)]).t()):
        wrong.append("sum of a tensor in another order of memory")
    sparse = sparse_of(rank)
    group.sum(sparse).wait()
    if not torch.equal(sparse.to_dense(), in_order([sparse_of(other).to_dense() for other in range(RANKS)])):
        wrong.append("sparse sum")
    if not sparse.is_coalesced():
        wrong.append("rows of a sparse sum that are there twice")
    return wrong


def test_results_are_those_of_additions_in_the_order_of_ranks_on_every_rank():
    assert run_ranks(summing, RANKS) == [[]] * RANKS


def many_under_way(rank: int) -> tuple[list[float], list[float]]:
    """Begin more sums than there are mailboxes for, end them in another order, and send more than a table holds."""
    group = make_group(range(2))
    ones = [torch.full((3,), float(number + rank)) for number in range(250)]
    works = [group.sum(one) for one in ones]
    for work in reversed(works):
        work.wait()
    other, received = 1 - rank, [torch.empty(1) for _ in range(150)]
    for number in range(0, 150, 50):
        sent = [group.start_send(torch.tensor([float(place)]), other) for place in range(number, number + 50)]
        for work in [*sent, *(group.start_receive(one, other) for one in received[number : number + 50])]:
            work.wait()
    return [one[0].item() for one in ones], [one.item() for one in received]


def test_operations_may_be_under_way_in_any_number_and_both_ends_may_send_first():
    expected = [2.0 * number + 1 for number in range(250)], [float(number) for number in range(150)]
    assert run_ranks(many_under_way, 2) == [expected] * 2


def another_size(rank: int) -> Any:
    group = make_group(range(2))
    group.sum(torch.zeros(3 + rank)).wait()


def test_a_member_that_shares_another_size_is_named():
    with pytest.raises(AssertionError, match=r"RunError: rank [01] shares 1[26] bytes where 1[26] are due"):
        run_ranks(another_size, 2)
