"""From a torch program to the graph of the IR.

Left out: reading the model (``torch_fx.py``).
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

from heterps_compile.escape import printable, shorten
from heterps_compile.ir.graph import ITEM_BITS, OPAQUE, TORCH, Graph, Node, Parameter, Value

from .structures import Accepts
from .torch_call import CallStructure, Fixed, Leaf
from .torch_draws import draws
from .torch_memory import Order
from .torch_program import Program, storage_key
from .torch_source import TorchSource
from .torch_sparse import has_sparse_gradient
from .torch_symbols import Symbols
from .torch_work import NodeWork, measure_nodes


def build_graph(program: Program, order: Order, in_leaves: tuple[Leaf, ...], symbols: Symbols) -> Graph:
    """Build the graph of a program that was cleaned, ordered and bound to numbers."""
    fx_nodes = list(program.graph.nodes)
    work, notes = measure_nodes(program, order, symbols)
    values = {
        n.name: _value(n.name, n.meta.get("val"), symbols)
        for n in fx_nodes
        if n.op == "placeholder" or n.op.startswith("call_")
    }
    made, read = _tokens(order)
    values.update({token: Value(token, OPAQUE, ()) for tokens in made.values() for token in tokens})
    nodes = _in_order_of_draws(
        program,
        tuple(
            _node(i, n, program, work[n], read=read.get(n.name, []), made=made.get(n.name, []))
            for i, n in enumerate(fx_nodes)
            if n.op.startswith("call_")
        ),
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
        attributes=program.attributes,
        lost=program.lost,
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
        family=TORCH,
        source=source,
    )


def _call(
    program: Program, in_leaves: tuple[Leaf, ...], out_leaves: tuple[Leaf, ...], values: Mapping[str, Value]
) -> CallStructure:
    accepts = {}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            value, traced = values[node.name], node.meta.get("val")
            is_tensor = isinstance(traced, torch.Tensor)
            shape = tuple(d if isinstance(d, int) else None for d in traced.shape) if is_tensor else ()
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
    """Return the tensors that no node reads by the read one they belong with, and a note on those without one."""
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
    """Return the values, no tensors, that tie the nodes of each chain to one another: made and read, by node name."""
    made: dict[str, list[str]] = {}
    read: dict[str, list[str]] = {}
    for chain in order.chains:
        for earlier, later in pairwise(chain):
            token = f"{earlier.name}:then:{later.name}"
            if token not in made.get(earlier.name, ()):
                made.setdefault(earlier.name, []).append(token)
                read.setdefault(later.name, []).append(token)
    return made, read


def _node(index: int, node: fx.Node, program: Program, work: NodeWork, *, read: list[str], made: list[str]) -> Node:
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
        sparse=has_sparse_gradient(node, program.modules),
    )


def _in_order_of_draws(program: Program, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Have every node that draws random numbers run after the one that draws before it."""
    drawing = {n.name for n in program.graph.nodes if n in program.draws or draws(n, program.modules)}
    latest: tuple[str, ...] = ()
    found = []
    for node in nodes:
        found.append(replace(node, after=latest, draws=True) if node.name in drawing else node)
        latest = (node.name,) if node.name in drawing else latest
    return tuple(found)


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
