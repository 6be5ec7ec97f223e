"""Open the batch of an exported program that fixes it, where every call is proven to treat samples by themselves.

The interpretation of :mod:`.open_model`, with the rules of PyTorch's ops (:mod:`.aten_rules`). The program with what
says the batch taken out is traced once more with a dynamic one, by which ``torch.export`` holds that no size of it is
left; afterwards it is a program like any other.

Left out: what is run to check it (``verification/opened.py``).
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from heterps_compile.errors import InputError
from heterps_compile.escape import printable
from heterps_compile.frontends.torch_clean import autocast_notes, erase_checks, inline_regions
from heterps_compile.frontends.torch_draws import draws
from heterps_compile.frontends.torch_memory import storages
from heterps_compile.frontends.torch_ops import plain_name
from heterps_compile.frontends.torch_program import quiet_tracing
from heterps_compile.frontends.torch_reasons import whole_reason

from .aten_rules import RULES
from .call_view import CallView, Made, dims, is_tensor, operands_of
from .program_edits import Change, SetSize, argument
from .samples import MixesError, Samples, readings

_LEAST = 2  # below it a size is a constant of the trace
_MOST_READINGS = 32
_LARGEST_CONSTANT = 2**16  # elements of what is computed to know an index
_FILLED = frozenset({"zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty"})
_COPIES_OR_NOT = frozenset({"reshape", "contiguous", "flatten"})
"""What they make is a view or a copy, as the sizes are."""


@dataclass(frozen=True, slots=True)
class OpenedProgram:
    """An exported program whose batch was opened.

    Attributes:
        program: With a dynamic batch.
        fixed: The batch that the program fixed.
        note: What a user should know.
    """

    program: ExportedProgram
    fixed: int
    note: str


def open_program(
    program: ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any], batch: int | None
) -> OpenedProgram | None:
    """Open the batch of an exported program; return how, or None where it is open or the one asked for.

    O(calls) for every reading of its inputs. The program stays as it is.

    Args:
        program: The program.
        args: Positional example inputs; those it was exported with, where neither are given.
        kwargs: Keyword example inputs.
        batch: That it is to have; None for its own.

    Raises:
        InputError: naming the call that fixes the batch, and what of it does.
    """
    if not args and not kwargs and program.example_inputs is not None:
        args, kwargs = program.example_inputs
    module = program.module()
    inputs = [node for node in module.graph.nodes if node.op == "placeholder" and is_tensor(node)]
    first = next((node.meta["val"] for node in inputs if node.meta["val"].dim()), None)
    fixed = None if first is None else first.shape[0]
    if batch is None or not isinstance(fixed, int) or fixed in (0, batch):
        return None
    walk = _Walk.of(module, fixed)
    stopped: str | None = None
    for reading in islice(readings([dims(node.meta["val"]) for node in inputs], fixed), _MOST_READINGS):
        found = walk.go({node: samples for node, samples in zip(inputs, reading, strict=True) if samples is not None})
        if not isinstance(found, str):
            break
        stopped = stopped or found
    else:
        raise _refused(batch, fixed, stopped or "the program: it has no input with a batch")
    edits, made_of = found
    for edit in edits:
        edit()
    places = [(node, made_of.get(node)) for node in inputs]
    opened = _traced(module, (args, kwargs), places, batch, fixed)
    return OpenedProgram(opened, fixed, "; ".join((_note(places, fixed, len(edits)), *walk.notes)))


def _refused(batch: int, fixed: int, why: str) -> InputError:
    return InputError(
        f"the batch is to be {batch}, the exported program fixes it at {fixed}, and it cannot be opened: {why}; "
        f"export it with a dynamic batch (dynamic_shapes), or give the nn.Module, or leave out batch"
    )


@dataclass(frozen=True, slots=True)
class _Walk:
    """Goes through the calls of a program by the rules."""

    module: fx.GraphModule
    fixed: int
    regions: dict[str, nn.Module]
    written: frozenset[int]
    constants: dict[fx.Node, torch.Tensor | None]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, module: fx.GraphModule, fixed: int) -> "_Walk":
        erase_checks(module.graph)
        parts = {str(node.target): _attribute(module, node) for node in module.graph.nodes if node.op == "get_attr"}
        regions = {target: part for target, part in parts.items() if isinstance(part, nn.Module)}
        kept_out = tuple(autocast_notes(module.graph, regions))
        inline_regions(module.graph, regions, "the exported program")
        written = {memory for node in module.graph.nodes for one in _written(node) for memory in storages(one)}
        return cls(module, fixed, regions, frozenset(written), {}, kept_out)

    def go(self, inputs: Mapping[fx.Node, Samples]) -> tuple[list[Change], dict[fx.Node, Made]] | str:
        """Interpret the program; its inputs have their samples where that is said. Return why not, if so."""
        made_of: dict[fx.Node, Made] = dict(inputs)
        edits: list[Change] = []
        for node in self.module.graph.nodes:
            try:
                found = self._step(node, made_of, edits)
            except MixesError as e:
                return f"{_described(node)}: {e}"
            if found is not None:
                made_of[node] = found
        *_, output = self.module.graph.nodes
        returned = [leaf for leaf in pytree.tree_leaves(output.args) if is_tensor(leaf)]
        places = [made_of.get(node) for node in returned]
        if not any(places):
            return "its outputs: none of them depends on the input with the batch"
        for node, samples in zip(returned, places, strict=True):
            if isinstance(samples, Samples) and samples.per_sample != 1:
                return (
                    f"output {printable(node.name)!r}: it has no dimension that is the batch alone, but "
                    f"{samples.per_sample} rows for each sample along axis {samples.axis}"
                )
        return edits, made_of

    def _step(self, node: fx.Node, made_of: Mapping[fx.Node, Made], edits: list[Change]) -> Made:
        if node.op in ("placeholder", "output", "get_attr"):
            return made_of.get(node)
        if draws(node, self.regions):
            raise MixesError("it draws random numbers, which are others for every batch")
        is_written = bool(storages(node) & self.written)
        if is_written and _plain(node) in _FILLED and dims(node.meta["val"])[:1] == (self.fixed,):
            return self._filled(node, made_of, edits)
        if not any(made_of.get(read) for read in node.all_input_nodes):
            return None
        if node.target is operator.getitem:
            source, place = node.args
            made = made_of.get(source)  # type: ignore[arg-type]
            return made[place] if isinstance(made, tuple) else made  # type: ignore[index]
        rule = RULES.get(_plain(node))
        if not isinstance(node.target, torch._ops.OpOverload) or rule is None:
            raise MixesError("nobody here knows that this op leaves samples apart")
        if is_written and _plain(node) in _COPIES_OR_NOT:
            raise MixesError("it is a view or a copy of what is changed in place, as the batch is")
        call = CallView(node, self.fixed, made_of, self.constant, edits, operands_of(node), is_written)
        made = rule(call)
        for one in _written(node):
            if made_of.get(one) != made:
                raise MixesError(f"it writes samples into {printable(one.name)!r}, which is the same for all")
        return made

    def _filled(self, node: fx.Node, made_of: Mapping[fx.Node, Made], edits: list[Change]) -> Samples:
        """Make a tensor of one number, into which samples are written, for each sample."""
        like, samples = next((one, made) for one, made in made_of.items() if isinstance(made, Samples))
        edits.append(SetSize(node, "size", list(argument(node, "size")), 0, like, samples.axis))
        return Samples(0)

    def constant(self, node: fx.Node) -> torch.Tensor | None:
        """Return what a node makes, where constants alone decide it."""
        if node not in self.constants:
            self.constants[node] = self._compute(node)
        return self.constants[node]

    def _compute(self, node: fx.Node) -> torch.Tensor | None:
        made = node.meta.get("val")
        if not isinstance(made, torch.Tensor) or not all(isinstance(size, int) for size in made.shape):
            return None
        if made.numel() > _LARGEST_CONSTANT or storages(node) & self.written:
            return None
        if node.op == "get_attr":
            found = _attribute(self.module, node)
            return found.detach() if isinstance(found, torch.Tensor) and not isinstance(found, nn.Parameter) else None
        if not isinstance(node.target, torch._ops.OpOverload) or draws(node, self.regions) or _written(node):
            return None
        given = {read: self.constant(read) for read in node.all_input_nodes}
        if any(value is None for value in given.values()):
            return None
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda read: given[read])
        try:
            found = node.target(*args, **kwargs)
        except Exception:  # noqa: BLE001 - an op raises anything; without the number the rule refuses by name
            return None
        return found if isinstance(found, torch.Tensor) else None


def _attribute(module: nn.Module, node: fx.Node) -> Any:
    found: Any = module
    for part in str(node.target).split("."):
        found = getattr(found, part)
    return found


def _written(node: fx.Node) -> list[fx.Node]:
    """Return the tensors that a call changes in place."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    declared = {one.name for one in node.target._schema.arguments if one.alias_info and one.alias_info.is_write}
    return [operand for name, _, operand in operands_of(node) if name in declared]


