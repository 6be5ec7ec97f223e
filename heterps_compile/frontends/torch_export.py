"""Read an ``nn.Module`` or a ``torch.export.ExportedProgram``.

The graph is taken at the level of ``torch.export``, before decomposition: ``aten.linear``, not ``t`` and ``addmm``.
The program's own graph is read, parameters as placeholders, so that no code is made from parameter names.

Left out: programs with custom objects or effect tokens, and backward graphs.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils import _pytree as pytree

from heterps_compile.errors import InputError
from heterps_compile.escape import printable, shorten

from .torch_attributes import attributes_put_back
from .torch_backwards import hooks_on_tensors, registered_hooks, watch_backwards
from .torch_buffers import replaced_buffers_written
from .torch_call import Fixed, Leaf
from .torch_data_sizes import source_line
from .torch_library import cache_note, traceable_settings
from .torch_memory import storages
from .torch_program import Program, find_aliases, module_path, quiet_tracing
from .torch_reasons import explain_trace

_NAME_SHOWN = 80
_CONSTANT = (int, float, bool, str, complex, type(None))


def export_module(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic_shapes: Any, name: str
) -> Program:
    """Trace a module with ``torch.export`` in its present mode, without changing it.

    Raises:
        InputError: with the reason of ``torch.export`` where it fails.
    """
    if not args and not kwargs:
        raise InputError(f"{name} is traced on example inputs, and none are given; pass example_inputs=(...)")
    try:
        with quiet_tracing(), attributes_put_back(model):
            told = cache_note(model, args, kwargs, name)
        with (
            quiet_tracing(),
            traceable_settings(model, name) as notes,
            replaced_buffers_written(model),
            attributes_put_back(model) as changed,
            watch_backwards(model) as lost,
        ):
            given, named = _kept_apart(model, args, kwargs)
            program = torch.export.export(model, given, named, dynamic_shapes=dynamic_shapes, strict=False)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"torch.export cannot trace {name}: {explain_trace(error, model)}") from error
    names = _positional_names(model)
    examples = _examples(program, args, kwargs)
    dimensions = _dimension_names(program, names, args, kwargs, dynamic_shapes)
    read = _read(program, name, names, examples, whole=lambda: model)
    return replace(
        read,
        dimension_names=dimensions,
        attributes=tuple(changed),
        notes=[*dict.fromkeys((*told, *notes)), *map(partial(_note, name), changed), *read.notes],
        lost=(*registered_hooks(model), *lost),
    )


def _kept_apart(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return example inputs of which no two are one tensor, and none is the model's: a trace takes them for one."""
    seen = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}

    def kept_apart(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in seen:
            value = value.detach().clone().requires_grad_(value.requires_grad)
        seen.add(id(value))
        return value

    given, named = pytree.tree_map(kept_apart, (tuple(args), dict(kwargs)))
    return given, named


def read_exported(program: ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str) -> Program:
    """Read an exported program; its own example inputs are used where none are given."""
    if not args and not kwargs and program.example_inputs is not None:
        args, kwargs = program.example_inputs
    examples = _examples(program, args, kwargs) if args or kwargs else {}
    in_spec, _ = _specs(program)
    by_position, by_name = pytree.tree_unflatten([None] * in_spec.num_leaves, in_spec)
    # where no input is nested, the graph names the positional ones as forward does
    is_flat = len(by_position) + len(by_name) == in_spec.num_leaves
    names = [spec.arg.name for spec in _input_specs(program)][: len(by_position)] if is_flat else []
    read = _read(program, name, tuple(names), examples, whole=functools.cache(program.module))
    return replace(read, lost=tuple(hooks_on_tensors(program.state_dict)))


def _specs(program: ExportedProgram) -> tuple[pytree.TreeSpec, pytree.TreeSpec]:
    in_spec, out_spec = program.call_spec.in_spec, program.call_spec.out_spec
    if in_spec is None or out_spec is None:
        raise InputError("the exported program does not say how it is called; export it anew")
    return in_spec, out_spec


def _positional_names(model: nn.Module) -> tuple[str, ...]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p.name for p in inspect.signature(model.forward).parameters.values() if p.kind in kinds)


def _input_specs(program: ExportedProgram) -> Iterator[Any]:
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            yield spec


