"""The tensors of a checkpoint by the names of the model they were trained in, whichever stages and servers held them.

Stages name parameters and buffers as the model does. A tied weight has all its names. What no stage reads is in no
checkpoint; the model itself has it (``fit_to``).

Left out: states of optimisers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from heterps_compile.errors import InputError
from heterps_compile.escape import printable
from heterps_compile.options import Whole
from heterps_compile.runtime.checkpoint.format import open_checkpoint
from heterps_compile.runtime.checkpoint.state import RunState
from heterps_compile.units import counted

if TYPE_CHECKING:
    from torch import Tensor

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Trained:
    """What a checkpoint has of its model.

    Attributes:
        checkpoint: Its folder.
        state: Of the run when it was written.
        tensors: Parameters and buffers by name.
        is_averaged: Whether they are the average of the weights.
        block: Of whose data they are the predictor, from 1; None for the weights of all blocks.
    """

    checkpoint: Path
    state: RunState
    tensors: "Mapping[str, Tensor]"
    is_averaged: bool = False
    block: int | None = None

    @property
    def weights(self) -> str:
        """Say which weights these are; "" where there are no others."""
        average, blocks = self.state.averaged, self.state.blocks
        if blocks is not None:
            count = len(blocks.rounds)
            if self.block is None:
                return f"the last average of all blocks, not the predictor of one of the {count}"
            means = counted(blocks.rounds[self.block - 1], "average")
            return f"the predictor of block {self.block} of {count} ({means})"
        if average is None:
            return ""
        said = f"the average (EMA, decay {average.decay:g}, {average.updates:,} steps)"
        return said if self.is_averaged else f"the weights themselves, not {said}"


def read_trained(checkpoint: Path, *, averaged: bool = False, block: int | None = None) -> Trained:
    """Read all tensors of a checkpoint, its files checked by their hashes.

    Args:
        checkpoint: Its folder.
        averaged: Read the average of the weights in place of these.
        block: Or the predictor of this block, from 1.

    Raises:
        InputError: where the block is no number of one.
        RunError: where a file is missing, damaged or another one, or there is no average or predictor.
    """
    if block is not None:
        Whole().check("--block", block)
    found = open_checkpoint(checkpoint)
    kind = found.kind(averaged=averaged, block=None if block is None else block - 1)
    found.check()
    tensors, state = found.weights(found.describe(), kind), found.state
    for group in state.tied or ():
        held = next((tensors[name] for name in group if name in tensors), None)
        if held is not None:
            tensors |= {name: held for name in group if name not in tensors}
    return Trained(checkpoint, state, tensors, averaged, block)


def fit_to(trained: Trained, own: "Mapping[str, Tensor]", what: str) -> "tuple[dict[str, Tensor], list[str]]":
    """Return the trained tensors by a model's own names, and the names that keep the model's own values.

    Args:
        trained: The tensors.
        own: Those of the model, by name.
        what: The model is, for messages.

    Raises:
        InputError: where a trained tensor has no place in the model, or another dtype or shape there.
    """
    from torch import Tensor  # noqa: PLC0415 - torch only where something is exported

    homeless = sorted(trained.tensors.keys() - own.keys())
    if homeless:
        listed = ", ".join(map(repr, map(printable, homeless[:_SHOWN]))) + (", ..." if len(homeless) > _SHOWN else "")
        raise InputError(
            f"{trained.checkpoint.name} has {counted(len(homeless), 'tensor')} that {what} has not ({listed}); name "
            f"the model that was compiled"
        )
    for name, tensor in trained.tensors.items():
        if (tensor.dtype, tensor.shape) != (own[name].dtype, own[name].shape):
            ours, theirs = (f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in (tensor, own[name]))
            raise InputError(
                f"{trained.checkpoint.name} has {printable(name)!r} as {ours} and {what} as {theirs}; name the model "
                f"that was compiled"
            )
    kept = [name for name in own if name not in trained.tensors]
    values: dict[str, Tensor] = {name: trained.tensors.get(name, own[name]) for name in own}
    return values, kept
