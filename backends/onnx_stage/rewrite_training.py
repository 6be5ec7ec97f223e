"""What a PyTorch stage does in training mode alone, rewritten before it becomes ONNX.

::

    batch_norm of the batch's statistics   -> BatchNorm, then a copy into the running statistics
    dropout, also of whole features        -> Dropout with the number of its draw
    attention with dropout                 -> its products, a softmax, and a Dropout between them
    detach                                 -> Detach, which stops the gradient
    embedding with a row that pads         -> the same, with a Detach where ids are that row
    a buffer that a node changes           -> one more output, after those of the cut

A draw has the number of its node in the whole graph, so that masks do not depend on where the model is cut.

Left out: alpha dropout, random slopes (rrelu), and dropout between recurrent layers; they are refused.
"""

import operator
from collections import Counter
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.fx.operator_schemas import normalize_function
from torch.fx.proxy import GraphAppendingTracer
from torch.utils import _pytree as pytree

from heterps_compile.backends.torch.holder import hold_tensor
from heterps_compile.backends.torch.stage import TorchStage
from heterps_compile.errors import BackendError
from heterps_compile.escape import printable
from heterps_compile.frontends.torch_marks import mark_of
from heterps_compile.frontends.torch_memory import storages, written_operands
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import StageCut

from .attention import ATTENTION, write_out
from .training_ops import BATCH_NORM, DETACH, DROPOUT

_MARK = "heterps_compile_node"
_FURTHER_DRAW = 2**20  # between the numbers of two draws of one node, a module that is taken as it is

_aten: Any = torch.ops.aten
_WHOLE_FEATURES = (_aten.feature_dropout.default, _aten.feature_dropout_.default)
_DROPOUTS = (_aten.dropout.default, _aten.dropout_.default, *_WHOLE_FEATURES)
_REFUSED = {
    "aten.alpha_dropout": "train",
    "aten.alpha_dropout_": "train",
    "aten.feature_alpha_dropout": "train",
    "aten.feature_alpha_dropout_": "train",
    "aten.lstm": "train",
    "aten.gru": "train",
    "aten.rnn_tanh": "train",
    "aten.rnn_relu": "train",
    "aten.rrelu": "training",
    "aten.rrelu_": "training",
    "aten.instance_norm": "use_input_stats",
}
"""Ops without a translation where the named flag is set and one of the amounts is there."""
_AMOUNTS = ("p", "dropout", "upper", "running_mean")


def changed_buffers(graph: Graph, cut: StageCut) -> tuple[str, ...]:
    """Return the parameters and buffers that nodes of a stage change in place, in order of first change."""
    nodes = list(graph.source.graph.nodes)
    written = (graph.source.writes.get(nodes[graph.nodes[i].origin].name, ()) for i in cut.nodes)
    return tuple(dict.fromkeys(name for names in written for name in names if name in graph.source.tensors))


def return_changed(stage: TorchStage, graph: Graph, cut: StageCut, changed: tuple[str, ...]) -> None:
    """Let a stage give, after its outputs, what it has changed; and mark its nodes for :func:`rewrite_training`."""
    tensors = graph.source.tensors
    slots = [hold_tensor(stage, name, tensors[name], is_transient=False) for name in changed]  # it holds them already
    index = {graph.nodes[i].outputs[0]: i for i in cut.nodes if graph.nodes[i].outputs}
    for node in stage.body.graph.nodes:
        node.meta["custom"] = {_MARK: str(index.get(node.meta.get("name", ""), ""))}
    body = fx.Interpreter(stage.body)  # which hands the marks of nodes on to what is traced of them

    def run(*arguments: Any) -> tuple[Any, ...]:
        return (*body.run(*arguments), *(table[key].clone() for table, key in slots))

    stage.__dict__["body"] = run


def rewrite_training(program: ExportedProgram, stage: int) -> None:
    """Rewrite the nodes of a traced stage that train, in place.

    Raises:
        BackendError: naming stage and node of one that has no translation.
    """
    _Rewriting(program, stage).rewrite()


