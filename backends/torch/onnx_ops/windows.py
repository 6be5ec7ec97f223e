"""Padding of sliding windows: what ``auto_pad``, ``pads`` and ``ceil_mode`` of ONNX come to.

Left out: the ops that slide (``conv.py``, ``pool.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over the spatial dimensions of a tensor.

    Attributes:
        kernel: Their size.
        strides: From one to the next.
        dilations: Between the elements of one.
        before: Padding before the first element of each dimension.
        after: Padding behind the last.
        overhang: What ``ceil_mode`` adds behind the padding, so that a last, partial window fits.
    """

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    before: list[int]
    after: list[int]
    overhang: list[int]

    @property
    def is_symmetric(self) -> bool:
        """Whether PyTorch's own padding is the same."""
        return self.before == self.after and not any(self.overhang)

    def pad(self, x: Tensor, value: float = 0.0) -> Tensor:
        """Pad a tensor so that the windows are those of a plain, unpadded op."""
        ends = [a + o for a, o in zip(self.after, self.overhang, strict=True)]
        widths = [n for pair in reversed(list(zip(self.before, ends, strict=True))) for n in pair]
        return F.pad(x, widths, "constant", value) if any(widths) else x


def windows_over(
    x: Tensor,
    kernel: Sequence[int],
    *,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
) -> Windows:
    """Return the windows that an op's attributes mean on a tensor."""
    rank = len(kernel)
    steps, spread = list(strides or [1] * rank), list(dilations or [1] * rank)
    sizes = list(x.shape[2:])
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, spread, strict=True)]
    before, after = list((pads or [0] * 2 * rank)[:rank]), list((pads or [0] * 2 * rank)[rank:])
    if auto_pad == "VALID":
        before, after = [0] * rank, [0] * rank
    elif auto_pad != "NOTSET":
        for i, (size, step, span) in enumerate(zip(sizes, steps, spans, strict=True)):
            total = max((-(-size // step) - 1) * step + span - size, 0)
            small, large = total // 2, total - total // 2
            before[i], after[i] = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
    overhang = [0] * rank
    if ceil_mode:
        for i, (size, step, span) in enumerate(zip(sizes, steps, spans, strict=True)):
            reach = size + before[i] + after[i] - span
            count = -(-reach // step) + 1
            if (count - 1) * step >= size + before[i]:
                count -= 1  # no window lies in the padding behind alone
            overhang[i] = max((count - 1) * step - reach, 0)
    return Windows(list(kernel), steps, spread, before, after, overhang)
