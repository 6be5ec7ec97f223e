"""What a stage holds in memory, part by part.

Every storage is held once. Training adds a gradient of every weight, as large as the weight or of rows alone
(``gradients.py``), and what the optimiser keeps of it. Activations are those of one whole batch: in
training the arrays that autograd saves (``saved.py``), each once in a stage, in inference those of the largest layer; a
layer that makes an array larger than these, to reduce it again or on the way to a constant, holds that one. In bfloat16
or float16 a stage also holds narrow copies of the weights of its products, once for every micro-batch under way. A
safety factor covers workspace and fragmentation.

A schedule holds p of the M micro-batches of a stage at once. Of the activations A of a batch, and of the bytes E that
enter the stage with a batch (and leave the last one, where the loss reads them), a replica then holds ::

    p A / M                where activations are kept
    p E / M  +  A / M      where they are computed again in the backward (Chen et al., arXiv 1604.06174)

and narrow copies of weights p times, or once. The second takes a forward more.

Left out: other optimisers than those of :data:`OPTIMIZERS`; what the loss keeps.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from heterps_compile.ir.graph import Graph, Parameter
from heterps_compile.ir.layers import LayerGraph

from .gradients import Gradient, gradients_of, held_bytes
from .layer_cost import LayerCost

SAFETY_FACTOR = 1.2

MEMORY_TOLERANCE = 1e-9
"""Relative: rounding of sums must not make a stage that fits exactly too large."""

_ROUNDED_BYTES = 8.0  # what parts that a plan has in whole bytes may be too many together

_STATE_BYTES = 4  # an element of a state, in float32
_BLOCK, _BLOCK_BYTES, _WHOLE_BELOW = 256, 4, 4096  # bitsandbytes: elements that share a scale, its bytes, too small


def has_room(there_bytes: float, needed_bytes: float) -> bool:
    """Return whether a unit has memory for what a plan says in whole bytes."""
    return needed_bytes <= there_bytes * (1 + MEMORY_TOLERANCE) + _ROUNDED_BYTES


def _adafactor(weight: Parameter) -> int:
    """Return the bytes of a row and a column of second moments for every matrix, of all for a vector."""
    if len(weight.shape) < 2:
        return weight.size_bytes
    *outer, rows, columns = weight.shape
    return _STATE_BYTES * math.prod(outer) * (rows + columns)


def _adam_8bit(weight: Parameter) -> int:
    """Return the bytes of two states of a byte an element with a scale a block; small weights keep whole ones."""
    count = math.prod(weight.shape)
    if count < _WHOLE_BELOW:
        return 2 * weight.size_bytes
    return 2 * (count + _BLOCK_BYTES * -(-count // _BLOCK))


OPTIMIZERS: Mapping[str, Callable[[Parameter], int]] = MappingProxyType(
    {
        "adam": lambda weight: 2 * weight.size_bytes,
        "sgd": lambda _weight: 0,
        "momentum": lambda weight: weight.size_bytes,
        "adafactor": _adafactor,
        "adam-8bit": _adam_8bit,
    }
)
"""What an optimiser keeps of a weight, in bytes.

