"""The backward of a micro-batch in two parts: gradients of what entered a stage, and later those of its weights.

Of a stage ``y = w2 f(w1 x)``::

    loss --- [w2] --- f --- [w1] --- x        first part: from the loss down to x; gradients that reach a bracket stay
              |              |
              w2             w1               second part: from every bracket to its weight, and no further

A bracket is a node of autograd's graph that leads to an input and to a weight; weights that share one are computed
together. A weight may lead to a result around every input too, as a table does that the stage looks up alone: that way
begins at the result, so that no gradient is left out.

Both parts are ``torch.autograd.backward`` on the graph that the forward left: hooks of weights run, sparse gradients
stay sparse, and gradients are the same bits as those of one backward. Tried with PyTorch 2.13: Linear, LayerNorm,
Conv-BatchNorm, TransformerEncoderLayer and DecoderLayer, LSTM, tied and sparse embeddings, views as results, one weight
used five times, ``torch.utils.checkpoint`` that is not reentrant.

The search for brackets is that of ``torch.distributed.pipelining``. Its own two parts of a backward are not called:
they refuse results that are views and weights with a node in common, leave out weights that reach a result around the
inputs, and give two weights with equal gradients one memory for both. Nor are its groups of weights: one that shares a
bracket with another, and has a second one, may be in two of them, so that its gradient would count twice.

Left out: activations that are computed again, which the second part would compute a third time.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from heterps_compile.errors import RunError

try:
    from torch.distributed.pipelining._backward import construct_reverse_graph, reverse_closure
except ImportError as error:
    raise RunError(
        f"PyTorch {torch.__version__} lacks functions of torch.distributed.pipelining that split a backward; take "
        f"--schedule 1f1b"
    ) from error

_Gradients = tuple[Tensor | None, ...]


@dataclass(frozen=True, slots=True)
class _Weights:
    """Weights that are computed together: their leaves, and the gradients at every bracket that leads to them."""

    leaves: list[Tensor]
    brackets: dict[Node, _Gradients]


class LateWeights:
    """The second part of a backward, which waits."""

    def __init__(self, weights: Sequence[_Weights], around: Sequence[tuple[GradientEdge, Tensor]]) -> None:
        self._weights, self._around = weights, around

    def backward(self) -> None:
        """Add the gradients of the weights to their ``grad``; call it once."""
        for each in self._weights:
            roots = [root for root, _ in self._around]
            seeds = [seed for _, seed in self._around]
            with ExitStack() as clamps:
                for node, gradients in each.brackets.items():
                    present = [(i, gradient) for i, gradient in enumerate(gradients) if gradient is not None]
                    roots += [GradientEdge(node, i) for i, _ in present]
                    seeds += [gradient for _, gradient in present]
                    # one bracket may lie behind another, whose gradients it has already
                    clamps.callback(node.register_prehook(lambda _, known=gradients: known).remove)
                torch.autograd.backward(roots, seeds, retain_graph=True, inputs=each.leaves)


def backward_of_inputs(
    roots: Sequence[Tensor | GradientEdge], seeds: Sequence[Tensor], inputs: Sequence[Tensor]
) -> LateWeights:
    """Add the gradients of inputs to their ``grad``; return what computes those of all other leaves.

    Args:
        roots: Results of a stage that need a gradient, its loss among them, or their places in the graph.
        seeds: Their gradients.
        inputs: Leaves that entered the stage. Where there is none, nobody waits, and all gradients are computed.
    """
    if not inputs:
        torch.autograd.backward(roots, seeds)  # type: ignore[arg-type]  # which takes both kinds in one list
        return LateWeights((), ())
    edges = [root if isinstance(root, GradientEdge) else get_gradient_edge(root) for root in roots]
    entered = [get_gradient_edge(value).node for value in inputs]
    above = construct_reverse_graph([edge.node for edge in edges])
    leaves = [node for node in {*above, *(edge.node for edge in edges)} if hasattr(node, "variable")]
    leaves = [node for node in leaves if node not in entered]
    behind, _ = reverse_closure(entered, set(), above)
    groups = _groups((leaf, reverse_closure([leaf], behind, above)[1]) for leaf in leaves)
    with _gradients_at({node for _, brackets in groups for node in brackets}) as found:
        torch.autograd.backward(edges, seeds, retain_graph=True, inputs=inputs)
    weights = [
        _Weights([_leaf(node) for node in own], {node: found[node] for node in brackets}) for own, brackets in groups
    ]
    around = [pair for pair in zip(edges, seeds, strict=True) if pair[0].node not in behind]
    return LateWeights(weights, around)


def _groups(brackets_of: Iterable[tuple[Node, set[Node]]]) -> list[tuple[list[Node], set[Node]]]:
    """Return leaves that share brackets, or have none, with all brackets of them; each leaf and bracket once."""
    groups: list[tuple[list[Node], set[Node]]] = []
    for leaf, brackets in brackets_of:
        apart, own, together = [], [leaf], set(brackets)
        for group in groups:
            if together.isdisjoint(group[1]) and (together or group[1]):
                apart.append(group)
            else:
                own += group[0]
                together |= group[1]
        groups = [*apart, (own, together)]
    return groups


@contextmanager
def _gradients_at(nodes: set[Node]) -> Iterator[dict[Node, _Gradients]]:
    """Note the gradients that reach nodes."""
    found: dict[Node, _Gradients] = dict.fromkeys(nodes, ())
    with ExitStack() as hooks:
        for node in nodes:
            hooks.callback(node.register_prehook(lambda gradients, node=node: found.update({node: gradients})).remove)
        yield found


def _leaf(node: Node) -> Tensor:
    leaf: Any = node
    variable: Tensor = leaf.variable
    return variable
