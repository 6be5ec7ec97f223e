"""Run a stage so that it keeps what enters it, and computes its activations again when its backward needs them.

Chen et al., "Training Deep Nets with Sublinear Memory Cost" (arXiv 1604.06174), with the whole stage as one segment;
``torch.utils.checkpoint`` without re-entrance does it. Random numbers and autocast of the repetition are those of the
forward, and so are rows that it pulled from parameter servers (``backends/repeated_forward.py``). What a forward
changes, running statistics, counters, vectors of a power iteration, is not changed again: the repetition works on
copies of these buffers as they were when its forward began, and so computes the same bits.

Left out: a forward that changes a weight, as ``max_norm`` of an embedding does, which is refused by name: a copy of a
table for every micro-batch would take what the repetition is to save.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from heterps_compile.backends.repeated_forward import RepeatedForward, running
from heterps_compile.errors import BackendError
from heterps_compile.escape import printable

_STATISTICS = ("running_mean", "running_var")


class Recomputing:
    """What runs a module so that its backward runs it again."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._changing: _Buffers | None = None

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """Run the module; without gradients as it is.

        Raises:
            BackendError: naming a weight that the forward changes.
        """
        if not torch.is_grad_enabled():
            return self._forward(*values)
        if self._changing is None:
            return self._learn(values)
        before = self._changing.copies()
        return self._run(values, nullcontext(), self._changing, before)

    def _forward(self, *values: Any) -> tuple[Any, ...]:
        made: tuple[Any, ...] = self._module(*values)
        return made

    def _learn(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Run the first forward of all, and see which buffers it changes."""
        every = _Buffers(self._module, (tensor for _, tensor in self._module.named_buffers(remove_duplicate=False)))
        before, watcher = every.copies(), _Watcher()
        # the repetition runs after this forward, when it is known what changes
        made = self._run(values, watcher, every, before)
        for name, weight in self._module.named_parameters():
            if _memory(weight) in watcher.written:
                raise BackendError(
                    f"a forward changes the weight {printable(name)!r}, so it cannot be repeated for its backward; "
                    f"compile with --recompute never"
                )
        changed = [t for t, b in before.items() if _memory(t) in watcher.written or not torch.equal(t, b)]
        for tensor in set(before).difference(changed):
            del before[tensor]
        self._changing = _Buffers(self._module, changed)
        return made

    def _run(
        self,
        values: Sequence[Any],
        watcher: AbstractContextManager[Any],
        buffers: "_Buffers",
        before: Mapping[Tensor, Tensor],
    ) -> tuple[Any, ...]:
        """Run the module, which its backward will run again with buffers as they were before."""
        forward = RepeatedForward()
        made: tuple[Any, ...] = checkpoint(
            self._forward,
            *values,
            use_reentrant=False,
            context_fn=lambda: (_first(forward, watcher), _again(forward, buffers.replaced(before))),
        )
        return made


@contextmanager
def _first(forward: RepeatedForward, watcher: AbstractContextManager[Any]) -> Iterator[None]:
    with watcher, running(forward, again=False):
        yield


@contextmanager
def _again(forward: RepeatedForward, buffers: AbstractContextManager[None]) -> Iterator[None]:
    with buffers, running(forward, again=True):
        yield


class _Buffers:
    """Some buffers of a module, and every place where it has them."""

    def __init__(self, module: nn.Module, tensors: Iterable[Tensor]) -> None:
        self._tensors = list(dict.fromkeys(tensors))
        wanted = set(self._tensors)
        self._places = [
            (part._buffers, key, tensor)
            for part in module.modules()
            for key, tensor in part._buffers.items()
            if tensor is not None and tensor in wanted
        ]

    def copies(self) -> dict[Tensor, Tensor]:
        """Return copies of the buffers as they are, by buffer."""
        return {tensor: tensor.detach().clone() for tensor in self._tensors}

    @contextmanager
    def replaced(self, before: Mapping[Tensor, Tensor]) -> Iterator[None]:
        """Give the module copies in place of its buffers, so that its own are left alone."""
        again = {tensor: copy.clone() for tensor, copy in before.items()}
        for table, key, tensor in self._places:
            table[key] = again.get(tensor, tensor)
        try:
            yield
        finally:
            for table, key, tensor in self._places:
                table[key] = tensor


class _Watcher(TorchDispatchMode):
    """Sees what ops write to.

    Attributes:
        written: Memory that they did, as :func:`_memory` names it.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of torch
        self.written: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the op, and note the tensors that its schema says it writes, or keeps statistics in."""
        given = dict(kwargs or {})
        for place, argument in enumerate(func._schema.arguments):
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            if is_written or argument.name in _STATISTICS:
                value = args[place] if place < len(args) else given.get(argument.name)
                for tensor in value if isinstance(value, (list, tuple)) else [value]:
                    if isinstance(tensor, Tensor):
                        self.written.add(_memory(tensor))
        return func(*args, **given)


def _memory(tensor: Tensor) -> int:
    """Return what names the memory of a tensor, and of all views into it."""
    address: int = tensor.untyped_storage()._cdata
    return address
