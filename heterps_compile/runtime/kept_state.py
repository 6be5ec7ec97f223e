"""What a model keeps from one call to the next: the buffers and parameters that it changes.

Left out: what a stage does with it (its backend); comparing (``verify.py``).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from heterps_compile.ir.graph import TORCH, Graph


def written_by_nodes(graph: Graph) -> tuple[str, ...]:
    """Return the names of the buffers and parameters that nodes of a graph change, in order."""
    writes: Mapping[str, tuple[str, ...]] = getattr(graph.source, "writes", {})
    return tuple(dict.fromkeys(name for names in writes.values() for name in names if name in graph.parameters))


def kept_by_whole(graph: Graph) -> dict[str, Any]:
    """Return copies of what the whole model keeps or may keep, as it is now, by name; nothing for an ONNX model."""
    if graph.family != TORCH:
        return {}
    held = {name: graph.source.tensors[name] for name in written_by_nodes(graph)}
    whole = graph.source.whole()
    if hasattr(whole, "named_buffers"):
        own = dict(whole.named_parameters(remove_duplicate=False))
        held.update({name: own[name] for name in held if name in own})
        held.update(whole.named_buffers(remove_duplicate=False))
    return {name: tensor.detach().clone() for name, tensor in held.items()}


def kept_by_stages(stages: Iterable[Any], names: Iterable[str]) -> dict[str, Any]:
    """Return copies of what stages keep, as it is now, by name; of those names, the ones that a stage holds."""
    wanted = set(names)
    found: dict[str, Any] = {}
    for stage in stages:
        held = _held(stage)
        found.update({name: held[name]() for name in wanted.intersection(held) - set(found)})
    return found


def _held(stage: Any) -> dict[str, Callable[[], Any]]:
    """Return what makes a copy of each thing that a stage holds and may change."""
    if hasattr(stage, "updated"):  # of the jax backend: arrays are never changed in place
        arrays, tied = stage.arrays, stage.tied_as
        changed = {tied.get(name, name): arrays[name] for name in stage.updated if name in arrays}
        names = {name: tied.get(name, name) for name in (*arrays, *tied)}
        return {name: lambda at=at: changed[at] for name, at in names.items() if at in changed}  # type: ignore[misc]
    if not hasattr(stage, "named_buffers"):
        return {}
    tensors = (*stage.named_parameters(remove_duplicate=False), *stage.named_buffers(remove_duplicate=False))
    return {name: tensor.detach().clone for name, tensor in tensors}
