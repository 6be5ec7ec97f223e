"""Tensors that an exporter merged because they were equal, as tensors of their own again; and which of them train.

A fresh batch norm's ``running_mean`` is zeros, as its bias is; PyTorch's exporters write both once. Trained as one they
would not do what the module does. Whose tensor a node reads is known

1. from ``torch.onnx.export(dynamo=True)``, which records the tensors by the names of its placeholders: at every node
   those that the module's call read, at every initialiser its own;
2. from an ``Identity`` of an initialiser, which the TorchScript exporter writes for a tensor that is equal to another,
   with the name that it has in the module;
3. from the role: a running statistic is no weight, whoever wrote the model.

Uses of which nothing tells that they were apart stay one tensor, as tied weights are.

Left out: tensors that an exporter left out or folded into others.
"""

import re
from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from heterps_compile.units import counted

from .onnx_names import free_name, module_path, quote_some
from .onnx_recorded import PLACEHOLDER, PRODUCER, Recorded

STATISTICS = {3: "running_mean", 4: "running_var"}
"""The inputs of a ``BatchNormalization`` that are running statistics, and what PyTorch calls them."""

_MERGED = re.compile(r"Identity_\d+")  # the TorchScript exporter's; those of calls bear their module: /a/Identity
_KIND = "heterps_compile.kind"
_SAME_ORDER = frozenset(
    {"BatchNormalization", "LayerNormalization", "InstanceNormalization", "GroupNormalization", "Conv", "ConvTranspose"}
)
"""Ops that read what they hold in the order in which PyTorch's call has it: weight, bias, mean, variance."""

_LARGEST_LOOKED_AT = 2**16

Use = tuple[ir.Node, int]


def stated_kind(value: ir.Value) -> str | None:
    """Return what a constant is in the exported module: ``weight``, ``buffer`` or ``constant``; None if unknown."""
    found = value.meta.get(_KIND)
    return None if found is None else str(found)


def separate_merged(model: ir.Model, literals: frozenset[str]) -> list[str]:
    """Make initialisers of what was merged, in place, and say so; O(nodes + edges).

    Args:
        model: Its nodes have names, its initialisers are all the graph's own.
        literals: Names of the initialisers that ``Constant`` nodes made.
    """
    names = {value.name or "" for value in (*model.graph.inputs, *model.graph.initializers.values())}
    names |= {out.name or "" for node in model.graph for out in node.outputs}
    is_pytorch = model.producer_name == PRODUCER
    recorded = Recorded(model.graph) if is_pytorch else None
    separated: list[str] = []
    together: list[tuple[ir.Value, int]] = []
    if is_pytorch:
        separated += _resolve_identities(model.graph)
    for value in list(model.graph.initializers.values()):
        if value.const_value is None or not value.const_value.dtype.is_floating_point():
            continue
        if recorded is not None:
            kind = "constant" if value.name in literals else recorded.kind(value)
            if kind is not None:
                value.meta[_KIND] = kind
            separated += _separate_as_recorded(value, recorded, names)
        separated += _separate_statistics(value, names)
        weights = _weight_uses(value)
        is_told = recorded is not None and recorded.is_read_by_all(value, (node for node, _ in weights))
        if len(weights) > 1 and stated_kind(value) in (None, "weight") and not is_told and _is_filled(value):
            together.append((value, len(weights)))
    if is_pytorch:
        _state_literals(model.graph)
    return list(_notes(separated, together))


def _notes(separated: list[str], together: list[tuple[ir.Value, int]]) -> Iterator[str]:
    if separated:
        yield (
            f"apart again: {counted(len(separated), 'tensor')} that the file has once with others that were equal when "
            f"it was exported ({quote_some(separated)})"
        )
    if together:
        listed = quote_some(value.name or "" for value, _ in together)
        yield (
            f"one tensor each, though {max(count for _, count in together)} nodes read it as a weight and all its "
            f"elements are equal: {listed}; if the model does not tie it, an exporter merged equal tensors, and it "
            f"trains as one: export it without that (torch.onnx.export(..., optimize=False))"
        )


def _resolve_identities(graph: ir.Graph) -> list[str]:
    """Put an initialiser in place of every ``Identity`` that the TorchScript exporter wrote for an equal tensor."""
    found = []
    for node in list(graph):
        source = node.inputs[0] if node.op_type == "Identity" and node.domain == "" and node.inputs else None
        made = node.outputs[0]
        if source is None or not source.is_initializer() or made.is_graph_output() or source.const_value is None:
            continue
        if not _MERGED.fullmatch(node.name or "") or not source.const_value.dtype.is_floating_point():
            continue
        name = made.name or ""
        made.name = None
        _own_tensor(source, name, [(use.node, use.idx) for use in made.uses()])
        graph.remove(node, safe=True)
        found.append(name)
    return found


