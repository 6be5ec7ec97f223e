"""Generate inputs that a torch model accepts.

1. Integers that index an embedding are drawn from its rows, unless the model counts with them too (differences of
   places, which index a second table): those keep the example's values.
2. Other integers, booleans and numbers, and floats that the model turns into integers, keep the example's values
   (repeated or cut to the shape wanted), or are one where no example was given.
3. Other floats are standard normal.

Left out: dependencies between inputs (lengths that must fit a padding, offsets of bags).
"""

from typing import Any

import torch

from heterps_compile.ir.graph import Graph, OpKind

_KEEPS_INDICES = frozenset({OpKind.VIEW, OpKind.MOVE})


def generate_inputs(graph: Graph, seed: int) -> dict[str, Any]:
    """Generate seeded inputs by name; the same seed gives the same inputs."""
    generator = torch.Generator().manual_seed(seed)
    return {name: _generate(graph, name, generator) for name in graph.inputs}


def _generate(graph: Graph, name: str, generator: torch.Generator) -> Any:
    example = graph.source.examples.get(name)
    fake = next(n.meta["val"] for n in graph.source.graph.nodes if n.name == name)
    if not isinstance(fake, torch.Tensor):
        return _number(graph, fake, example)
    dtype, shape, device = fake.dtype, graph.shape(name), fake.device
    is_whole_number = not (dtype.is_floating_point or dtype.is_complex)
    if is_whole_number and dtype is not torch.bool:
        rows = _table_rows(graph, name)
        if rows is not None and not (isinstance(example, torch.Tensor) and _counts(graph, name)):
            return torch.randint(0, rows, shape, generator=generator, dtype=dtype).to(device)
    if is_whole_number or _turns_to_integers(graph, name):
        if isinstance(example, torch.Tensor):
            return _reshaped(example, shape)
        return torch.ones(shape, dtype=dtype, device=device)
    wide = dtype if dtype.itemsize >= 2 else torch.float32  # float8 has no random numbers of its own
    return torch.randn(shape, generator=generator, dtype=wide).to(dtype=dtype, device=device)


def _number(graph: Graph, fake: Any, example: Any) -> Any:
    """Return a number's own value: as the example has it, or as it was when the model was read."""
    if example is not None or not isinstance(fake, torch.SymInt):
        return fake if example is None else example
    return int(fake.node.hint)


def _table_rows(graph: Graph, name: str) -> int | None:
    """Return the rows of the smallest table that an input indexes, or None where it indexes none."""
    rows: list[int] = []
    for index in _readers_of_indices(graph, name):
        node = graph.nodes[index]
        tables = [p for p in node.inputs if p in graph.parameters and len(graph.shape(p)) > 1]
        if node.kind is OpKind.EMBEDDING and tables:
            rows.append(graph.shape(tables[0])[0])
    return min(rows, default=None)


def _readers_of_indices(graph: Graph, name: str) -> list[int]:
    """Return the nodes that an input's elements reach unchanged: through views, copies and casts."""
    reached, found, seen = [name], [], {name}
    while reached:
        current = reached.pop()
        for index in graph.consumers.get(current, ()):
            node = graph.nodes[index]
            first_value = next((v for v in node.inputs if v in graph.values), None)
            if first_value != current:  # offsets of bags, weights of samples
                continue
            found.append(index)
            if node.kind in _KEEPS_INDICES:
                fresh = [out for out in node.outputs if out not in seen]
                seen.update(fresh)
                reached += fresh
    return found


def _turns_to_integers(graph: Graph, name: str) -> bool:
    for index in _readers_of_indices(graph, name):
        for out in graph.nodes[index].outputs:
            dtype = graph.values[out].dtype
            if dtype.startswith(("int", "uint")) and graph.values[out].shape:
                return True
    return False


def _counts(graph: Graph, name: str) -> bool:
    """Say whether a node makes other whole numbers of an input's elements than those it was given."""
    nodes = (graph.nodes[index] for index in _readers_of_indices(graph, name))
    made = (graph.values[out] for n in nodes if n.kind not in _KEEPS_INDICES for out in n.outputs)
    return any(value.dtype.startswith(("int", "uint")) and value.shape for value in made)


def _reshaped(example: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Repeat or cut an example along every axis until it has the shape."""
    made = example.detach()
    for axis, size in enumerate(shape):
        if made.shape[axis] != size and made.shape[axis] > 0:
            index = torch.arange(size, device=made.device) % made.shape[axis]
            made = made.index_select(axis, index)
    return made.clone()
