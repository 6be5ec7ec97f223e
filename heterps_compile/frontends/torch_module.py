"""Read a ``torch.fx.GraphModule`` as it is.

``call_module``, ``call_method`` and ``call_function`` nodes stay what they are, and submodules stay the user's own
objects. Shapes come from running the nodes on fake tensors, which touches no memory of the user's.

Left out: inputs that are structures of tensors (unless the module flattens them itself), ``*args``, ``**kwargs``,
and symbolic dimensions (unless the fake tensors that the graph carries have them).
"""

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from heterps_compile.errors import InputError

from .torch_backwards import registered_hooks, watch_backwards
from .torch_call import Fixed, Leaf
from .torch_clean import is_check
from .torch_draws import Watch
from .torch_program import Program, find_aliases, module_path, quiet_tracing
from .torch_reasons import whole_reason

_NUMBER = (bool, int, float)
_MISSING = object()


def read_graph_module(module: fx.GraphModule, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str) -> Program:
    """Read a traced module, its shapes taken from the example inputs or else from what the graph carries.

    Raises:
        InputError: where a shape is unknown, or a node fails on the example's shapes.
    """
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    in_spec, out_spec = _specs(module, placeholders)
    given = _bind(placeholders, in_spec, args, kwargs, name)
    mode = _fake_mode(placeholders)
    fakes = {node: _fake_input(node, given.get(node, _MISSING), mode, name) for node in placeholders}
    run = _Propagate(module, mode, name)
    with quiet_tracing(), watch_backwards(module) as lost:
        run.run(*fakes.values(), enable_io_processing=False)
    reader = _Reader(module, run, name)
    reader.read(fakes, out_spec)
    keyword = [str(node.target) for node in placeholders]
    return Program(
        name=name,
        graph=reader.graph,
        tensors=reader.tensors,
        kinds=reader.kinds,
        modules=reader.modules,
        module_tensors=reader.module_tensors,
        transient=frozenset(reader.tensors) - frozenset(module.state_dict(keep_vars=True)),
        state=module.state_dict(keep_vars=True),
        aliases=find_aliases(reader.tensors.items()),
        writes=reader.writes,
        in_spec=in_spec,
        in_leaves=tuple(reader.in_leaves),
        out_spec=reader.out_spec,
        parameter_names=tuple(keyword),
        fixed_shapes=False,
        whole=lambda: module,
        examples={reader.env[node].name: value for node, value in given.items() if reader.is_value(node)},
        notes=[],
        draws=frozenset(reader.draws),
        lost=(*registered_hooks(module), *lost),
    )


def _specs(module: fx.GraphModule, placeholders: list[fx.Node]) -> tuple[pytree.TreeSpec, pytree.TreeSpec | None]:
    """Return the structure of (args, kwargs), and of the result where the module unflattens it itself."""
    info = getattr(module.graph._codegen, "pytree_info", None)
    if info is None:
        return pytree.tree_structure(((0,) * len(placeholders), {})), None
    rebuilt = pytree.tree_unflatten([0] * info.in_spec.num_leaves, info.in_spec)
    is_call = isinstance(rebuilt, tuple) and len(rebuilt) == 2 and isinstance(rebuilt[1], dict)
    return info.in_spec if is_call else pytree.tree_structure((tuple(rebuilt), {})), info.out_spec


def _bind(
    placeholders: list[fx.Node],
    in_spec: pytree.TreeSpec,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    name: str,
) -> dict[fx.Node, Any]:
    """Return the example of each placeholder; none where no example is given at all."""
    if not args and not kwargs:
        return {}
    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    if spec == in_spec:
        return dict(zip(placeholders, leaves, strict=True))
    targets = {str(node.target): node for node in placeholders}
    unknown = [key for key in kwargs if key not in targets]
    if len(args) > len(placeholders) or unknown:
        raise InputError(
            f"{name} takes {len(placeholders)} inputs ({', '.join(targets)}); the example gives {len(args)} by "
            f"position and {', '.join(map(repr, kwargs)) or 'none'} by name"
        )
    found = dict(zip(placeholders, args, strict=False)) | {targets[key]: value for key, value in kwargs.items()}
    missing = [str(n.target) for n in placeholders if n not in found and not n.args]
    if missing:
        raise InputError(f"{name} takes inputs that the example does not give: {', '.join(missing)}")
    return found


def _fake_mode(placeholders: list[fx.Node]) -> FakeTensorMode:
    """Return the fake mode of the tensors the graph carries, with its symbols, or a new one."""
    for node in placeholders:
        value = node.meta.get("val")
        if isinstance(value, FakeTensor):
            return value.fake_mode
    return FakeTensorMode(allow_non_fake_inputs=True)