Two moments (Kingma and Ba, ICLR 2015), nothing, one momentum, factored second moments (Shazeer and Stern, ICML 2018;
``torch.optim.Adafactor``), or two moments in blocks of 8-bit numbers (Dettmers and others, ICLR 2022;
``bitsandbytes.optim.Adam8bit``).
"""

STEPS_ALL_ROWS = ("momentum",)
"""Which step all rows of a table although its gradient is of some: a velocity goes on where no gradient is."""

TAKE_NO_SPARSE = ("adafactor", "adam-8bit")
"""Which refuse gradients of rows."""

SERVER_OPTIMIZERS = ("sgd", "adagrad", "adam")
"""By which servers can step rows; the first is what a run takes where nothing else is said."""

USUAL_OPTIMIZER = next(iter(OPTIMIZERS))

RECOMPUTATIONS = ("auto", "never", "always")
"""Which stages compute their activations again: those that do not fit otherwise, none, all."""

AUTO, NEVER, ALWAYS = RECOMPUTATIONS
AVERAGE_COPIES = 2


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """Bytes one replica of a stage holds, part by part; the total has the safety factor in it.

    Attributes:
        weights_bytes, gradients_bytes, optimizer_bytes: Of parameters.
        activations_bytes: Of a batch; of the micro-batches under way once a schedule is chosen.
        safety_factor: On all of it.
        copies_bytes: Narrow copies of weights, of one micro-batch; of those under way once a schedule is chosen.
        inputs_bytes: What enters the stage with a batch; once a schedule is chosen what of ``activations_bytes`` is
            that, where the stage computes its activations again, else 0.
        recompute: One of :data:`RECOMPUTATIONS`, what is open until a schedule is chosen.
        sync_bytes: What the rule by which replicas agree holds besides.
    """

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    safety_factor: float = SAFETY_FACTOR
    copies_bytes: int = 0
    inputs_bytes: int = 0
    recompute: str = NEVER
    sync_bytes: int = 0

    @property
    def held_bytes(self) -> int:
        """Return what is held whatever the schedule is: weights, gradients, optimiser state, what replicas agree by."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes + self.sync_bytes

    @property
    def total_bytes(self) -> int:
        """Return the sum of the parts times the safety factor, rounded up."""
        parts = self.held_bytes + self.copies_bytes + self.activations_bytes
        return math.ceil(parts * self.safety_factor)

    def under_way(self, peak: int, micro_batches: int, *, recomputes: bool) -> "MemoryParts":
        """Return what a replica holds where so many of its micro-batches are under way, by the module's rule."""
        inputs = math.ceil(self.inputs_bytes * peak / micro_batches) if recomputes else 0
        activations = math.ceil(self.activations_bytes * (1 if recomputes else peak) / micro_batches)
        return replace(
            self,
            activations_bytes=activations + inputs,
            copies_bytes=self.copies_bytes * (1 if recomputes else peak),
            inputs_bytes=inputs,
            recompute=NEVER,
        )

    def with_average(self) -> "MemoryParts":
        """Return the parts of a run that keeps an average of the weights: it, and in validations the weights aside."""
        return replace(self, copies_bytes=self.copies_bytes + AVERAGE_COPIES * self.weights_bytes)


def parameter_parts(graph: Graph, names: Sequence[str], *, optimizer: str | None) -> tuple[int, int]:
    """Return bytes of parameters of distinct storages, and of the optimiser's states of those that are trained.

    Args:
        graph: Where the parameters are described.
        names: The parameters.
        optimizer: One of :data:`OPTIMIZERS`; None for inference, which holds no states.
    """
    held = sum(graph.parameters[name].size_bytes for name in names)
    if optimizer is None:
        return held, 0
    weights = [graph.parameters[name] for name in names if graph.parameters[name].kind == "weight"]
    return held, sum(map(OPTIMIZERS[optimizer], weights))


def layer_parameters_bytes(layer_graph: LayerGraph, index: int, cost: LayerCost, *, optimizer: str | None) -> int:
    """Return the bytes that a stage holds for a layer's parameters, each storage once, and for narrow copies."""
    parts = _layer_parts(layer_graph, index, _distinct(layer_graph, index, cost), cost, optimizer=optimizer)
    return sum(parts) + cost.copied_bytes


def stepped_parts(layer_graph: LayerGraph, index: int, cost: LayerCost, *, optimizer: str) -> tuple[float, float, int]:
    """Return bytes of weights and of states, and tensors, that a step of the optimizer reads and writes for a layer.

    Of a gradient of rows they are those of its rows, unless the optimizer is one of :data:`STEPS_ALL_ROWS`; tables on
    servers are stepped there.
    """
    gradients, parameters = gradients_of(layer_graph, index, cost), layer_graph.graph.parameters
    parts = [_stepped_part(each, optimizer) for each in gradients]
    weights = sum(part * parameters[each.name].size_bytes for each, part in zip(gradients, parts, strict=True))
    states = sum(
        part * OPTIMIZERS[optimizer](parameters[each.name]) for each, part in zip(gradients, parts, strict=True)
    )
    return float(weights), float(states), len(gradients)


def _stepped_part(gradient: Gradient, optimizer: str) -> float:
    if gradient.is_sparse and optimizer in STEPS_ALL_ROWS:
        return 1.0
    return gradient.distinct / gradient.table_rows


