"""What the passes of a profile read: several inputs in turn, as the stages of a backend take them.

Left out: how they are generated (the backend's ``example_inputs``).
"""

from collections.abc import Mapping
from typing import Any

from heterps_compile.backends.borders import as_tensor
from heterps_compile.backends.contract import Backend
from heterps_compile.ir.graph import Graph

_MOST, _MOST_BYTES = 8, 64 << 20


def inputs_in_turn(backend: Backend, graph: Graph, device: str) -> list[Mapping[str, Any]]:
    """Generate inputs by name, as many as there is memory for; for stages of torch on their device."""
    size_bytes = sum(graph.size_bytes(name) for name in graph.inputs)
    several = min(_MOST, max(1, _MOST_BYTES // max(1, size_bytes)))
    return [_taken_by(backend, backend.example_inputs(graph, seed), device) for seed in range(several)]


def _taken_by(backend: Backend, values: Mapping[str, Any], device: str) -> Mapping[str, Any]:
    can = backend.capabilities
    if can.trains and not can.is_module:  # the module around such a stage takes tensors alone
        return {name: as_tensor(value, name) if hasattr(value, "shape") else value for name, value in values.items()}
    if device != "cpu":
        return {name: value.to(device) if hasattr(value, "to") else value for name, value in values.items()}
    return values
