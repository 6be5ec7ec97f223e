"""The graph: nodes in a topological order, the values between them, the parameters they read.

A graph is frozen. It keeps a handle on its source (an ``onnx_ir.Model``, a ``torch.fx.GraphModule``),
so that a backend of the same family cuts the original instead of a translation.

Ownership: a *value* is made by one node output or is a graph input; a *parameter* (weight, buffer,
constant) is made by nobody. Both are named in one namespace, and a node's inputs may name either.

Left out: control flow (a ``Loop`` or ``If`` is one node, its captured values are its inputs), aliasing and
mutation (a mutated buffer is a parameter), attributes (they stay in the source).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import Any

Dim = int | str
"""A dimension: a number, or the name of a symbol that :attr:`Graph.bindings` gives a number."""

ITEM_BITS: Mapping[str, int] = MappingProxyType(
    {
        "float64": 64, "float32": 32, "float16": 16, "bfloat16": 16,
        "float8_e4m3fn": 8, "float8_e4m3fnuz": 8, "float8_e5m2": 8, "float8_e5m2fnuz": 8, "float8_e8m0fnu": 8,
        "float4_e2m1fn": 4, "complex64": 64, "complex128": 128,
        "int64": 64, "int32": 32, "int16": 16, "int8": 8, "int4": 4, "int2": 2,
        "uint64": 64, "uint32": 32, "uint16": 16, "uint8": 8, "uint4": 4, "uint2": 2,
        "bool": 8, "string": 128,
    }
)  # fmt: skip
"""Bits per element of every dtype; the keys are the dtypes a :class:`Value` may have."""

ONNX, TORCH = "onnx", "torch"
"""The families of sources: what the nodes of a graph stand for."""

OPAQUE = "opaque"
"""The dtype of a value that is no tensor (a tuple, a sequence, a None); it can never cross a stage."""


class OpKind(StrEnum):
    """What a node does, in the cost model's words; front ends map their own ops onto these."""

    CONV = "conv"
    GEMM = "gemm"  # a matrix product with a parameter
    MATMUL = "matmul"  # a matrix product of two activations
    ATTENTION = "attention"
    RECURRENT = "recurrent"
    EMBEDDING = "embedding"  # gathers rows of a parameter
    NORM = "norm"
    SOFTMAX = "softmax"
    POOL = "pool"
    REDUCE = "reduce"
    ELEMENTWISE = "elementwise"
    MOVE = "move"  # copies data: concat, transpose, gather, pad
    VIEW = "view"  # moves nothing: reshape, squeeze, getitem of a tuple
    SHAPE = "shape"  # reads only the shape of its input
    CONSTANT = "constant"  # makes data from nothing: arange, zeros
    CONTROL = "control"  # loop, if, scan
    OTHER = "other"

    @property
    def is_anchor(self) -> bool:
        """Whether a node of this kind starts a layer of its own."""
        return self in _ANCHORS


_ANCHORS = frozenset(
    {
        OpKind.CONV,
        OpKind.GEMM,
        OpKind.MATMUL,
        OpKind.ATTENTION,
        OpKind.RECURRENT,
        OpKind.EMBEDDING,
        OpKind.CONTROL,
    }
)


DEPTHWISE, DROPOUT, DROPPING_ATTENTION = "depthwise", "dropout", "dropping-attention"
"""Kinds of work beside those of nodes, whose kernels have their own rates: convolutions of every channel by itself;
drawing random numbers; attention that drops some of its weights, for which CPUs have no fused kernel."""

COLD_START = "cold-start"
"""What the first layer of a pass takes because the pass before has displaced code and data from the caches."""

