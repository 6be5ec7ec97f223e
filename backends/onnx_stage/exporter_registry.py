"""The table of PyTorch's ONNX exporter, read once a process; the exporter itself reads it anew for every stage.

That takes 0.44 s of processor time each: BERT in two stages is compiled for ONNX Runtime in 2.2 instead of 3.1 s.

Left out: releases of PyTorch that keep it elsewhere, which read it anew.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_READ: dict[Any, Any] = {}


@contextmanager
def read_once() -> Iterator[None]:
    """Have exports meanwhile start from a copy of what was read first; who registers something changes the copy."""
    try:
        from torch.onnx._internal.exporter._registration import ONNXRegistry  # noqa: PLC0415 - private: may be gone

        registry: Any = ONNXRegistry
        original = vars(registry)["from_torchlib"]
    except (ImportError, KeyError):
        yield
        return

    def from_torchlib(cls: Any, *args: Any, **options: Any) -> Any:
        # operators of torchvision are known once it is imported
        key = (cls, args, tuple(sorted(options.items())), "torchvision" in sys.modules)
        if key not in _READ:
            _READ[key] = original.__func__(cls, *args, **options)
        made = cls()
        vars(made).update(vars(_READ[key]))
        made.functions = {op: list(found) for op, found in made.functions.items()}
        return made

    registry.from_torchlib = classmethod(from_torchlib)
    try:
        yield
    finally:
        registry.from_torchlib = original
