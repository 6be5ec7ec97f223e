"""A partition of a graph into stages, and the laws it must keep before any code is written.

A stage names its nodes, the values that enter and leave it, and the parameters it holds. Graph inputs
enter the stages that read them directly; a value that several later stages read is sent to each directly,
never threaded through the stages between.

Left out: devices, replicas and prices (``plan/``), and how a stage is built (``backends/``).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from heterps_compile.errors import PartitionError

from .graph import OPAQUE, Graph


class Boundary(Protocol):
    """What is known of a stage from outside: its place, and the names of what enters and leaves it, in order."""

    @property
    def index(self) -> int:
        """Its place in the order of execution."""
        ...

    @property
    def inputs(self) -> tuple[str, ...]:
        """Values that enter."""
        ...

    @property
    def outputs(self) -> tuple[str, ...]:
        """Values that leave."""
        ...


@dataclass(frozen=True, slots=True)
class StageCut:
    """One stage of a partition.

    Attributes:
        index: Its place in the order of execution.
        nodes: Indices into ``Graph.nodes``, ascending.
        inputs: Values that enter: graph inputs and values of earlier stages, in order of first use.
        outputs: Values that leave: read by later stages or returned by the model, in order of making.
        parameters: Parameters its nodes read, in order of first use.
    """

    index: int
    nodes: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Partition:
    """Stages in order of execution.

    Attributes:
        stages: The stages.
        replicated: Storages that more than one stage holds; in training their gradients are summed.
    """

    stages: tuple[StageCut, ...]
    replicated: tuple[str, ...]


def cut_graph(graph: Graph, groups: Sequence[Sequence[int]]) -> Partition:
    """Cut a graph into stages given the node indices of each; O(nodes + edges).

    Raises:
        PartitionError: where the result breaks a law.
    """
    owner = [-1] * len(graph.nodes)
    for stage, group in enumerate(groups):
        for node in group:
            owner[node] = stage
    returned = set(graph.outputs)
    stages = []
    holders: dict[str, set[int]] = {}
    for stage, group in enumerate(groups):
        nodes = tuple(sorted(group))
        inside = {out for i in nodes for out in graph.nodes[i].outputs}
        read = list(dict.fromkeys(name for i in nodes for name in graph.nodes[i].inputs))
        inputs = tuple(n for n in read if n not in inside and n not in graph.parameters)
        parameters = tuple(n for n in read if n in graph.parameters)
        outputs = tuple(
            out
            for i in nodes
            for out in graph.nodes[i].outputs
            if out in returned or any(owner[reader] != stage for reader in graph.consumers.get(out, ()))
        )
        for name in parameters:
            holders.setdefault(graph.parameters[name].storage, set()).add(stage)
        stages.append(StageCut(stage, nodes, inputs, outputs, parameters))
    replicated = tuple(storage for storage, found in holders.items() if len(found) > 1)
    partition = Partition(tuple(stages), replicated)
    verify_partition(graph, partition)
    return partition


def tied_names(graph: Graph, cut: StageCut) -> dict[str, str]:
    """Return the name of the storage of every parameter of a stage that has another name than that one.

    A tied parameter may go by one name in one stage and by a second one in the next; its storage has one name, the one
    that :attr:`Partition.replicated` has.
    """
    storages = {name: graph.parameters[name].storage for name in cut.parameters}
    return {name: storage for name, storage in storages.items() if storage in graph.tied and name != storage}


def _nodes_once(graph: Graph, partition: Partition) -> Iterator[str]:
    seen = [0] * len(graph.nodes)
    for stage in partition.stages:
        for i in stage.nodes:
            seen[i] += 1
    for i, count in enumerate(seen):
        if count != 1:
            yield f"node {graph.nodes[i].name!r} is in {count} stages"


def _no_stage_empty(graph: Graph, partition: Partition) -> Iterator[str]:
    for stage in partition.stages:
        if not stage.nodes:
            yield f"stage {stage.index} has no nodes"


def _values_run_forward(graph: Graph, partition: Partition) -> Iterator[str]:
    made: set[str] = set(graph.inputs)
    for stage in partition.stages:
        for name in stage.inputs:
            if name not in made:
                yield f"stage {stage.index} reads {name!r}, which no earlier stage sends"
        made.update(stage.outputs)


def _order_kept(graph: Graph, partition: Partition) -> Iterator[str]:
    stage_of = {i: stage.index for stage in partition.stages for i in stage.nodes}
    for i, before in enumerate(graph.predecessors):
        for j in before:
            if stage_of.get(j, -1) > stage_of.get(i, -1):
                yield f"node {graph.nodes[i].name!r} has to run after {graph.nodes[j].name!r}, which a later stage runs"


def _outputs_sent(graph: Graph, partition: Partition) -> Iterator[str]:
    sent = {*graph.inputs, *graph.parameters, *(out for stage in partition.stages for out in stage.outputs)}
    for name in graph.outputs:
        if name not in sent:
            yield f"output {name!r} leaves no stage"


def _parameters_held(graph: Graph, partition: Partition) -> Iterator[str]:
    for stage in partition.stages:
        held = set(stage.parameters)
        for i in stage.nodes:
            for name in graph.nodes[i].inputs:
                if name in graph.parameters and name not in held:
                    yield f"node {graph.nodes[i].name!r} reads {name!r}, which stage {stage.index} does not hold"


def _replication_declared(graph: Graph, partition: Partition) -> Iterator[str]:
    declared = set(partition.replicated)
    holder: dict[str, int] = {}
    for stage in partition.stages:
        for name in stage.parameters:
            storage = graph.parameters[name].storage
            first = holder.setdefault(storage, stage.index)
            if first != stage.index and storage not in declared:
                yield f"{name!r} is held by stages {first} and {stage.index} but not declared replicated"


def _only_tensors_cross(graph: Graph, partition: Partition) -> Iterator[str]:
    for stage in partition.stages:
        for name in stage.inputs:
            if name in graph.producer and graph.values[name].dtype == OPAQUE:
                yield f"value {name!r} is no tensor and enters stage {stage.index}"


Law = tuple[str, Callable[[Graph, Partition], Iterator[str]]]

LAWS: tuple[Law, ...] = (
    ("every node is in exactly one stage", _nodes_once),
    ("no stage is empty", _no_stage_empty),
    ("values cross only forward", _values_run_forward),
    ("nodes keep the order that they have to run in", _order_kept),
    ("every output leaves a stage", _outputs_sent),
    ("every stage holds the parameters it reads", _parameters_held),
    ("shared parameters are colocated or declared replicated", _replication_declared),
    ("only tensors cross", _only_tensors_cross),
)


def verify_partition(graph: Graph, partition: Partition) -> None:
    """Check every law.

    Raises:
        PartitionError: naming the first law that is broken, where, and how often.
    """
    for law, faults in LAWS:
        broken = list(faults(graph, partition))
        if broken:
            more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
            raise PartitionError(f"the partition breaks the law {law!r}: {broken[0]}{more}")
