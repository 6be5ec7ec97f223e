"""Which ONNX ops the backends run, and at which opsets.

Left out: ops of PyTorch graphs, which the torch backend runs as PyTorch does, and the others by way of ONNX.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from heterps_compile.errors import BackendError

from .find import find_backend

OpName = tuple[str, str]
"""A domain, "" for ONNX's own, and an op."""


@runtime_checkable
class HasOps(Protocol):
    """A backend that can say which ops it runs."""

    def declared_ops(self) -> Mapping[OpName, Sequence[int]]:
        """Give the opsets from which on each version of an op is right, ascending."""
        ...


def ops_by_backend(names: Sequence[str]) -> dict[OpName, dict[str, tuple[int, ...]]]:
    """Give for every op the backends that run it, with the opsets of its versions there; sorted by op.

    Raises:
        UnknownNameError: for an unknown backend.
        BackendError: where a backend cannot say which ops it runs.
    """
    found: dict[OpName, dict[str, tuple[int, ...]]] = {}
    for name in names:
        backend = find_backend(name)
        if not isinstance(backend, HasOps):
            raise BackendError(f"the backend {name!r} does not say which ops it runs")
        for op, opsets in backend.declared_ops().items():
            found.setdefault(op, {})[name] = tuple(sorted(opsets))
    return dict(sorted(found.items(), key=lambda item: (item[0][0], item[0][1].lower())))