def _examples(program: ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    if spec != program.call_spec.in_spec:
        raise InputError("the example inputs are structured otherwise than those the program was exported with")
    given = zip(_input_specs(program), leaves, strict=True)
    return {s.arg.name: leaf for s, leaf in given if not isinstance(s.arg, ConstantArgument)}


def _dimension_names(
    program: ExportedProgram,
    names: tuple[str, ...],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    dynamic_shapes: Any,
) -> dict[tuple[str, int], str]:
    """Return the names that ``dynamic_shapes`` gives to dimensions, by input and axis."""
    if isinstance(dynamic_shapes, (tuple, list)):
        by_name: dict[Any, Any] = dict(zip(names, dynamic_shapes, strict=False))
    elif isinstance(dynamic_shapes, Mapping):
        by_name = dict(dynamic_shapes)
    else:
        return {}
    arranged = {**dict(zip(names, args, strict=False)), **kwargs}
    paths, _ = pytree.tree_flatten_with_path(arranged)
    found = {}
    for (path, _leaf), spec in zip(paths, _input_specs(program), strict=False):
        entry: Any = by_name
        for key in path:
            entry = _step(entry, key)
        axes = entry.items() if isinstance(entry, Mapping) else enumerate(entry or ())
        for axis, dim in axes:
            label = getattr(dim, "__name__", None)
            if isinstance(axis, int) and isinstance(label, str):
                found[spec.arg.name, axis] = label
    return found


def _step(entry: Any, key: Any) -> Any:
    try:
        return entry[getattr(key, "key", getattr(key, "idx", None))]
    except (KeyError, IndexError, TypeError):
        return None


def _refuse_unreadable(exported: ExportedProgram, name: str) -> None:
    """Refuse a program that ``torch.export`` has made though it could not trace the model."""
    for tensor in exported.constants.values():
        if isinstance(tensor, torch.Tensor) and is_functorch_wrapped_tensor(tensor):
            raise InputError(
                f"torch.export cannot trace {name}: its forward differentiates with torch.func; "
                f"take torch.autograd.grad(..., create_graph=True) there, under torch.enable_grad()"
            )


def _read(
    exported: ExportedProgram,
    name: str,
    parameter_names: tuple[str, ...],
    examples: dict[str, Any],
    *,
    whole: Callable[[], Callable[..., Any]],
) -> Program:
    """Read an exported program; what is known of the module that it was traced from is left out."""
    _refuse_unreadable(exported, name)
    in_spec, out_spec = _specs(exported)
    reader = _Reader(exported, name)
    reader.read()
    named = [*exported.state_dict.items(), *_tensors(exported.constants)]
    return Program(
        name=name,
        graph=reader.graph,
        tensors=reader.tensors,
        kinds=reader.kinds,
        modules=reader.modules,
        module_tensors={},
        transient=frozenset(reader.transient),
        state=exported.state_dict,
        aliases=find_aliases(named),
        writes={},
        in_spec=in_spec,
        in_leaves=tuple(reader.in_leaves),
        out_spec=out_spec,
        parameter_names=parameter_names,
        fixed_shapes=True,
        whole=whole,
        examples=examples,
        ranges={s: (float(r.lower), float(r.upper)) for s, r in exported.range_constraints.items()},
        notes=reader.notes,
    )


def _note(name: str, attribute: str) -> str:
    return (
        f"the forward of {name} changes {printable(shorten(attribute, _NAME_SHOWN))!r}, an attribute and no buffer; "
        f"stages have it as it was when it was traced: make it a buffer (register_buffer) if outputs depend on it"
    )


def _tensors(constants: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in constants.items():
        if isinstance(value, torch.Tensor):
            yield name, value


class _Reader:
    """Copies an exported program's graph into one of our own."""

    def __init__(self, exported: ExportedProgram, name: str) -> None:
        self.exported, self.name = exported, name
        self.graph = fx.Graph()
        self.tensors: dict[str, torch.Tensor] = {}
        self.kinds: dict[str, str] = {}
        self.modules: dict[str, nn.Module] = {}
        self.transient: list[str] = []
        self.in_leaves: list[Leaf] = []
        self.notes: list[str] = []
        self._env: dict[fx.Node, Any] = {}

    def read(self) -> None:
        mutated = self._mutations()
        written_back = self._write_backs(mutated)
        specs = iter(self.exported.graph_signature.input_specs)
        for node in self.exported.graph.nodes:
            if node.op == "placeholder":
                self._read_placeholder(node, next(specs), mutated)
            elif node.op == "output":
                self._read_output(node)
            else:
                self._read_node(node)
            for value, target in written_back.get(node.name, ()):
                self._write_back(value, target)

    def _read_placeholder(self, node: fx.Node, spec: Any, mutated: Mapping[str, str]) -> None:
        if spec.kind is InputKind.USER_INPUT:
            self._read_input(node, spec.arg)
            return
        kind = {InputKind.PARAMETER: "weight", InputKind.BUFFER: "buffer", InputKind.CONSTANT_TENSOR: "constant"}
        if spec.kind not in kind:
            raise InputError(
                f"input {spec.target!r} of {self.name} is a {spec.kind.name}, which no graph can hold; "
                f"keep such objects out of the exported part"
            )
        stored = self.exported.state_dict.get(spec.target)
        tensor = self.exported.constants.get(spec.target) if stored is None else stored
        if not isinstance(tensor, torch.Tensor):
            raise InputError(f"{spec.target!r} of {self.name} is in the graph but not among its tensors")
        if node.users or spec.target in mutated:
            self.tensors[spec.target], self.kinds[spec.target] = tensor, kind[spec.kind]
            if stored is None:
                self.transient.append(spec.target)
            self._env[node] = self._create(node, "get_attr", spec.target)

    def _read_input(self, node: fx.Node, argument: Any) -> None:
        if isinstance(argument, ConstantArgument):
            self.in_leaves.append(Fixed(argument.value))
            self._env[node] = argument.value
            return
        made = self._create(node, "placeholder", node.name)
        self.in_leaves.append(made.name)
        self._env[node] = made

    def _read_node(self, node: fx.Node) -> None:
        if node.op == "get_attr":
            module = self.exported.graph_module.get_submodule(str(node.target))
            self.modules[str(node.target)] = module
            self._env[node] = self._create(node, "get_attr", str(node.target))
            return
        made = self.graph.node_copy(node, lambda n: self._env[n])
        made.meta = {"val": node.meta.get("val"), "path": module_path(node), "line": source_line(node)}
        self._env[node] = made

    def _create(self, node: fx.Node, op: str, target: str) -> fx.Node:
        made = self.graph.create_node(op, target, name=node.name)
        made.meta = {"val": node.meta.get("val"), "path": ""}
        return made

    def _read_output(self, node: fx.Node) -> None:
        results = node.args[0]
        assert isinstance(results, (tuple, list))  # noqa: S101 - torch.export's form; this tells the type checker
        leaves = []
        for spec, result in zip(self.exported.graph_signature.output_specs, results, strict=True):
            if spec.kind is OutputKind.USER_OUTPUT or spec.kind is OutputKind.LOSS_OUTPUT:
                if result is not None and not isinstance(result, (fx.Node, *_CONSTANT)):
                    raise InputError(f"{self.name} returns a {type(result).__name__}, which is no tensor or constant")
                leaves.append(self._env[result] if isinstance(result, fx.Node) else result)
            elif spec.kind is OutputKind.USER_INPUT_MUTATION:
                self.notes.append(
                    f"{self.name} changes its input {spec.target!r} in place; its stages leave it as it is"
                )
            elif spec.kind not in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION):
                raise InputError(f"{self.name} has an output of kind {spec.kind.name}; export its forward alone")
        self.graph.output(tuple(leaves))

    def _mutations(self) -> dict[str, str]:
        """Return the value that a functional program writes back to a buffer, by the buffer's name."""
        kinds = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
        specs = self.exported.graph_signature.output_specs
        return {str(spec.target): spec.arg.name for spec in specs if spec.kind in kinds}

    def _write_backs(self, mutations: Mapping[str, str]) -> dict[str, list[tuple[fx.Node, str]]]:
        """Return what to write back after which node: once the value is made and nothing reads the old one any more."""
        found: dict[str, list[tuple[fx.Node, str]]] = {}
        nodes = {node.name: node for node in self.exported.graph.nodes}
        for spec, placeholder in zip(self.exported.graph_signature.input_specs, nodes.values(), strict=False):
            target = str(spec.target)
            if target in mutations and spec.kind is not InputKind.USER_INPUT:
                value, memory, last = nodes[mutations[target]], storages(placeholder), ""
                for node in nodes.values():
                    reads = any(memory & storages(n) for n in (node, *node.all_input_nodes))
                    last = node.name if node is value or (reads and node.op != "output") else last
                found.setdefault(last, []).append((value, target))
        return found

    def _write_back(self, value: fx.Node, target: str) -> None:
        buffer = next(n for n in self.graph.nodes if n.op == "get_attr" and n.target == target)
        made = self.graph.call_function(torch.ops.aten.copy_.default, (buffer, self._env[value]))
        made.meta = {"val": buffer.meta["val"], "path": module_path(value)}
