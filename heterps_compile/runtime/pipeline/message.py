r"""What a message looks like: every value of one route and micro-batch in one flat buffer of bytes.

::

    buffer | float32 [4, 8] | int64 [4] . | float32 [] .... |
           0                128         192                 256     each value begins at a multiple of 64 bytes

What the buffer holds is told once, ahead of the first message, as a header of JSON; from then on it stays the same.
A number of Python takes 8 bytes, None takes none. On a narrow wire, float32 values are float16 or bfloat16 in the
buffer; all others are as they are.

Over a network, a single value that needs no change of layout is sent from where it lies. What is received is not
copied: values are views of the buffer.

Left out: sending (``transport.py``).
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Protocol

import torch
from torch import Tensor

from heterps_compile.errors import RunError
from heterps_compile.escape import printable

WIRES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
"""What float32 values may be sent as."""

_ALIGNMENT = 64
_uses = torch._C._storage_Use_Count
_NUMBERS = {"bool": torch.bool, "int": torch.int64, "float": torch.float64}
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


@dataclass(frozen=True, slots=True)
class ValueSpec:
    """What is the same of a value in every micro-batch.

    Attributes:
        kind: ``"tensor"``; ``"bool"``, ``"int"`` or ``"float"`` for a number of Python; ``"none"``.
        dtype: Of the tensor, as in ``"float32"``; "" for what is none.
        shape: Of the tensor.
        requires_grad: Whether a gradient is to come back for it.
    """

    kind: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    requires_grad: bool = False

    def __str__(self) -> str:
        if self.kind != "tensor":
            return "None" if self.kind == "none" else f"a number ({self.kind})"
        return f"{self.dtype}{list(self.shape)}{' with a gradient' if self.requires_grad else ''}"


def describe(value: Any, name: str) -> ValueSpec:
    """Return what a message says of a value.

    Raises:
        RunError: for what cannot be sent.
    """
    if isinstance(value, Tensor):
        if value.layout is not torch.strided or value.is_quantized:
            raise RunError(f"value {printable(name)!r} is {value.layout}, which is not sent between stages")
        return ValueSpec("tensor", str(value.dtype).removeprefix("torch."), tuple(value.shape), value.requires_grad)
    if value is None:
        return ValueSpec("none")
    if type(value).__name__ in _NUMBERS:
        return ValueSpec(type(value).__name__)
    raise RunError(f"value {printable(name)!r} is a {type(value).__name__}, which is not sent between stages")


class Packing:
    """The layout of one route's messages in one direction.

    Attributes:
        specs: Of every value, in order.
        wire: What float32 is sent as.
        size_bytes: Of a message; at least 1.
        has_numbers: Whether some value is a number of Python.
        expected: dtype, shape and whether it wants a gradient of every tensor, None for other values.
    """

    def __init__(self, specs: Sequence[ValueSpec], wire: str) -> None:
        self.specs = tuple(specs)
        self.wire = wire
        self._slices: list[tuple[int, int, torch.dtype, tuple[int, ...]] | None] = []
        end = 0
        for spec in self.specs:
            if spec.kind == "none":
                self._slices.append(None)
                continue
            dtype = _DTYPES[spec.dtype] if spec.kind == "tensor" else _NUMBERS[spec.kind]
            sent = WIRES[wire] if dtype is torch.float32 else dtype
            begin = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = begin + prod(spec.shape) * sent.itemsize
            self._slices.append((begin, end, sent, spec.shape))
        self.size_bytes = max(end, 1)
        self.expected = [
            (_DTYPES[spec.dtype], torch.Size(spec.shape), spec.requires_grad) if spec.kind == "tensor" else None
            for spec in self.specs
        ]
        self._differentiable = [place for place, spec in enumerate(self.specs) if spec.requires_grad]
        self._lie_as_sent = all(
            spec.kind == "tensor" and (wire == "float32" or spec.dtype != "float32") for spec in self.specs
        )
        self.has_numbers = any(spec.kind in _NUMBERS for spec in self.specs)
        self._is_plain = len(self.specs) == 1 and self._lie_as_sent and end > 0

    def header(self) -> bytes:
        """Return what :func:`packing_of_header` reads back."""
        rows = [[spec.kind, spec.dtype, spec.shape, spec.requires_grad] for spec in self.specs]
        return json.dumps({"wire": self.wire, "values": rows}).encode("ascii")

    def views(self, buffer: Tensor) -> list[Tensor | None]:
        """Return every value's place in a buffer, as a tensor of its shape and of the dtype on the wire."""
        return [
            None if place is None else buffer[place[0] : place[1]].view(place[2]).view(place[3])
            for place in self._slices
        ]

    def as_it_lies(self, values: Sequence[Any], device_type: str = "cpu") -> Tensor | None:
        """Return the only value of a message where its memory is just what is sent, which saves a copy; else None.

        Args:
            values: Of the message.
            device_type: Of the memory that is sent.
        """
        if not self._is_plain:
            return None
        value: Tensor = values[0]
        if not value.is_contiguous() or value.is_conj() or value.is_neg() or value.device.type != device_type:
            return None
        return value.detach()

    def pack(self, values: Sequence[Any], views: Sequence[Tensor | None]) -> None:
        """Write values into the views of a buffer."""
        for place, view in enumerate(views):
            value = values[place]
            if view is None:
                continue
            if not isinstance(value, Tensor):
                view.fill_(value)
            elif self.specs[place].requires_grad:
                view.copy_(value.detach())
            else:
                view.copy_(value)

    def unpacker(self, device: torch.device) -> Callable[[Sequence[Tensor | None]], list[Any]]:
        """Return what unpacks for a device: faster than :meth:`unpack` where all values are tensors as they lie."""
        return self._open if self._lie_as_sent and device.type == "cpu" else partial(self.unpack, device=device)

    def _open(self, views: Sequence[Tensor | None]) -> list[Any]:
        tensors: list[Any] = [view.detach() for view in views if view is not None]
        for place in self._differentiable:
            tensors[place].requires_grad = True
        return tensors

    def unpack(self, views: Sequence[Tensor | None], device: torch.device) -> list[Any]:
        """Return the values in the views of a buffer; tensors that want a gradient are leaves that collect it."""
        is_as_it_lies = self.wire == "float32" and device.type == "cpu"
        values: list[Any] = []
        for spec, view in zip(self.specs, views, strict=True):
            if view is None:
                values.append(None)
            elif spec.kind != "tensor":
                values.append(view.item())
            else:
                tensor = view.detach()
                if not is_as_it_lies:
                    tensor = tensor.to(device, _DTYPES[spec.dtype])
                values.append(tensor.requires_grad_() if spec.requires_grad else tensor)
        return values


