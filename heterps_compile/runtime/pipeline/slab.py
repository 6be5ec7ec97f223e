"""The memory of one message, with a view of every value in it.

What is received is not copied, so a slab is used again once nobody else holds its memory: not the stage, not the
autograd graph, not a loss that keeps what it was given.

Left out: what the values are (``message.py``), memory that two processes map (``shared_slab.py``).
"""

import torch
from torch import Tensor

from .message import Packing

_uses = torch._C._storage_Use_Count


class Slab:
    """A buffer of one message.

    Attributes:
        buffer: All of it, as bytes.
        views: Of every value; None for a value that takes no bytes.
    """

    __slots__ = ("_address", "_own_uses", "_storage", "buffer", "views")

    def __init__(self, buffer: Tensor, packing: Packing) -> None:
        self.buffer = buffer
        self.views = packing.views(buffer)
        self._storage = buffer.untyped_storage()  # lives as long as its address is asked
        self._address = self._storage._cdata
        self._own_uses = _uses(self._address)

    @property
    def is_unused(self) -> bool:
        """Whether nobody but this object holds the memory."""
        return bool(_uses(self._address) == self._own_uses)