def _state_literals(graph: ir.Graph) -> None:
    """Say of what nodes make of literals that it is none of the module's tensors: those are initialisers."""
    for node in graph:
        read = [value for value in node.inputs if value is not None]
        if (read or node.op_type == "Constant") and all(map(_is_literal, read)):
            for made in node.outputs:
                made.meta[_KIND] = "constant"


def _is_literal(value: ir.Value) -> bool:
    return stated_kind(value) == "constant" or (value.is_initializer() and not _is_held(value))


def _separate_as_recorded(value: ir.Value, recorded: Recorded, names: set[str]) -> list[str]:
    """Separate the uses of an initialiser of which the exporter recorded that they read other tensors."""
    own, apart = recorded.own(value), dict[str, list[Use]]()
    if not own:
        return []
    for node in dict.fromkeys(use.node for use in value.uses()):
        for place, name in _recorded(node, value, own, recorded).items():
            apart.setdefault(name, []).append((node, place))
    found = []
    for placeholder, uses in apart.items():
        is_whole = PLACEHOLDER in value.metadata_props  # and not, say, transposed
        name = recorded.module_name(placeholder, uses[0][0]) if is_whole else value.name or ""
        made = _own_tensor(value, free_name(name, names), uses)
        made.meta[_KIND] = {"p": "weight", "b": "buffer", "c": "constant"}[placeholder[0]]
        made.metadata_props[PLACEHOLDER] = placeholder
        found.append(made.name or "")
    if not value.uses() and not value.is_graph_output():
        value.graph.initializers.pop(value.name or "")  # type: ignore[union-attr]
    return found


def _recorded(node: ir.Node, value: ir.Value, own: frozenset[str], recorded: Recorded) -> Mapping[int, str]:
    """Return the inputs of a node that read a value in another tensor's place, with that tensor's placeholder."""
    read = recorded.reads(node)
    held = [i for i, other in enumerate(node.inputs) if other is not None and _is_held(other)]
    if node.op_type in _SAME_ORDER and len(read) == len(held):
        pairs = zip(held, read, strict=True)
        return {i: name for i, name in pairs if node.inputs[i] is value and name not in own}
    if own & set(read):
        return {}
    missing = [name for name in dict.fromkeys(read) if name not in recorded.written]
    places = [i for i in held if node.inputs[i] is value]
    if len(missing) > 1:
        leaves = {name.rpartition("_")[2] for name in own}
        missing = [name for name in missing if name.rpartition("_")[2] in leaves]
    return dict.fromkeys(places, missing[0]) if len(missing) == 1 else {}


def _is_held(value: ir.Value) -> bool:
    return value.is_initializer() and value.const_value is not None and value.const_value.dtype.is_floating_point()


def _separate_statistics(value: ir.Value, names: set[str]) -> list[str]:
    """Separate what is read as a running statistic from what is read as something else."""
    statistics = [(use.node, use.idx) for use in value.uses() if is_statistic(use.node, use.idx)]
    if not statistics or not _weight_uses(value):
        return []
    found = []
    for node, place in statistics:
        scale = (node.inputs[1].name or "") if node.inputs[1] is not None else ""
        holder, _, leaf = scale.rpartition(".")
        stem = holder if holder and leaf == "weight" else module_path(node) or (node.name or "")
        made = _own_tensor(value, free_name(f"{stem}.{STATISTICS[place]}", names), [(node, place)])
        made.meta[_KIND] = "buffer"
        found.append(made.name or "")
    return found


def is_statistic(node: ir.Node, place: int) -> bool:
    """Say whether an input of a node is a running statistic."""
    return node.op_type == "BatchNormalization" and node.domain == "" and place in STATISTICS


def _weight_uses(value: ir.Value) -> list[Use]:
    return [(use.node, use.idx) for use in value.uses() if not is_statistic(use.node, use.idx)]


def _own_tensor(value: ir.Value, name: str, uses: list[Use]) -> ir.Value:
    """Let uses of an initialiser read another one with the same elements."""
    held = value.const_value
    assert held is not None  # noqa: S101 - callers have seen to it; this tells the type checker
    # memory of its own: tensors at one place of a file are tied
    tensor = ir.Tensor(np.array(held.numpy()), dtype=held.dtype, name=name)
    made = ir.Value(name=name, shape=value.shape, type=value.type, const_value=tensor)
    (value.graph or uses[0][0].graph).register_initializer(made)  # type: ignore[union-attr]
    for node, place in uses:
        node.replace_input_with(place, made)
    return made


def _is_filled(value: ir.Value) -> bool:
    """Say whether all elements of a tensor are the same, as those of a fresh bias or scale are."""
    tensor = value.const_value
    if tensor is None or not 1 < tensor.size <= _LARGEST_LOOKED_AT:
        return False
    array = np.asarray(tensor.numpy())
    return bool((array == array.flat[0]).all())
