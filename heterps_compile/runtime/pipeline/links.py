"""Connections between the ranks of a pipeline, on which messages go point to point: a set of them for each direction.

::

    rank 0 ---- values ----> rank 1      to higher ranks, one connection a pair
    rank 0 <-- gradients --- rank 1      to lower ranks, another

The thread that computes holds the lock of a connection while it sends. gloo's own thread, which receives, asks for that
lock again and again without ever sleeping; where it does so on the core of the very thread that holds it, both get
nowhere until the system takes the core away, milliseconds later (PyTorch 2.13). With data in one direction alone, what
arrives does not meet what is sent. Only gloo's word that a buffer is ready goes the other way, ahead of the data.

Left out: sums over ranks (``groups.py``), what is sent (``transport.py``).
"""

import torch.distributed as dist
from torch import Tensor

from .groups import Group


class Links:
    """The connections of one rank to all others."""

    def __init__(self, world_size: int, rank: int) -> None:
        """Connect; waits for the others, of which every one does the same.

        Args:
            world_size: Ranks of the pipeline.
            rank: This one.
        """
        self._rank = rank
        self._up, self._down = (Group(range(world_size), rank) for _ in range(2))

    def send(self, tensor: Tensor, target: int, tag: int) -> dist.Work:
        """Begin to send a tensor of the CPU, which must stay as it is until it has gone."""
        return (self._up if target > self._rank else self._down).start_send(tensor, target, tag)

    def receive(self, tensor: Tensor, source: int, tag: int) -> dist.Work:
        """Begin to receive into a tensor of the CPU."""
        return (self._down if source > self._rank else self._up).start_receive(tensor, source, tag)
