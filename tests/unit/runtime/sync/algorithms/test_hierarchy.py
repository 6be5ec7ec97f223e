"""Sums over machines: the right ones, and as many bytes as the formula has."""

import pytest
import torch

from heterps_compile.errors import InputError
from heterps_compile.runtime.sync.algorithms.counted_link import CountedLink
from heterps_compile.runtime.sync.algorithms.error_feedback import send_with_feedback
from heterps_compile.runtime.sync.algorithms.hierarchy import sum_dense, sum_top_k
from heterps_compile.runtime.sync.algorithms.top_k import select_exact, select_threshold


def gradients(ranks: int, length: int) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return list(torch.randn(ranks, length))


def part(density: float):
    return lambda length: max(1, round(density * length))


@pytest.mark.parametrize(("machines", "inside"), [(1, 1), (1, 4), (4, 1), (2, 3), (3, 2)])
def test_the_dense_sum_is_the_sum(machines, inside):
    tensors = gradients(machines * inside, 103)
    torch.testing.assert_close(sum_dense(tensors, inside).total, torch.stack(tensors).sum(0))


@pytest.mark.parametrize(("machines", "inside"), [(1, 1), (1, 4), (4, 1), (2, 3)])
@pytest.mark.parametrize("select", [select_exact, select_threshold])
def test_at_a_density_of_one_the_sum_of_selections_is_the_dense_one(machines, inside, select):
    tensors = gradients(machines * inside, 60)
    found = sum_top_k(tensors, inside, part(1.0), select)
    torch.testing.assert_close(found.total, torch.stack(tensors).sum(0))
    assert all(not residual.any() for residual in found.residuals)


def test_what_a_shard_leaves_out_comes_with_the_next_step():
    """Machines of 2 ranks; the shard of the first two entries sums to (3, 5) and sends 5, then 3 of the residual."""
    ones = [torch.tensor([1.0, 2.0, 0.0, 0.0]), torch.tensor([2.0, 3.0, 0.0, 9.0])]
    first = sum_top_k(ones, 2, lambda _: 1, select_exact)
    assert first.total.tolist() == [0.0, 5.0, 0.0, 9.0]
    second = sum_top_k([torch.zeros(4)] * 2, 2, lambda _: 1, select_exact, first.residuals)
    assert second.total.tolist() == [3.0, 0.0, 0.0, 0.0]


def test_nothing_is_lost_or_made_over_many_steps():
    """All gradients so far = all sums so far + what all shards keep; float64 of small integers, so to the bit."""
    torch.manual_seed(3)
    residuals, sent, given = None, torch.zeros(24, dtype=torch.float64), torch.zeros(24, dtype=torch.float64)
    for _ in range(20):
        tensors = [torch.randint(-9, 10, (24,)).double() for _ in range(6)]
        given += sum(tensors)
        found = sum_top_k(tensors, 2, lambda _: 2, select_threshold, residuals)
        sent, residuals = sent + found.total, found.residuals
    kept = sum(torch.cat([residuals[machine * 2], residuals[machine * 2 + 1]]) for machine in range(3))
    assert torch.equal(sent + kept, given)
    assert kept.any()


@pytest.mark.parametrize("select", [select_exact, select_threshold])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sent_and_kept_are_the_input_bit_by_bit(select, dtype):
    torch.manual_seed(2)
    gradient, residual = (torch.randn(1000, dtype=dtype) * 10.0 ** torch.randint(-8, 9, (1000,)) for _ in range(2))
    before = gradient.clone(), residual.clone()
    sent = send_with_feedback(gradient, residual, 10, select)
    assert torch.equal(sent.selection.dense(1000) + sent.residual, gradient + residual)
    assert int((sent.residual == 0).sum()) == 10
    assert torch.equal(gradient, before[0])
    assert torch.equal(residual, before[1])


def test_the_first_step_has_no_residual_and_leaves_its_gradient_alone():
    gradient = torch.tensor([1.0, 2.0])
    assert send_with_feedback(gradient, None, 1, select_exact).residual.tolist() == [1.0, 0.0]
    assert gradient.tolist() == [1.0, 2.0]


def test_a_residual_of_another_gradient_is_refused():
    with pytest.raises(InputError, match=r"torch\.float32.*\b3\b"):
        send_with_feedback(torch.zeros(3), torch.zeros(2), 1, select_exact)


def test_ranks_that_do_not_fill_machines_are_refused():
    for summed in (sum_dense, lambda tensors, inside: sum_top_k(tensors, inside, part(0.1), select_exact)):
        with pytest.raises(InputError, match=r"\b5\b.*\b2\b"):
            summed(gradients(5, 8), 2)
        with pytest.raises(InputError, match="dtype"):
            summed([torch.zeros(3), torch.zeros(4)], 1)


def test_a_ring_counts_every_message_once():
    """Gathering 3 chunks of 7 bytes in a group of 3: each is passed on twice. Ranks 0 and 1 share a machine."""
    link = CountedLink(2)
    link.all_gather([0, 1, 2], [7, 7, 7])
    assert (link.inside_bytes, link.between_bytes) == (14, 28)
