"""Read a PyTorch model into a graph: an ``nn.Module``, a ``GraphModule`` or an ``ExportedProgram``.

The graph shares the model's parameters and buffers; nothing of the model is copied or changed.

Left out: control flow (a ``torch.cond`` is one node), tensors without strided memory, models that are not traceable.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from ..errors import InputError
from ..escape import printable, shorten
from ..ir.graph import ITEM_BITS, OPAQUE, Graph, Node, Parameter, Value
from .torch_call import Accepts, CallStructure, Fixed, Leaf
from .torch_clean import erase_checks, inline_grad_modes
from .torch_export import export_module, read_exported
from .torch_memory import Order, order_writes
from .torch_module import read_graph_module
from .torch_program import Program, check_examples, storage_key
from .torch_source import TorchSource
from .torch_symbols import Symbols, bind_symbols
from .torch_work import NodeWork, measure_nodes


def import_torch(
    model: nn.Module | fx.GraphModule | ExportedProgram,
    example_inputs: tuple[Any, ...] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    batch: int | None = None,
    shapes: Mapping[str, int] = MappingProxyType({}),
    dynamic_shapes: Any = None,
    name: str | None = None,
) -> Graph:
    """Read a PyTorch model.

    An ``nn.Module`` is traced with ``torch.export`` in its present mode (``training`` or not); a ``GraphModule``
    keeps its nodes and submodules as they are.

    Args:
        model: The model.
        example_inputs: Positional inputs of the shapes to plan for.
        example_kwargs: Keyword inputs.
        batch: Number of the batch dimension; it must be dynamic, or be that number already.
        shapes: Numbers of other dynamic dimensions by name; the example's where left out.
        dynamic_shapes: Passed to ``torch.export.export``.
        name: Of the graph; the class's name where left out.

    Raises:
        InputError: where the model cannot be traced, or inputs, shapes and batch do not fit it.
        UnknownNameError: where ``shapes`` names no dimension.
    """
    program = _read(model, example_inputs, dict(example_kwargs or {}), dynamic_shapes, name)
    inline_grad_modes(program.graph, program.modules, program.name)
    erase_checks(program.graph)
    order = order_writes(program.graph, program.writes, program.module_tensors)
    _name_ties(program)
    in_leaves = _rename_values(program, order)
    symbols = _bind(program, batch, shapes)
    return _to_graph(program, order, in_leaves, symbols)


def _read(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any, name: str | None) -> Program:
    check_examples(args, kwargs)
    label = name or type(model).__name__
    if isinstance(model, ExportedProgram):
        label = name or "exported"
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


def _name_ties(program: Program) -> None:
    """Let every reader of a tied tensor read it by the name that its own module has for it."""
    for node in list(program.graph.nodes):
        names = program.aliases.get(str(node.target), ()) if node.op == "get_attr" else ()
        own = {f"{alias.rpartition('.')[0]}": alias for alias in reversed(names)}
        for user in list(node.users):
            alias = own.get(user.meta.get("path", ""))
            if alias is None or alias == node.target or user.op == "output":
                continue
            program.tensors[alias] = program.tensors[str(node.target)]
            program.kinds[alias] = program.kinds[str(node.target)]
            with program.graph.inserting_before(node):
                named = program.graph.create_node("get_attr", alias)
            named.meta = dict(node.meta)
            user.replace_input_with(node, named)
        if names and not node.users:
            program.graph.erase_node(node)
    read = {str(n.target) for n in program.graph.nodes if n.op == "get_attr"}
    read.update(name for names in program.module_tensors.values() for name in names)
    for name in set(program.tensors) - read:
        del program.tensors[name]


def _rename_values(program: Program, order: Order) -> tuple[Leaf, ...]:
    """Rename the nodes that go by a parameter's name, since values and parameters share one namespace."""
    renamed = {}
    for node in program.graph.nodes:
        while node.op not in ("get_attr", "output") and node.name in program.tensors:
            old = node.name
            node._rename(f"{old}_value")
            renamed[old] = node.name
            for name, operands in list(order.writes.items()):
                order.writes[node.name if name == old else name] = order.writes.pop(name)
                del operands
    for old, new in renamed.items():
        if old in program.examples:
            program.examples[new] = program.examples.pop(old)
    return tuple(renamed.get(leaf, leaf) if isinstance(leaf, str) else leaf for leaf in program.in_leaves)


def _bind(program: Program, batch: int | None, shapes: Mapping[str, int]) -> Symbols:
    nodes = list(program.graph.nodes)
    values = [(n.name, n.meta.get("val")) for n in nodes if n.op == "placeholder"]
    return bind_symbols(
        program.name,
        values,
        [(n.name, n.meta.get("val")) for n in nodes if n.op.startswith("call_")],
        batch=batch,
        shapes=shapes,
        user_names=program.dimension_names,
        ranges=program.ranges,
    )