def stage_memory(
    layer_graph: LayerGraph,
    costs: Sequence[LayerCost],
    first: int,
    end: int,
    *,
    optimizer: str | None,
    recompute: str = NEVER,
) -> MemoryParts:
    """Return what a stage holds with a batch undivided, every storage counted once.

    Args:
        layer_graph: The layers.
        costs: The work of each.
        first: Its first layer.
        end: The layer after its last.
        optimizer: None for inference.
        recompute: Whether it may compute activations again; one whose forward changes a weight never does.
    """
    seen: set[str] = set()
    weights = gradients = states = 0
    for index in range(first, end):
        distinct = _distinct(layer_graph, index, costs[index])
        names = [name for name in distinct if layer_graph.graph.parameters[name].storage not in seen]
        seen.update(layer_graph.graph.parameters[name].storage for name in names)
        parts = _layer_parts(layer_graph, index, names, costs[index], optimizer=optimizer)
        weights, gradients, states = weights + parts[0], gradients + parts[1], states + parts[2]
    activations = activations_bytes(costs[first:end], training=optimizer is not None)
    return MemoryParts(
        weights,
        gradients,
        states,
        max(activations) if optimizer is None else sum(activations),
        copies_bytes=sum(costs[index].copied_bytes for index in range(first, end)),
        inputs_bytes=_entering_bytes(layer_graph, first, end),
        recompute=NEVER if changed_weights(layer_graph, range(first, end)) else recompute,
    )


def _entering_bytes(layer_graph: LayerGraph, first: int, end: int) -> int:
    """Return the bytes of a batch that enter a stage, each value once, and of the last stage those that leave it."""
    entering = sum(
        edge.size_bytes
        for edge in layer_graph.edges
        if not first <= edge.producer < end and any(first <= reader < end for reader in edge.consumers)
    )
    if end < len(layer_graph.layers):
        return entering
    graph = layer_graph.graph
    return entering + sum(graph.size_bytes(name) for name in dict.fromkeys(graph.outputs) if name in graph.values)


def changed_weights(layer_graph: LayerGraph, layers: Sequence[int]) -> tuple[str, ...]:
    """Return the weights that the forward of some layers changes, as an embedding with ``max_norm`` does."""
    graph = layer_graph.graph
    writes: Mapping[str, Sequence[str]] = getattr(graph.source, "writes", {})
    changed = {name for names in writes.values() for name in names}
    held = dict.fromkeys(name for layer in layers for name in layer_graph.layers[layer].parameters)
    return tuple(name for name in held if name in changed and graph.parameters[name].kind == "weight")


def activation_bytes(cost: LayerCost) -> int:
    """Return the activations of one batch that a layer reads and makes, or the largest array inside if that is more."""
    return max(cost.input_bytes + cost.output_bytes, cost.inside_bytes)


def activations_bytes(costs: Sequence[LayerCost], *, training: bool) -> list[int]:
    """Return the activations of one batch that each of some layers holds; in training what it saves.

    An array that several of them save counts at the first, so that their sum is what a stage of them holds.
    """
    found, seen = [], set[str]()
    for cost in costs:
        if not training or cost.saved is None:
            found.append(activation_bytes(cost))
            continue
        found.append(sum(size for name, size in cost.saved if name not in seen))
        seen.update(name for name, _ in cost.saved)
    return found


def _layer_parts(
    layer_graph: LayerGraph, index: int, names: Sequence[str], cost: LayerCost, *, optimizer: str | None
) -> tuple[int, int, int]:
    """Return what is held of some of a layer's parameters; of tables on servers rows of a batch, and their gradients.

    Rows that it looks up have gradients beside those of other layers, whether these hold the table already or not.
    """
    weights, states = parameter_parts(layer_graph.graph, names, optimizer=optimizer)
    if optimizer is None:
        return weights + cost.pulled_bytes, 0, states
    made = gradients_of(layer_graph, index, cost)
    gradients = held_bytes(each for each in made if each.name in names or each.looked_up is not None)
    return weights + cost.pulled_bytes, gradients + cost.pulled_bytes, states


def _distinct(layer_graph: LayerGraph, index: int, cost: LayerCost) -> list[str]:
    parameters = layer_graph.graph.parameters
    names = [name for name in layer_graph.layers[index].parameters if name not in cost.served]
    return list({parameters[name].storage: name for name in reversed(names)}.values())