def _fake_input(node: fx.Node, example: Any, mode: FakeTensorMode, name: str) -> Any:
    """Return what stands for an input: its example made fake, or what the graph says of it."""
    recorded = node.meta.get("val")
    is_symbolic = isinstance(recorded, torch.SymInt) or (
        isinstance(recorded, torch.Tensor) and any(isinstance(d, torch.SymInt) for d in recorded.shape)
    )
    if str(node.target).startswith("*"):
        raise InputError(f"input {node.target!r} of {name} has no fixed number of tensors; give it named inputs")
    if is_symbolic:
        return recorded
    if example is _MISSING and node.args:
        example = node.args[0]
    if example is not _MISSING:
        if isinstance(example, torch.Tensor):
            return (
                mode.from_tensor(example.detach(), static_shapes=True)
                if not isinstance(example, FakeTensor)
                else example
            )
        if example is None or isinstance(example, (*_NUMBER, str, torch.dtype, torch.device)):
            return example
        raise InputError(
            f"input {node.target!r} of {name} is a {type(example).__name__}; a GraphModule is read as it is, with "
            f"tensors and numbers for inputs: pass the nn.Module it was traced from instead"
        )
    if isinstance(recorded, torch.Tensor):
        return recorded if isinstance(recorded, FakeTensor) else mode.from_tensor(recorded, static_shapes=True)
    shape = getattr(node.meta.get("tensor_meta"), "shape", None)
    if shape is None:
        raise InputError(
            f"the shape of input {node.target!r} of {name} is unknown, since the graph carries none; "
            f"pass example_inputs=(...)"
        )
    with mode:
        return torch.empty(shape, dtype=node.meta["tensor_meta"].dtype)