WORK_KINDS: tuple[str, ...] = (*OpKind, DEPTHWISE, DROPOUT, DROPPING_ATTENTION, COLD_START)
"""All kinds of work that rates may be measured of."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor between nodes (or, with dtype :data:`OPAQUE`, something that is no tensor)."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A weight, buffer or constant that nodes read.

    Attributes:
        name: The name in the source (``state_dict`` key or initialiser name).
        storage: Parameters with the same storage are tied: one array under
            several names.
        size_bytes: Bytes of the array.
        kind: ``"weight"`` (trainable), ``"buffer"`` or ``"constant"``.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    storage: str
    size_bytes: int
    kind: str = "weight"


@dataclass(frozen=True, slots=True)
class Node:
    """One operation.

    Attributes:
        name: Unique in the graph.
        op: The op in the source's words (``"Conv"``,
            ``"com.microsoft::Gelu"``, ``"aten.linear.default"``).
        kind: The same in the cost model's words.
        inputs: Names of values and parameters, in the source's order, absent
            optional inputs left out.
        outputs: Names of the values it makes.
        flops: Floating-point operations of one forward run at the graph's
            bindings; a multiply-add is two.
        origin: Index of the node in the source's own node list.
        module_path: Dotted path of the module it came from, or "" where the
            front end knows none.
        after: Names of nodes that run before this one although it reads
            nothing of theirs: random numbers are drawn in the order of the
            program.
        scratch_bytes: Bytes of the largest array that is made, and dropped, on
            the way to the constants that it reads.
        draws: Whether it draws random numbers, as dropout does in training.
        sparse: Whether it looks rows up and its gradient is of these alone, not as large as the table.
    """

    name: str
    op: str
    kind: OpKind
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    flops: int = 0
    origin: int = -1
    module_path: str = ""
    after: tuple[str, ...] = ()
    scratch_bytes: int = 0
    draws: bool = False
    sparse: bool = False


@dataclass(frozen=True, slots=True)
class OpenedBatch:
    """How a batch that the model fixes was opened.

    Attributes:
        fixed: The batch that the model fixes.
        axes: The axis along which each input and output that has samples has
            them, by name.
        original: Returns the graph of the model at the batch it fixes.
    """

    fixed: int
    axes: Mapping[str, int]
    original: "Callable[[], Graph]"


@dataclass(frozen=True)
class Graph:
    """A model: nodes in a topological order, values, parameters.

    Attributes:
        inputs: Names of the values a caller gives, in the source's order.
        outputs: Names of values (or inputs, or parameters) the model returns,
            in order, repeats allowed.
        values: Every value by name, graph inputs included.
        parameters: Every parameter by name.
        bindings: The number each symbolic dimension stands for.
        batch_symbol: The symbol of the batch dimension, or None where the
            batch is a fixed number.
        batch: Samples in one run at the bindings.
        family: The source's family: :data:`ONNX` or :data:`TORCH`.
        source: What the front end read; only a backend of the same family
            looks inside.
        opened: How the batch was opened, where the model fixes another; None
            where it does not.
        mixes: The node, else the output, that mixes samples of the batch; ""
            if none was found.
        unchecked: Why samples are assumed to be independent; "" if they were
            found to be, or if the batch is fixed.
    """

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    values: Mapping[str, Value]
    parameters: Mapping[str, Parameter]
    bindings: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    batch_symbol: str | None = None
    batch: int = 1
    family: str = "none"
    source: Any = field(default=None, compare=False, repr=False)
    opened: OpenedBatch | None = field(default=None, compare=False, repr=False)
    mixes: str = ""
    unchecked: str = ""

    @property
    def is_divisible(self) -> bool:
        """Whether micro-batches and replicas can divide the batch."""
        return self.batch_symbol is not None and not self.mixes

    @property
    def undivided(self) -> str:
        """Why the batch is not divisible."""
        if self.mixes:
            return f"{self.mixes} mixes samples of the batch of {self.batch}"
        return f"the model fixes its batch at {self.batch}"

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a value or parameter, in numbers."""
        if name in self.parameters:
            return self.parameters[name].shape
        return tuple(d if isinstance(d, int) else self.bindings[d] for d in self.values[name].shape)

    def numel(self, name: str) -> int:
        """Return the number of elements of a value or parameter."""
        return prod(self.shape(name))

    def size_bytes(self, name: str) -> int:
        """Return the bytes of a value or parameter; 0 for what is no tensor."""
        if name in self.parameters:
            return self.parameters[name].size_bytes
        value = self.values[name]
        return 0 if value.dtype == OPAQUE else (self.numel(name) * ITEM_BITS[value.dtype] + 7) // 8

    @cached_property
    def producer(self) -> Mapping[str, int]:
        """Return, for every value a node makes, the index of that node."""
        return {out: i for i, node in enumerate(self.nodes) for out in node.outputs}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[int, ...]]:
        """Return who reads each value or parameter: indices, ascending."""
        readers: dict[str, list[int]] = {}
        for i, node in enumerate(self.nodes):
            for name in dict.fromkeys(node.inputs):
                readers.setdefault(name, []).append(i)
        return {name: tuple(indices) for name, indices in readers.items()}

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Return whom each node waits for: indices, ascending, each once."""
        index = {node.name: i for i, node in enumerate(self.nodes)} if any(node.after for node in self.nodes) else {}
        producer = self.producer
        return tuple(
            tuple(sorted({*(producer[n] for n in node.inputs if n in producer), *(index[n] for n in node.after)}))
            for node in self.nodes
        )

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Return who waits for each node: indices, ascending, each once."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for i, before in enumerate(self.predecessors):
            for j in before:
                found[j].append(i)
        return tuple(map(tuple, found))

    @cached_property
    def tied(self) -> Mapping[str, tuple[str, ...]]:
        """Return the storages that go by more than one name, with those names."""
        names: dict[str, list[str]] = {}
        for parameter in self.parameters.values():
            names.setdefault(parameter.storage, []).append(parameter.name)
        return {storage: tuple(tied) for storage, tied in names.items() if len(tied) > 1}
