"""Read a PyTorch model into a graph: an ``nn.Module``, a ``GraphModule`` or an ``ExportedProgram``.

The graph shares the model's parameters and buffers; nothing of the model is copied or changed.

Left out: control flow (a ``torch.cond`` is one node), tensors without strided memory, models that are not traceable.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from heterps_compile.errors import InputError
from heterps_compile.escape import printable
from heterps_compile.ir.graph import Graph

from .noise import Noise
from .open_batch.open_program import open_program
from .torch_batch import open_examples, read_opened, read_opened_program
from .torch_clean import autocast_notes, erase_checks, inline_regions
from .torch_export import export_module, read_exported
from .torch_float64 import copy_in_float64, widen_values
from .torch_graph import build_graph
from .torch_library import without_wrapper
from .torch_memory import Order, mark_idle_dropout, order_writes
from .torch_module import read_graph_module
from .torch_names import name_ties, rename_values
from .torch_program import Program, check_examples, overlaps
from .torch_symbols import bind_symbols
from .torch_write_back import mend_write_backs


def import_torch(
    model: nn.Module | fx.GraphModule | ExportedProgram,
    example_inputs: tuple[Any, ...] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    batch: int | None = None,
    shapes: Mapping[str, int] = MappingProxyType({}),
    dynamic_shapes: Any = None,
) -> Graph:
    """Read a PyTorch model.

    An ``nn.Module`` is traced with ``torch.export`` in its present mode (``training`` or not); a ``GraphModule``
    keeps its nodes and submodules as they are.

    Args:
        model: The model.
        example_inputs: Positional inputs of the shapes to plan for.
        example_kwargs: Keyword inputs.
        batch: Number of the batch dimension; where the example inputs of an ``nn.Module`` have another, it is traced
            with a dynamic one, and where an ``ExportedProgram`` fixes another, it is opened.
        shapes: Numbers of other dynamic dimensions by name; the example's where left out.
        dynamic_shapes: Passed to ``torch.export.export``.

    Raises:
        InputError: where the model cannot be traced, or inputs, shapes and batch do not fit it.
        UnknownNameError: where ``shapes`` names no dimension.
    """
    check_examples(example_inputs, example_kwargs or {})
    module, note = without_wrapper(model)
    if note:
        graph = import_torch(
            module, example_inputs, example_kwargs, batch=batch, shapes=shapes, dynamic_shapes=dynamic_shapes
        )
        return replace(graph, source=replace(graph.source, notes=(note, *graph.source.notes)))
    if isinstance(model, ExportedProgram) and dynamic_shapes is None:
        opened = read_opened_program(
            open_program(model, tuple(example_inputs), example_kwargs or {}, batch),
            lambda program: import_torch(program, batch=batch, shapes=shapes),
            lambda: import_torch(model, example_inputs, example_kwargs),
        )
        if opened is not None:
            return opened
    if dynamic_shapes is None and batch is not None:
        opened = read_opened(
            open_examples(model, tuple(example_inputs), example_kwargs or {}, batch),
            batch,
            lambda one: import_torch(
                model, one.args, one.kwargs, batch=batch, shapes=shapes, dynamic_shapes=one.dynamic_shapes
            ),
            lambda: import_torch(model, example_inputs, example_kwargs),
            is_training=isinstance(model, nn.Module) and any(part.training for part in model.modules()),
        )
        if opened is not None:
            return opened
    program = _read(model, example_inputs, dict(example_kwargs or {}), dynamic_shapes)
    program.notes.extend(autocast_notes(program.graph, program.modules))
    inline_regions(program.graph, program.modules, program.name)
    erase_checks(program.graph)
    mark_idle_dropout(program.graph)
    mend_write_backs(program.graph)
    name_ties(program)
    in_leaves = rename_values(program)
    order = order_writes(program.graph, program.writes, program.module_tensors)
    _judge_written(program, order)
    _refuse_changed_results(program, order)
    program.notes.extend(
        f"{program.name} changes its input {name!r} in place; its stages leave it as it is"
        for name in order.changed_inputs
    )
    symbols = bind_symbols(program, batch=batch, shapes=shapes)
    graph = build_graph(program, order, in_leaves, symbols)
    if isinstance(model, ExportedProgram):
        return graph

    def in_float64(noise: Noise | None = None) -> Graph:
        wide = copy_in_float64(model, program.name, noise)
        inputs, keywords = widen_values(example_inputs), widen_values(dict(example_kwargs or {}))
        return import_torch(wide, inputs, keywords, batch=batch, shapes=shapes, dynamic_shapes=dynamic_shapes)

    return replace(graph, source=replace(graph.source, in_float64=in_float64))


def _read(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any) -> Program:
    check_examples(args, kwargs)
    label = type(model).__name__
    if isinstance(model, ExportedProgram):
        label = "exported"
    elif not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise InputError(
            f"a {type(model).__name__} is no model that can be read; pass a torch.nn.Module with example_inputs, "
            f"a torch.fx.GraphModule or a torch.export.ExportedProgram"
        )
    elif not isinstance(model, fx.GraphModule):
        return export_module(model, tuple(args), kwargs, dynamic_shapes, label)
    if dynamic_shapes is not None:
        raise InputError(
            f"dynamic_shapes is for an nn.Module that is still to be traced, and {label} is a "
            f"{type(model).__name__}; export the module it was made from"
        )
    if isinstance(model, ExportedProgram):
        return read_exported(model, tuple(args), kwargs, label)
    return read_graph_module(model, tuple(args), kwargs, label)


def _refuse_changed_results(program: Program, order: Order) -> None:
    """Refuse a model that returns an input itself after changing it through a view: stages change a copy.

    Raises:
        InputError: naming the input.
    """
    *_, output = program.graph.nodes
    for node in output.all_input_nodes:
        if node.op == "placeholder" and node.name in order.changed_inputs:
            raise InputError(
                f"{program.name} returns its input {printable(node.name)!r} after changing it in place, and stages "
                f"leave what they are given as it is; change a copy of it (clone())"
            )


def _judge_written(program: Program, order: Order) -> None:
    """Take a constant that is changed for the buffer that it is, and refuse two buffers that share a part of memory.

    Raises:
        InputError: naming two tensors that share memory and are not the same, where a node changes one of them: stages
            that are written to files could not share it.
    """
    written = {name for names in order.writes.values() for name in names if name in program.tensors}
    program.kinds.update((name, "buffer") for name in written if program.kinds[name] == "constant")
    everything = {**program.state, **program.tensors}
    for name in sorted(written):
        for other, tensor in everything.items():
            if other != name and overlaps(everything[name], tensor):
                raise InputError(
                    f"{printable(name)!r} and {printable(other)!r} of {program.name} share memory and are not the same "
                    f"tensor, and the forward changes it: stages cannot share it; make one of them a copy (clone())"
                )