def _to_graph(program: Program, order: Order, in_leaves: tuple[Leaf, ...], symbols: Symbols) -> Graph:
    fx_nodes = list(program.graph.nodes)
    work, notes = measure_nodes(program, order, symbols)
    values = {
        n.name: _value(n.name, n.meta.get("val"), symbols)
        for n in fx_nodes
        if n.op == "placeholder" or n.op.startswith("call_")
    }
    made, read = _tokens(order)
    values.update({token: Value(token, OPAQUE, ()) for tokens in made.values() for token in tokens})
    nodes = tuple(
        _node(i, n, program, work[n], tuple(read.get(n.name, ())), tuple(made.get(n.name, ())))
        for i, n in enumerate(fx_nodes)
        if n.op.startswith("call_")
    )
    inputs = tuple(leaf for leaf in in_leaves if isinstance(leaf, str))
    out_leaves = _out_leaves(fx_nodes[-1])
    companions, unheld = _companions(program)
    source = TorchSource(
        graph=program.graph,
        tensors=MappingProxyType({**program.tensors, **{n: program.state[n] for c in companions.values() for n in c}}),
        modules=MappingProxyType(program.modules),
        transient=program.transient,
        companions=MappingProxyType(companions),
        writes=MappingProxyType(order.writes),
        pinned=order.pinned,
        call=_call(program, in_leaves, out_leaves, values),
        whole=program.whole,
        examples=MappingProxyType(program.examples),
        notes=(*program.notes, *notes, *unheld),
    )
    first = next((v.shape[0] for v in map(values.__getitem__, inputs) if v.shape), 1)
    return Graph(
        name=program.name,
        nodes=nodes,
        inputs=inputs,
        outputs=tuple(leaf for leaf in out_leaves if isinstance(leaf, str)),
        values=values,
        parameters=_parameters(program),
        bindings=MappingProxyType(symbols.bindings),
        batch_symbol=None if symbols.batch is None else symbols.names[symbols.batch],
        batch=first if isinstance(first, int) else symbols.bindings[first],
        family="torch",
        source=source,
    )


def _call(
    program: Program, in_leaves: tuple[Leaf, ...], out_leaves: tuple[Leaf, ...], values: Mapping[str, Value]
) -> CallStructure:
    accepts = {}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            value, is_tensor = values[node.name], isinstance(node.meta.get("val"), torch.Tensor)
            shape = tuple(d if isinstance(d, int) else None for d in value.shape)
            form = Accepts(value.dtype if is_tensor else None, shape)
            accepts[node.name] = form if program.fixed_shapes else Accepts()
    return CallStructure(
        in_spec=program.in_spec,
        in_leaves=in_leaves,
        out_spec=program.out_spec,
        out_leaves=out_leaves,
        names=program.parameter_names,
        accepts=accepts,
    )


def _companions(program: Program) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Give the tensors that no node reads by the read one they belong with, and a note on those without one."""
    by_storage = {storage_key(name, tensor): name for name, tensor in reversed(program.tensors.items())}
    by_module = {name.rpartition(".")[0]: name for name in reversed(program.tensors)}
    found: dict[str, tuple[str, ...]] = {}
    unheld = []
    for name, tensor in program.state.items():
        if name not in program.tensors:
            home = by_storage.get(storage_key(name, tensor)) or by_module.get(name.rpartition(".")[0])
            if home is None:
                unheld.append(name)
            else:
                found[home] = (*found.get(home, ()), name)
    shown = ", ".join(printable(shorten(name, 60)) for name in unheld[:3]) + (", ..." if len(unheld) > 3 else "")
    note = f"{len(unheld)} parameters of {program.name} are read by no node and are in no stage: {shown}"
    return found, [note] if unheld else []


def _value(name: str, fake: Any, symbols: Symbols) -> Value:
    if isinstance(fake, torch.Tensor):
        return Value(name, str(fake.dtype).removeprefix("torch."), symbols.dims(fake))
    for types, dtype in (
        ((bool, torch.SymBool), "bool"),
        ((int, torch.SymInt), "int64"),
        ((float, torch.SymFloat), "float64"),
    ):
        if isinstance(fake, types):
            return Value(name, dtype, ())
    return Value(name, OPAQUE, ())


def _tokens(order: Order) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Give the values, no tensors, that tie the nodes of each chain to one another: made and read, by node name."""
    made: dict[str, list[str]] = {}
    read: dict[str, list[str]] = {}
    for chain in order.chains:
        for earlier, later in zip(chain, chain[1:], strict=False):
            token = f"{earlier.name}:then:{later.name}"
            if token not in made.get(earlier.name, ()):
                made.setdefault(earlier.name, []).append(token)
                read.setdefault(later.name, []).append(token)
    return made, read


def _node(
    index: int, node: fx.Node, program: Program, work: NodeWork, read: tuple[str, ...], made: tuple[str, ...]
) -> Node:
    tensors = [
        str(n.target) if n.op == "get_attr" else n.name
        for n in node.all_input_nodes
        if n.op != "get_attr" or n.target in program.tensors  # not a sub-graph of a control-flow op
    ]
    held = program.module_tensors.get(str(node.target), ()) if node.op == "call_module" else ()
    return Node(
        name=node.name,
        op=work.op,
        kind=work.kind,
        inputs=(*tensors, *held, *read),
        outputs=(node.name, *made),
        flops=work.flops,
        origin=index,
        module_path=node.meta.get("path", ""),
    )


def _out_leaves(output: fx.Node) -> tuple[Leaf, ...]:
    results = output.args[0]
    assert isinstance(results, tuple)  # noqa: S101 - both readers make it so; this tells the type checker
    return tuple(
        (str(r.target) if r.op == "get_attr" else r.name) if isinstance(r, fx.Node) else Fixed(r) for r in results
    )


def _parameters(program: Program) -> dict[str, Parameter]:
    storages: dict[tuple[object, ...], str] = {}
    made = {}
    for name, tensor in program.tensors.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        size_bytes = (tensor.numel() * ITEM_BITS[dtype] + 7) // 8 if dtype in ITEM_BITS else tensor.nbytes
        storage = storages.setdefault(storage_key(name, tensor), name)
        made[name] = Parameter(name, dtype, tuple(tensor.shape), storage, size_bytes, program.kinds[name])
    return made