class Outgoing(Protocol):
    """One way of messages to a rank."""

    def send_header(self, header: Tensor, tag: int) -> None: ...  # noqa: D102 - see over_gloo.py

    def send(self, packing: Packing, values: Sequence[Any], tag: int) -> None: ...  # noqa: D102

    def settle(self, tag: int) -> None: ...  # noqa: D102

    def flush(self) -> None: ...  # noqa: D102


class Incoming(Protocol):
    """One way of messages from a rank."""

    @property
    def wants_buffers(self) -> bool: ...  # noqa: D102 - see over_gloo.py

    def take_header(self, tag: int) -> bytes: ...  # noqa: D102

    def post(self, packing: Packing, tag: int) -> None: ...  # noqa: D102

    def take(self, packing: Packing, tag: int) -> Sequence[Tensor | None]: ...  # noqa: D102

    def let_go(self) -> None: ...  # noqa: D102


class MessageBuffer:
    """The memory of one message, with a view of every value in it.

    What is received is not copied, so a buffer is used again once nobody else holds its memory: not the stage, not the
    autograd graph, not a loss that keeps what it was given.

    Attributes:
        content: All of it, as bytes.
        views: Of every value; None for a value that takes no bytes.
    """

    __slots__ = ("_address", "_own_uses", "_storage", "content", "views")

    def __init__(self, content: Tensor, packing: Packing) -> None:
        self.content = content
        self.views = packing.views(content)
        self._storage = content.untyped_storage()  # lives as long as its address is asked
        self._address = self._storage._cdata
        self._own_uses = _uses(self._address)

    @property
    def is_unused(self) -> bool:
        """Whether nobody but this object holds the memory."""
        return bool(_uses(self._address) == self._own_uses)


def bytes_packing(count: int) -> Packing:
    """Return the layout of a message of so many bytes."""
    return Packing([ValueSpec("tensor", "uint8", (count,))], "float32")


def packing_of_header(header: bytes, count: int, sender: str) -> Packing:
    """Read a header of so many values.

    Raises:
        RunError: where it is none; a peer's word is not taken for granted.
    """
    try:
        content = json.loads(header)
        specs = [
            ValueSpec(str(kind), str(dtype), tuple(int(size) for size in shape), bool(requires_grad))
            for kind, dtype, shape, requires_grad in content["values"]
        ]
        if any(size < 0 for spec in specs for size in spec.shape):
            raise ValueError("a size is negative")
        packing = Packing(specs, content["wire"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise RunError(f"{sender} sent no header of a message; do all ranks run the same version?") from error
    if len(packing.specs) != count:
        raise RunError(
            f"{sender} describes {len(packing.specs)} values where {count} are read; are the plans the same?"
        )
    return packing


def check_values(packing: Packing, values: Sequence[Any], names: Sequence[str]) -> None:
    """Check values against what the first message of their route was.

    Raises:
        RunError: naming the value, what it was and what it is.
    """
    for spec, value, name in zip(packing.specs, values, names, strict=True):
        found = describe(value, name)
        if found != spec:
            raise RunError(
                f"value {printable(name)!r} is {found} in this micro-batch and was {spec} in the first one; a message "
                f"keeps its layout, so make every micro-batch of the same shape"
            )
