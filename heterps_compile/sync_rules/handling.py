"""What a rule has the processor of a replica do in a step, beside what its exchange takes the link.

Gradients lie in flat buffers (``runtime/sync/contract.py``), which are made zero, added to by the backward, and copied,
scaled, selected from and put back as a rule has it. That is counted as work of five kinds, each of which has a rate on
a device (``cost/step_rates.py``)::

    moved       bytes that are read or written one after the other: a copy of S bytes moves 2 S, a sum of two 3 S
    selected    bytes of gradients of which the entries of largest magnitude are selected
    chosen      entries that are selected
    placed      entries that are read or written at an index
    combined    bytes of which two tensors' products are taken, and that become a combination of both

and of k replicas a step takes ``once``, ``shared`` times (k - 1) / k, and ``each`` times k - 1; one replica alone
nothing (``cost/step_rates.py``). All of it adds up over layers, so that a search can price any stage with it.

Left out: what the system takes to send and receive; replicas that divide a selection inside machines, which count as if
each selected of the whole.
"""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Work:
    """Work of the kinds of the module."""

    moved: float = 0.0
    selected: float = 0.0
    chosen: float = 0.0
    placed: float = 0.0
    combined: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        """Return both together."""
        return Work(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


NO_WORK = Work()


@dataclass(frozen=True, slots=True)
class Handling:
    """The work of a step, by the module."""

    once: Work = NO_WORK
    shared: Work = NO_WORK
    each: Work = NO_WORK


def flat_gradients(size_bytes: float) -> Work:
    """Return what flat buffers of so many bytes take: they are made zero, and the backward adds to them."""
    return Work(moved=4 * size_bytes)


def summed(size_bytes: float) -> Work:
    """Return what a ring adds up of so many bytes, but for the part that (k - 1) / k is."""
    return Work(moved=3 * size_bytes)
