r"""Bring what a model returns for every micro-batch to one rank: the first replica of the last stage.

::

    last stage, replica 0    F0 . F2 .  takes y1 y3    has y0 y1 y2 y3, in the data's order
    last stage, replica 1    . F1 . F3  sends y1 y3

Values travel as they are, whatever the stages send each other is narrowed to.

Left out: what is made of them (``validation/forward_pass.py``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .layout import Layout
from .transport import Receiver, Sender, Transport

_AS_IT_IS = "float32"  # the wire that leaves values alone


class OutputGather:
    """The graph outputs of one step's micro-batches, gathered on the first replica of the last stage."""

    def __init__(
        self,
        transport: Transport,
        layout: Layout,
        rank: int,
        *,
        names: Sequence[str],
        first_tag: int,
        device: torch.device,
    ) -> None:
        """Prepare; every rank of the last stage does so.

        Args:
            transport: Of the rank, with a tag for every micro-batch, and one for what describes them.
            layout: Of the pipeline.
            rank: This one.
            names: Of the graph outputs.
            first_tag: Of those tags.
            device: Where what comes is put.
        """
        self._layout, self._rank, self._names, self._first_tag = layout, rank, tuple(names), first_tag
        self._last = layout.stage_count - 1
        first, *others = layout.ranks_of(self._last)
        header = first_tag + layout.micro_batches
        self._sender: Sender | None = None
        self._receivers: dict[int, Receiver] = {}
        if rank in others:
            self._sender = transport.sender(first, header, _AS_IT_IS, device, to_host=True)
        elif rank == first:
            self._receivers = {
                peer: transport.receiver(peer, header, device, layout.describe(peer), to_host=True) for peer in others
            }

    def gather(self, found: Mapping[int, Mapping[str, Any]], micro_batches: int) -> dict[int, dict[str, Any]]:
        """Return the outputs of a step's first micro-batches in order on the first replica; nothing on the others.

        Args:
            found: Of this rank's own, by micro-batch and name.
            micro_batches: How many the step has.

        Raises:
            RunError: naming an output whose shape is not that of the first micro-batch.
        """
        if self._sender is not None:
            for micro_batch, values in found.items():
                own = [_detached(values[name]) for name in self._names]
                self._sender.send(self._first_tag + micro_batch, self._names, own)
            return {}
        gathered: dict[int, dict[str, Any]] = {}
        for micro_batch in range(micro_batches):
            owner = self._layout.owner(self._last, micro_batch)
            if owner == self._rank:
                gathered[micro_batch] = dict(found[micro_batch])
            else:
                taken = self._receivers[owner].take(self._first_tag + micro_batch, len(self._names))
                gathered[micro_batch] = dict(zip(self._names, taken, strict=True))
        return gathered

    def flush(self) -> None:
        """Wait until all that was sent has arrived, where somebody has to wait for it, and free what nobody needs."""
        if self._sender is not None:
            self._sender.flush()
        for receiver in self._receivers.values():
            receiver.let_go()


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value
