"""Open the batch that the example inputs of a module fix: trace it with a dynamic one, on examples that are repeated.

``torch.export`` takes a size of 1 for a constant, so that examples of the batch asked for are made. Each tensor that
begins with the batch of the first is one of samples; where that cannot be traced, a vector is the same for all samples.

The sizes of an exported program are part of it: they are taken out of it (``open_batch/open_program.py``).

Left out: a ``GraphModule`` that is traced already.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from heterps_compile.errors import InputError
from heterps_compile.ir.graph import Graph, OpenedBatch

from .open_batch.open_program import OpenedProgram

_LEAST = 2  # below it a size is a constant of the trace


@dataclass(frozen=True, slots=True)
class OpenExamples:
    """Example inputs of another batch than those given.

    Attributes:
        args: Positional inputs.
        kwargs: Keyword inputs.
        dynamic_shapes: As ``torch.export.export`` takes them.
        fixed: The batch of those given.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dynamic_shapes: Any
    fixed: int


def open_examples(
    model: object, args: tuple[Any, ...], kwargs: Mapping[str, Any], batch: int | None
) -> Iterator[OpenExamples]:
    """Yield example inputs of a batch, the likeliest first; none where the module is traced, or has that batch."""
    is_module = isinstance(model, nn.Module) and not isinstance(model, (fx.GraphModule, torch.jit.ScriptModule))
    tensors = [leaf for leaf in pytree.tree_leaves((args, dict(kwargs))) if _has_axis(leaf)]
    if not is_module or batch is None or batch < _LEAST or not tensors or tensors[0].shape[0] in (0, batch):
        return
    fixed = int(tensors[0].shape[0])
    sampled = [tensor for tensor in tensors if tensor.shape[0] == fixed]
    tables = [tensor for tensor in sampled if tensor.dim() > 1]
    for chosen in (sampled, tables) if 0 < len(tables) < len(sampled) else (sampled,):
        yield _repeated(model, (tuple(args), dict(kwargs)), {id(tensor) for tensor in chosen}, fixed, batch)


def _has_axis(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0


def _repeated(model: Any, given: Any, chosen: set[int], fixed: int, batch: int) -> OpenExamples:
    rows, dim = torch.arange(batch) % fixed, torch.export.Dim("batch")
    collection: Any = torch.export.ShapesCollection  # it has no types
    shapes = collection()

    def repeated(leaf: Any) -> Any:
        if id(leaf) not in chosen:
            return leaf
        made = leaf.detach().index_select(0, rows.to(leaf.device)).requires_grad_(leaf.requires_grad)
        shapes[made] = {0: dim}
        return made

    args, kwargs = pytree.tree_map(repeated, given)
    return OpenExamples(args, kwargs, shapes.dynamic_shapes(model, args, kwargs), fixed)


def read_opened(
    examples: Iterator[OpenExamples],
    batch: int,
    read: Callable[[OpenExamples], Graph],
    original: Callable[[], Graph],
    *,
    is_training: bool,
) -> Graph | None:
    """Read a module at a batch that its example inputs do not have; None where there are no such examples.

    Args:
        examples: Of that batch.
        batch: That is asked for.
        read: Reads the module on examples.
        original: Reads it on those given.
        is_training: Whether the module is in training mode, where a batch norm mixes samples on purpose.

    Raises:
        InputError: where it cannot be traced with a dynamic batch.
    """
    first: tuple[OpenExamples, InputError] | None = None
    for one in examples:
        note = f"the batch, which the example inputs fix at {one.fixed}, was opened: "
        note += "the module was traced with a dynamic one"
        if is_training:
            note += "; in training mode samples may mix, and were not compared one by one"
        try:
            return _told(read(one), one.fixed, note, None if is_training else original)
        except InputError as error:
            first = first or (one, error)
    if first is None:
        return None
    opened, refusal = first
    raise InputError(
        f"the batch is to be {batch}, the example inputs fix it at {opened.fixed}, and it cannot be opened: {refusal}; "
        f"or give example inputs of batch {batch}"
    ) from refusal


def read_opened_program(
    opened: OpenedProgram | None, read: Callable[[ExportedProgram], Graph], original: Callable[[], Graph]
) -> Graph | None:
    """Read an exported program whose batch was opened; None where it was not.

    Args:
        opened: The program, with how it was opened.
        read: Reads it at the batch asked for.
        original: Reads the program as it was.
    """
    return None if opened is None else _told(read(opened.program), opened.fixed, opened.note, original)


def _told(graph: Graph, fixed: int, note: str, original: Callable[[], Graph] | None) -> Graph:
    """Return a graph that tells how its batch was opened."""
    ends = (*graph.inputs, *graph.outputs)
    axes = {
        name: graph.values[name].shape.index(graph.batch_symbol)
        for name in ends
        if name in graph.values and graph.batch_symbol in graph.values[name].shape
    }
    return replace(
        graph,
        source=replace(graph.source, notes=(note, *graph.source.notes)),
        opened=None if original is None else OpenedBatch(fixed, axes, original),
    )