def _plain(node: fx.Node) -> str:
    packet = getattr(node.target, "overloadpacket", node.target)
    return plain_name(str(getattr(packet, "__name__", packet)))


def _described(node: fx.Node) -> str:
    packet = str(getattr(node.target, "overloadpacket", getattr(node.target, "__name__", node.target)))
    return f"node {printable(node.name)!r} ({printable(packet)})"


def _traced(
    module: fx.GraphModule,
    given: tuple[tuple[Any, ...], Mapping[str, Any]],
    places: Sequence[tuple[fx.Node, Made]],
    batch: int,
    fixed: int,
) -> ExportedProgram:
    """Trace a program that no longer says its batch, on examples that are repeated."""
    module._forward_pre_hooks.clear()  # they hold the sizes of the inputs
    module.recompile()
    collection: Any = torch.export.ShapesCollection  # it has no types
    shapes, batch_dim = collection(), torch.export.Dim("batch")
    rows, left = torch.arange(max(batch, _LEAST)) % fixed, iter(places)

    def repeated(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        node, samples = next(left)
        size: dict[int, Any] = {
            axis: torch.export.Dim.AUTO for axis, dim in enumerate(dims(node.meta["val"])) if isinstance(dim, str)
        }
        made = leaf.detach()
        if isinstance(samples, Samples):
            made = made.index_select(samples.axis, rows.to(leaf.device))
            size[samples.axis] = batch_dim
        made = made.clone().requires_grad_(leaf.requires_grad)
        shapes[made] = size
        return made

    args, kwargs = pytree.tree_map(repeated, (tuple(given[0]), dict(given[1])))
    try:
        with quiet_tracing():
            return torch.export.export(
                module, args, kwargs, dynamic_shapes=shapes.dynamic_shapes(module, args, kwargs), strict=False
            )
    except Exception as error:
        raise _refused(batch, fixed, f"torch.export cannot trace it so: {whole_reason(error)}") from error


def _note(places: Sequence[tuple[fx.Node, Made]], fixed: int, edits: int) -> str:
    told = f"the batch, which the exported program fixes at {fixed}, was opened: no node mixes samples"
    if edits:
        told += f" ({edits} argument{'s' if edits > 1 else ''} that said the batch rewritten)"
    parts = []
    for node, samples in places:
        if samples is None:
            parts.append(f"{printable(node.name)!r} is the same for all samples")
        elif isinstance(samples, Samples) and samples.axis:
            parts.append(f"{printable(node.name)!r} has it along axis {samples.axis}")
    return "; ".join([told, *parts])
