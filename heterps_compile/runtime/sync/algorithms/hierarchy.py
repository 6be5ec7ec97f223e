"""Sums over machines of several ranks: dense, and of the largest entries alone, with their bytes counted.

Shi et al., MLSys 2021, arXiv 2010.10458 (hierarchical top-k communication). M machines of G ranks, n entries of b
bytes::

    1  reduce-scatter inside every machine            each rank owns the sum of a shard of n / G entries
    2  selection on the shard, k / G entries          with feedback: what is left out stays with the shard
    3  all-gather of values and indices               among the ranks that own one shard, one of each machine
    4  all-gather of the dense shards inside

Between machines go ``(M - 1) k (b + 4)`` bytes from each where the dense sum (3 is then an all-reduce) sends
``2 (M - 1) / M n b``. For float32 the first is ``density x M`` times the second: 1 at a density of 1 / M, from which
on the dense sum is the cheaper one.

Left out: the average (divide by the ranks); machines with different numbers of ranks, which are refused.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heterps_compile.errors import InputError

from .counted_link import CountedLink, sum_of_selections
from .error_feedback import Select, send_with_feedback


@dataclass(frozen=True, slots=True)
class Summed:
    """What the ranks have in the end, and what it took.

    Attributes:
        total: The sum, the same on all ranks.
        residuals: Of every rank: what its shard kept back; none where nothing is.
        inside_bytes: Sent inside machines, of all ranks together.
        between_bytes: Sent between machines, of all ranks together.
    """

    total: Tensor
    residuals: tuple[Tensor, ...]
    inside_bytes: int
    between_bytes: int


def sum_dense(tensors: Sequence[Tensor], ranks_per_machine: int) -> Summed:
    """Return the sum of the ranks' flat tensors: reduce-scatter inside, all-reduce between, all-gather inside.

    Raises:
        InputError: The ranks do not fill machines.
    """
    link, shards = _scatter(tensors, ranks_per_machine)
    machines = len(tensors) // ranks_per_machine
    totals = []
    for shard in range(ranks_per_machine):
        group = [machine * ranks_per_machine + shard for machine in range(machines)]
        parts = link.reduce_scatter(group, [shards[rank].tensor_split(machines) for rank in group])
        link.all_gather(group, [part.numel() * part.element_size() for part in parts])
        totals.append(torch.cat(parts))
    return _gather(link, totals, machines, ())


def sum_top_k(
    tensors: Sequence[Tensor],
    ranks_per_machine: int,
    kept: Callable[[int], int],
    select: Select,
    residuals: Sequence[Tensor] | None = None,
) -> Summed:
    """Return the sum of the largest entries of every machine's shards.

    Args:
        tensors: Flat, of one shape and dtype, one a rank.
        ranks_per_machine: Neighbouring ranks on one machine.
        kept: How many entries of a shard of so many are sent between machines.
        select: How entries are chosen.
        residuals: Those of the last step; None on the first.

    Raises:
        InputError: The ranks do not fill machines, or nothing can be selected.
    """
    link, shards = _scatter(tensors, ranks_per_machine)
    machines = len(tensors) // ranks_per_machine
    sent = [
        send_with_feedback(shard, None if residuals is None else residuals[rank], kept(shard.numel()), select)
        for rank, shard in enumerate(shards)
    ]
    totals = []
    for shard in range(ranks_per_machine):
        group = [machine * ranks_per_machine + shard for machine in range(machines)]
        selections = [sent[rank].selection for rank in group]
        link.all_gather(group, [selection.size_bytes for selection in selections])
        totals.append(sum_of_selections(selections, shards[shard].numel()))
    return _gather(link, totals, machines, tuple(one.residual for one in sent))


def _scatter(tensors: Sequence[Tensor], ranks_per_machine: int) -> tuple[CountedLink, list[Tensor]]:
    """Return every rank's shard of its machine's sum."""
    if ranks_per_machine < 1 or not tensors or len(tensors) % ranks_per_machine:
        raise InputError(
            f"{len(tensors)} ranks do not fill machines of {ranks_per_machine}; shards need as many ranks on each one"
        )
    if len({(tensor.shape, tensor.dtype) for tensor in tensors}) > 1 or tensors[0].dim() != 1:
        raise InputError("the ranks' tensors must be flat and of one length and dtype")
    link = CountedLink(ranks_per_machine)
    shards: list[Tensor] = []
    for first in range(0, len(tensors), ranks_per_machine):
        group = range(first, first + ranks_per_machine)
        shards += link.reduce_scatter(group, [tensors[rank].tensor_split(ranks_per_machine) for rank in group])
    return link, shards


def _gather(link: CountedLink, totals: list[Tensor], machines: int, residuals: tuple[Tensor, ...]) -> Summed:
    """Gather the shards inside every machine."""
    for machine in range(machines):
        group = range(machine * link.ranks_per_machine, (machine + 1) * link.ranks_per_machine)
        link.all_gather(group, [total.numel() * total.element_size() for total in totals])
    return Summed(torch.cat(totals), residuals, link.inside_bytes, link.between_bytes)
