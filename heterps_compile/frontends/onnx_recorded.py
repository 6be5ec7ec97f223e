"""What PyTorch's exporters recorded in an ONNX file of the module: which of its tensors a node read, and what they are.

``torch.onnx.export(dynamo=True)`` writes into a node the call that it came from, whose arguments name tensors as
``torch.export`` does: "p_layers_0_bias" for the parameter "layers.0.bias", "b_" begins those of buffers.
An initialiser has its own such name, or the names of what it was folded from.

Left out: names of parameters whose nodes the exporter dropped altogether; what other exporters write.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cached_property

import onnx_ir as ir

from heterps_compile.units import counted

from .onnx_names import module_path, quote_some

PRODUCER = "pytorch"
PLACEHOLDER = "pkg.torch.onnx.original_node_name"
_FX_NODE = "pkg.torch.onnx.fx_node"
_INPUT_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
_FOLDED_FROM = "pkg.onnxscript.optimizer.folded_from"
_TRAINING_NORM = "aten._native_batch_norm_legit_functional"
_HELD = re.compile(r"%([pbc]_\w+)")
_QUOTED = re.compile(r"'([^'\\]*)'")
_LITERAL = re.compile(r"val_\d+")  # onnxscript's names of constants that no module holds
_FOLDED = "onnx::"  # the TorchScript exporter's names of what it folded
_KINDS = {"PARAMETER": "weight", "BUFFER": "buffer", "CONSTANT_TENSOR": "constant"}


class Recorded:
    """What ``torch.onnx.export(dynamo=True)`` recorded of the module's tensors, by placeholder."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._values = {value.name for value in graph.inputs} | {out.name for node in graph for out in node.outputs}

    def reads(self, node: ir.Node) -> list[str]:
        """Return the placeholders that the call behind a node read, in its order."""
        arguments = node.metadata_props.get(_FX_NODE, "").partition("args = ")[2]
        return [name for name in _HELD.findall(arguments) if name not in self._values]

    def own(self, value: ir.Value) -> frozenset[str]:
        """Return the placeholder of an initialiser, or those that it was folded from."""
        placeholder = value.metadata_props.get(PLACEHOLDER)
        if placeholder:
            return frozenset({placeholder})
        mangled = {f"{kind}_{_mangle(source)}" for source in _sources(value) for kind in "pbc"}
        return frozenset(mangled & self._read)

    def kind(self, value: ir.Value) -> str | None:
        """Return what an initialiser is in the module, None where that was not recorded."""
        stated = value.metadata_props.get(_INPUT_KIND)
        if stated is not None:
            return _KINDS.get(stated)
        if not self._read:
            return None
        own = self.own(value)
        if own:
            return "weight" if any(name.startswith("p_") for name in own) else "buffer"
        folded = _FOLDED_FROM in value.metadata_props
        return "constant" if folded or _LITERAL.fullmatch(value.name or "") else None

    def is_read_by_all(self, value: ir.Value, nodes: Iterable[ir.Node]) -> bool:
        """Say whether it was recorded that all nodes read this very tensor."""
        own = self.own(value)
        return bool(own) and all(own & set(self.reads(node)) for node in nodes)

    def module_name(self, placeholder: str, node: ir.Node) -> str:
        """Return the name that a tensor has in its module: a module that is known, and a name behind it."""
        rest, path = placeholder[2:], module_path(node)
        own = [".".join(path.split(".")[: -i or None]) for i in range(path.count(".") + 1)] if path else []
        for holder in (*own, *self._modules):
            start = f"{_mangle(holder)}_"
            if rest.startswith(start):
                leaf = rest.removeprefix(start)
                return f"{holder}.{self._leaves.get(leaf, leaf)}"
        return self._leaves.get(rest, rest)

    @cached_property
    def _modules(self) -> list[str]:
        found = {module_path(node) for node in self._graph} - {""}
        return sorted(found, key=len, reverse=True)

    @cached_property
    def _leaves(self) -> dict[str, str]:
        """Return the ends of the names that are known, by what placeholders make of them."""
        known = [name for value in self._graph.initializers.values() for name in _names_of(value)]
        ends = [".".join(name.split(".")[i:]) for name in known for i in range(name.count(".") + 1)]
        return {_mangle(end): end for end in ends}

    @cached_property
    def _read(self) -> frozenset[str]:
        return frozenset(name for node in self._graph for name in self.reads(node))

    @cached_property
    def written(self) -> frozenset[str]:
        """Return the placeholders that some initialiser stands for."""
        return frozenset(name for value in self._graph.initializers.values() for name in self.own(value))


def _sources(value: ir.Value) -> list[str]:
    """Return the names of what an initialiser was folded from."""
    return _QUOTED.findall(value.metadata_props.get(_FOLDED_FROM, ""))


def _names_of(value: ir.Value) -> list[str]:
    return [value.name or "", *_sources(value)]


def _mangle(name: str) -> str:
    """Return a name of a module's tensor as ``torch.export`` writes it in placeholders."""
    return re.sub(r"\W", "_", name).lower()


def training_notes(model: ir.Model) -> tuple[str, ...]:
    """Say in what the training of an ONNX file is not that of the module it was exported from."""
    norms = [node for node in model.graph if _is_in_training(node)]
    notes = [] if model.producer_name != PRODUCER else list(_pytorch_notes(model.graph))
    if norms:
        notes.append(
            f"running statistics of {counted(len(norms), 'batch norm')} ({_some(norms)}) stay as they are in the file: "
            f"ONNX has their new values as outputs, which nothing keeps; to score, measure them in PyTorch, or compile "
            f"the module instead"
        )
    return tuple(notes)


def _pytorch_notes(graph: ir.Graph) -> Iterator[str]:
    recorded = Recorded(graph)
    last = {name: node for node in graph for name in recorded.reads(node) if name.startswith("p_")}
    lost = [recorded.module_name(name, last[name]) for name in sorted(last.keys() - recorded.written)]
    if lost:
        yield (
            f"not trained: {counted(len(lost), 'parameter')} of the module ({quote_some(lost)}) that the exporter left "
            f"out, since they changed nothing then, or folded into other tensors; export with "
            f"torch.onnx.export(..., optimize=False) to train them"
        )
    norms = [node for node in graph if _TRAINING_NORM in node.metadata_props.get(_FX_NODE, "")]
    fixed = [node for node in norms if not _is_in_training(node)]
    if fixed:
        yield (
            f"in evaluation mode: {counted(len(fixed), 'batch norm')} ({_some(fixed)}) that the module had in training "
            f"mode, which torch.onnx.export(dynamo=True) does not write; with dynamo=False and "
            f"training=torch.onnx.TrainingMode.TRAINING it does"
        )
    scalars = [
        value.name or ""
        for value in graph.initializers.values()
        if value.const_value is not None
        and value.const_value.dtype.is_floating_point()
        and not value.const_value.shape.numpy()
        and recorded.kind(value) is None
        and not (value.name or "").startswith(_FOLDED)
    ]
    if scalars:
        yield f"not trained, since a tensor of no dimension is taken for a constant: {quote_some(scalars)}"


def _is_in_training(node: ir.Node) -> bool:
    mode = node.attributes.get("training_mode")
    return node.op_type == "BatchNormalization" and mode is not None and bool(mode.value)


def _some(nodes: Iterable[ir.Node]) -> str:
    return quote_some(module_path(node) or node.name or "" for node in nodes)