class _Rewriting:
    def __init__(self, program: ExportedProgram, stage: int) -> None:
        self.program, self.stage = program, stage
        self.tracer = GraphAppendingTracer(program.graph)
        self.draws: Counter[int] = Counter()

    def rewrite(self) -> None:
        graph = self.program.graph
        for node in [n for n in graph.nodes if n.op == "call_function" and isinstance(n.target, torch._ops.OpOverload)]:
            given = self._given(node)
            with graph.inserting_before(node):
                made = self._made(node, given)
            if made is not None:
                made.node.meta["val"] = node.meta["val"]
                node.replace_all_uses_with(made.node)
                graph.erase_node(node)
        self.program.graph_module.recompile()

    def _given(self, node: fx.Node) -> dict[str, Any]:
        """Return the arguments of a node by name, nodes as proxies that append to the graph."""
        normal = normalize_function(node.target, node.args, node.kwargs, normalize_to_only_use_kwargs=True)  # type: ignore[arg-type]  # a node's own
        assert normal is not None  # noqa: S101 - an op always has a schema; this tells the type checker
        return {name: pytree.tree_map(self._proxy, value) for name, value in normal.kwargs.items()}

    def _proxy(self, value: Any) -> Any:
        return fx.Proxy(value, self.tracer) if isinstance(value, fx.Node) else value

    def _made(self, node: fx.Node, given: dict[str, Any]) -> Any:
        """Return what a node becomes, or None where it stays."""
        if node.target is _aten.batch_norm.default and given["training"]:
            return self._batch_norm(given)
        if node.target in _DROPOUTS and given["train"] and given["p"]:
            dropped = self._dropout(node, given["input"], given["p"])
            in_place = str(node.target).split(".")[1].endswith("_")
            return _aten.copy_.default(given["input"], dropped) if in_place else dropped
        if node.target is ATTENTION and given.get("dropout_p"):
            return write_out(given, lambda weights: self._dropout(node, weights, given["dropout_p"]))
        if node.target is _aten.detach.default and node.meta["val"].is_floating_point():
            return None if self._is_changed_later(node) else DETACH(given["input"])
        if node.target is _aten.embedding_renorm_.default:
            return self._renorm(given)
        if node.target is _aten.embedding.default:
            return self._embedding(node, given)
        flag = _REFUSED.get(str(node.target).rpartition(".")[0])
        amounts = (given.get(name) for name in _AMOUNTS)
        if flag and given.get(flag) and any(isinstance(amount, fx.Proxy) or amount for amount in amounts):
            self._refuse(node)
        return None

    def _is_changed_later(self, node: fx.Node) -> bool:
        """Say whether a detached tensor is read after its memory is changed: it must stay that memory."""
        nodes, memory = list(self.program.graph.nodes), storages(node)
        after = nodes[nodes.index(node) + 1 :]
        same, is_changed = {node}, False
        for other in after:
            is_changed = is_changed or any(storages(operand) & memory for operand in written_operands(other))
            if same.intersection(other.all_input_nodes):
                if is_changed:
                    return True
                if isinstance(other.meta.get("val"), Tensor) and storages(other) & memory:
                    same.add(other)
        return False

    def _refuse(self, node: fx.Node) -> None:
        raise BackendError(
            f"stage {self.stage} cannot become a pure function: node {printable(node.name)!r} ({node.target}) does in "
            f"training mode what has no translation; put the model in evaluation mode (model.eval()), or take the "
            f"backend torch"
        )

    def _batch_norm(self, given: dict[str, Any]) -> Any:
        names = ("input", "weight", "bias", "running_mean", "running_var", "momentum", "eps")
        made = BATCH_NORM(*(given[name] for name in names))
        for place, name in enumerate(("running_mean", "running_var"), 1):
            if given[name] is not None:
                _aten.copy_.default(given[name], operator.getitem(made, place))
        return operator.getitem(made, 0)

    def _renorm(self, given: dict[str, Any]) -> Any:
        """Scale rows of a table in place, without a gradient, as PyTorch does it."""
        table = given["input"]
        scaled = _aten.embedding_renorm.default(table, given["indices"], given["max_norm"], given["norm_type"])
        return _aten.copy_.default(table, _aten.add.Tensor(table, DETACH(_aten.sub.Tensor(scaled, table))))

    def _embedding(self, node: fx.Node, given: dict[str, Any]) -> Any:
        if given["scale_grad_by_freq"]:
            self._refuse(node)
        padding = given["padding_idx"]
        if padding < 0:  # there is none
            return None
        rows = _aten.embedding.default(given["weight"], given["indices"])
        pads = _aten.unsqueeze.default(_aten.eq.Scalar(given["indices"], padding), -1)
        return _aten.where.self(pads, DETACH(rows), rows)

    def _dropout(self, node: fx.Node, x: Any, ratio: float) -> Any:
        if node.target not in _WHOLE_FEATURES:
            return DROPOUT(x, ratio, self._draw(node))
        ones = _aten.ones_like.default(x)
        for axis in range(2, node.meta["val"].dim()):
            ones = _aten.slice.Tensor(ones, axis, 0, 1)
        return _aten.mul.Tensor(x, DROPOUT(ones, ratio, self._draw(node)))

    def _draw(self, node: fx.Node) -> int:
        """Return the number of a draw: of its node in the whole graph, where PyTorch is new enough to keep marks."""
        mark = mark_of(node, _MARK)
        number = int(mark) if mark else (self.stage + 1) * 2**16
        self.draws[number] += 1
        return number + (self.draws[number] - 1) * (_FURTHER_DRAW if mark else 1)
