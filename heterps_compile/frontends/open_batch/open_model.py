"""Open the batch of an ONNX model that fixes it, where every node is proven to treat samples by themselves.

An abstract interpretation: every value has its samples along one axis, or is the same for all samples; each op has a
rule (:mod:`.rules`) that tells where the samples lie in what it makes. What in the model says the batch, a
constant shape say, is rewritten, or refused by name. What a model means at another batch is what it gives for the
samples one by one: a shape that it looks at stays the shape at the batch it fixes.

An input has its samples along axis 0 if that has the length of the batch. Where the rules do not hold so, a vector is
taken to be the same for all samples, and other inputs to have them along axis 1 (states of recurrent layers).

Afterwards it is a model with a symbolic batch like any other.

Left out: models whose batch is open already (``onnx_dims.py``); what is run to check it (``verification/opened.py``).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import onnx_ir as ir

from heterps_compile.errors import InputError
from heterps_compile.frontends.onnx_bodies import subgraphs
from heterps_compile.frontends.onnx_budget import BUDGET, Budget, over_budget
from heterps_compile.frontends.onnx_dims import fixed_batch
from heterps_compile.frontends.onnx_names import describe, free_name, op_name, quote
from heterps_compile.frontends.onnx_structure import Roles, find_roles
from heterps_compile.units import counted

from .edits import Edit, Names
from .known_values import KnownValues
from .node_view import NodeView
from .rules import RULES
from .samples import MixesError, Samples, readings

_MOST_READINGS = 32
_SYMBOL = "batch"
_WAY_OUT = "export the model with a dynamic batch"


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """How the batch of a model was opened.

    Attributes:
        fixed: The batch that the model fixes.
        axes: The axis along which each input and output that has samples has them, by name.
        original: The model as it was, normalised.
        note: What a user should know.
    """

    fixed: int
    axes: Mapping[str, int]
    original: ir.Model
    note: str


def open_batch(model: ir.Model, batch: int | None, budget: Budget = BUDGET) -> OpenedModel | None:
    """Open the batch of a normalised model in place; return how, or None where it is open or the one asked for.

    O(nodes) for every reading of its inputs.

    Args:
        model: The model.
        batch: That it is to have; None for its own.
        budget: Of samples, which are run one by one to verify it.

    Raises:
        GraphError: the model fixes a batch that exceeds the budget.
        InputError: naming the node that fixes the batch, and what of it does.
    """
    fixed = fixed_batch([list(value.shape or ()) for value in model.graph.inputs])
    if batch is None or fixed is None or fixed in (0, batch):
        return None
    if fixed > budget.items:
        raise over_budget(
            "the batch that the model fixes", f"{fixed:,}", f"{budget.items:,}", f"{_WAY_OUT}, or leave out --batch"
        )
    walk = _Walk.of(model, fixed)
    first: _Stopped | None = None
    for reading in islice(_readings(model.graph.inputs, fixed), _MOST_READINGS):
        found = walk.go(reading)
        if not isinstance(found, _Stopped):
            return _apply(model, fixed, found, walk.roles.dead)
        first = first or found
    where, why = (first.where, first.why) if first is not None else ("the model", "it has no input with a batch")
    raise InputError(
        f"the batch is to be {batch}, the model fixes it at {fixed}, and it cannot be opened: {where}: {why}; "
        f"{_WAY_OUT}, or leave out --batch"
    )


@dataclass(frozen=True, slots=True)
class _Stopped:
    """Where an interpretation ended, and why."""

    where: str
    why: str


@dataclass(frozen=True, slots=True)
class _Proof:
    """Where the samples of every value lie, and the changes with which that holds."""

    samples_of: Mapping[ir.Value, Samples]
    edits: Sequence[Edit]


def _readings(inputs: Sequence[ir.Value], fixed: int) -> Iterator[dict[ir.Value, Samples]]:
    """Yield where the inputs may have their samples, the likeliest first."""
    shapes = [tuple(d if isinstance(d, int) else None for d in value.shape or ()) for value in inputs]
    for found in readings(shapes, fixed):
        yield {value: samples for value, samples in zip(inputs, found, strict=True) if samples is not None}


@dataclass(frozen=True, slots=True)
class _Walk:
    """Goes through the nodes of a model by the rules."""

    model: ir.Model
    fixed: int
    roles: Roles
    known: KnownValues

    @classmethod
    def of(cls, model: ir.Model, fixed: int) -> "_Walk":
        roles = find_roles(model.graph)
        return cls(model, fixed, roles, KnownValues.of(model, roles))

    def go(self, inputs: Mapping[ir.Value, Samples]) -> _Proof | _Stopped:
        """Interpret the model; its inputs have their samples where that is said."""
        samples_of = dict(inputs)
        edits: list[Edit] = []
        for _, node in self.roles.computed:
            try:
                made = self._step(node, samples_of, edits)
            except MixesError as e:
                return _Stopped(describe(node), str(e))
            samples_of.update({out: s for out, s in zip(node.outputs, made, strict=False) if s is not None})
        outputs = [(value, samples_of.get(value)) for value in self.model.graph.outputs]
        if all(samples is None for _, samples in outputs):
            return _Stopped("its outputs", "none of them depends on the input with the batch")
        for value, samples in outputs:
            if samples is not None and samples.per_sample != 1:
                return _Stopped(
                    f"output {quote(value.name)}",
                    f"it has no dimension that is the batch alone, but {samples.per_sample} rows "
                    f"for each sample along axis {samples.axis}",
                )
        return _Proof(samples_of, edits)

    def _step(
        self, node: ir.Node, samples_of: Mapping[ir.Value, Samples], edits: list[Edit]
    ) -> Sequence[Samples | None]:
        if node in self.roles.random:
            raise MixesError("it draws random numbers, which are others for every batch")
        nothing = [None] * len(node.outputs)
        if all(value not in samples_of for value in self.roles.reads[node]):
            return nothing
        if node.op_type == "If" and node.inputs[0] not in samples_of:
            raise MixesError("values without the batch choose its branch; fix sizes that decide it in the file")
        if any(True for _ in subgraphs(node)):
            raise MixesError("it decides for the whole batch what runs, and a sample alone may take another way")
        rule = RULES.get(op_name(node))
        if rule is None:
            raise MixesError("nobody here knows that this op leaves samples apart")
        opset = self.model.graph.opset_imports.get(node.domain, 0)
        made = rule(NodeView(node, opset, self.fixed, samples_of, self.known.shape, self.known.constant, edits))
        return made if isinstance(made, tuple) else [made] * len(node.outputs)


def _apply(model: ir.Model, fixed: int, proof: _Proof, dead: Sequence[ir.Node]) -> OpenedModel:
    """Make the changes, give every value that has samples a symbol where they lie, and drop what no output needs."""
    graph, original = model.graph, model.clone()
    graph.remove(dead, safe=True)  # it may say the batch too, and would fail at another
    symbols = {
        dim.value
        for value in graph.inputs
        for dim in value.shape or ()
        if isinstance(dim, ir.SymbolicDim) and dim.value
    }
    symbol = ir.SymbolicDim(free_name(_SYMBOL, symbols))
    for value, samples in proof.samples_of.items():
        if value.shape is not None and len(value.shape) > samples.axis:
            dims = list(value.shape)
            dims[samples.axis] = symbol if samples.per_sample == 1 else ir.SymbolicDim(None)
            value.shape = ir.Shape(dims)
    names = Names.of(graph, graph.opset_imports.get("", 0))
    for edit in proof.edits:
        edit(names)
    graph.remove(find_roles(graph).dead, safe=True)  # what told the shapes that are numbers now
    ends = [*graph.inputs, *graph.outputs]
    axes = {value.name or "": proof.samples_of[value].axis for value in ends if value in proof.samples_of}
    return OpenedModel(fixed, axes, original, _note(graph, fixed, proof, len(dead)))


def _note(graph: ir.Graph, fixed: int, proof: _Proof, dead: int) -> str:
    edits = len(proof.edits)
    told = f"the batch, which the model fixes at {fixed}, was opened: no node mixes samples"
    if edits:
        told += f" ({edits} constant{'s' if edits > 1 else ''} that said the batch rewritten)"
    odd = [v for v in (*graph.inputs, *graph.outputs) if v in proof.samples_of and proof.samples_of[v].axis != 0]
    same = [v for v in (*graph.inputs, *graph.outputs) if v not in proof.samples_of]
    parts = [f"left out, since no output needs them: {counted(dead, 'node')}"] if dead else []
    parts += [f"{quote(v.name)} has it along axis {proof.samples_of[v].axis}" for v in odd]
    parts += [f"{quote(v.name)} is the same for all samples" for v in same]
    return "; ".join([told, *parts])