class _Propagate(fx.Interpreter):
    """Runs every node on fake tensors, and notes what it changes in place and whether it draws random numbers."""

    def __init__(self, module: fx.GraphModule, mode: FakeTensorMode, name: str) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.mode, self.model_name = mode, name
        self.values: dict[fx.Node, Any] = {}
        self._node = next(iter(module.graph.nodes))
        self.writes: dict[fx.Node, tuple[fx.Node | str, ...]] = {}
        self.draws: set[fx.Node] = set()

    def run_node(self, n: fx.Node) -> Any:
        """Run one node, with its shape recorded."""
        if is_check(n):
            self.values[n] = None
            return None
        self._node = n
        before = {source: self._version(self.values[source]) for source in n.all_input_nodes}
        try:
            with self.mode, Watch() as watch:
                result = super().run_node(n)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"node {n.name!r} ({n.op} {n.target}) of {self.model_name} fails on the example inputs: "
                f"{whole_reason(error)}; pass inputs that the model accepts"
            ) from error
        self.values[n] = result
        if watch.drew:
            self.draws.add(n)
        changed = [source for source, version in before.items() if self._version(self.values[source]) != version]
        if changed:
            self.writes[n] = (*self.writes.get(n, ()), *changed)
        return result

    @staticmethod
    def _version(value: Any) -> tuple[int, ...]:
        return tuple(leaf._version for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Fetch an attribute, tensors made fake."""
        found = super().get_attr(target, args, kwargs)
        return self._fake(found) if isinstance(found, torch.Tensor) else found

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call a submodule with fake parameters and buffers in place of its own."""
        module = self.fetch_attr(target)
        held = {key: self._fake(tensor) for key, tensor in (*module.named_parameters(), *module.named_buffers())}
        before = {key: tensor._version for key, tensor in held.items()}
        result = torch.func.functional_call(module, held, args, kwargs)
        names = [f"{target}.{key}" for key, tensor in held.items() if tensor._version != before[key]]
        names += [name for name in running_statistics(target, module) if name not in names]
        if names:
            self.writes[self._node] = tuple(names)
        return result

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.mode.from_tensor(tensor, static_shapes=True)


def running_statistics(path: str, module: nn.Module) -> list[str]:
    """Return the buffers that normalisation layers under a module update, which their kernels do unseen."""
    found = []
    for name, part in module.named_modules(prefix=path):
        if isinstance(part, nn.modules.batchnorm._NormBase) and part.training and part.track_running_stats:
            found += [f"{name}.{key}" for key, buffer in part.named_buffers(recurse=False) if buffer is not None]
    return found


class _Reader:
    """Copies a traced module's graph into one of our own, with the fake values a run gave."""

    def __init__(self, module: fx.GraphModule, run: _Propagate, name: str) -> None:
        self.module, self.name = module, name
        self.graph = fx.Graph()
        self.tensors: dict[str, torch.Tensor] = {}
        self.kinds: dict[str, str] = {}
        self.modules: dict[str, nn.Module] = {}
        self.module_tensors: dict[str, tuple[str, ...]] = {}
        self.in_leaves: list[Leaf] = []
        self.out_spec = pytree.tree_structure(())
        self.writes: dict[fx.Node, tuple[fx.Node | str, ...]] = {}
        self.draws: set[fx.Node] = set()
        self.env: dict[fx.Node, Any] = {}
        self._run = run
        self._buffers = {key for key, _ in module.named_buffers(remove_duplicate=False)}

    def is_value(self, node: fx.Node) -> bool:
        """Say whether a node of the user's graph is one of ours, and not a constant."""
        return isinstance(self.env[node], fx.Node)

    def read(self, fakes: Mapping[fx.Node, Any], out_spec: pytree.TreeSpec | None) -> None:
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                self._read_input(node, fakes[node])
            elif node.op == "get_attr":
                self._read_attribute(node)
            elif node.op == "output":
                self._read_output(node.args[0], out_spec)
            elif not is_check(node):
                self._read_node(node)

    def _read_input(self, node: fx.Node, fake: Any) -> None:
        if isinstance(fake, (torch.Tensor, torch.SymInt, *_NUMBER)):
            self.env[node] = self._create(node, "placeholder", node.name, fake)
            self.in_leaves.append(self.env[node].name)
        else:
            self.env[node] = fake
            self.in_leaves.append(Fixed(fake))

    def _read_attribute(self, node: fx.Node) -> None:
        target = str(node.target)
        found = self._attribute(target)
        if isinstance(found, torch.Tensor):
            self._hold(target, found)
            self.env[node] = self._create(node, "get_attr", target, self._run.values[node])
        elif isinstance(found, nn.Module):
            self.modules[target] = found
            self.env[node] = self._create(node, "get_attr", target, None)
        else:
            self.env[node] = found

    def _attribute(self, target: str) -> Any:
        found: Any = self.module
        for atom in target.split("."):
            found = getattr(found, atom)
        return found

    def _hold(self, name: str, tensor: torch.Tensor) -> None:
        is_weight = isinstance(tensor, nn.Parameter)
        self.tensors[name] = tensor
        self.kinds[name] = "weight" if is_weight else "buffer" if name in self._buffers else "constant"

    def _read_node(self, node: fx.Node) -> None:
        made = self.graph.node_copy(node, lambda n: self.env[n])
        made.meta = {"val": self._run.values[node], "path": module_path(node)}
        if node.op == "call_module":
            target = str(node.target)
            module = self.module.get_submodule(target)
            made.meta["path"] = target
            self.modules[target] = module
            held = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
            for key, tensor in held:
                self._hold(f"{target}.{key}", tensor)
            self.module_tensors[target] = tuple(f"{target}.{key}" for key, _ in held)
        self.env[node] = made
        if node in self._run.draws:
            self.draws.add(made)
        if node in self._run.writes:
            changed = self._run.writes[node]
            self.writes[made] = tuple(c if isinstance(c, str) else self.env[c] for c in changed)

    def _create(self, node: fx.Node, op: str, target: str, value: Any) -> fx.Node:
        made = self.graph.create_node(op, target, name=node.name)
        made.meta = {"val": value, "path": ""}
        return made

    def _read_output(self, result: Any, out_spec: pytree.TreeSpec | None) -> None:
        structure = self._plain(result)
        leaves, spec = pytree.tree_flatten(structure)
        self.out_spec = spec if out_spec is None else out_spec
        odd = [leaf for leaf in leaves if not isinstance(leaf, (fx.Node, *_NUMBER, str, type(None), torch.dtype))]
        if odd:
            raise InputError(f"{self.name} returns a {type(odd[0]).__name__}, which is no tensor or constant")
        self.graph.output(tuple(leaves))

    def _plain(self, result: Any) -> Any:
        """Return a result with fx's own containers made plain, and values that are tuples taken apart."""
        if isinstance(result, fx.Node):
            found = self.env[result]
            return self._take_apart(found, found.meta["val"]) if isinstance(found, fx.Node) else found
        if isinstance(result, dict):
            return {key: self._plain(value) for key, value in result.items()}
        if isinstance(result, (tuple, list)):
            parts = [self._plain(value) for value in result]
            if hasattr(result, "_fields"):
                return type(result)(*parts)
            return tuple(parts) if isinstance(result, tuple) else parts
        return result

    def _take_apart(self, node: fx.Node, value: Any) -> Any:
        if type(value) not in (tuple, list, torch.Size):
            return node
        parts = []
        for index, part in enumerate(value):
            item = self.graph.call_function(operator.getitem, (node, index))
            item.meta = {"val": part, "path": node.meta["path"]}
            parts.append(self._take_apart(item, part))
        return parts if isinstance(value, list) else tuple(parts)
