"""By which rules the replicas of stages agree in a problem with given costs.

A stage of a given plan names its rule (``"sync": "topk(density=0.01)"``); without one it all-reduces. Its replicas have
the parameters of its layers as gradients, of 4 bytes an element. Shapes of tensors, which ``powersgd`` needs, are those
of the file (``layers[].shapes``); without them a layer counts as one tensor.

Left out: what servers take that gradients go through, and timed all-reduces of any rule but ``all-reduce``.
"""

from collections.abc import Iterator, Sequence

from heterps_compile.sync_rules.network import Network
from heterps_compile.sync_rules.rule import FlatBuffer, SyncGroup, TensorShape
from heterps_compile.sync_rules.rule_text import rule_text
from heterps_compile.sync_rules.rules import USUAL, faults_of

from .given_plan import GivenPlan, GivenStage
from .given_problem import ELEMENT_BYTES, REPLICA, GivenLayer, GivenProblem
from .message_times import all_reduce_s, network_of_replicas


def gradients_of(
    layers: Sequence[GivenLayer], parameter_bytes: float, replicas: int, network: Network, *, is_divided: bool
) -> SyncGroup:
    """Return what replicas of layers agree on.

    Args:
        layers: The layers.
        parameter_bytes: Of one unit, of all of them.
        replicas: How many.
        network: Between them.
        is_divided: Whether a unit holds other tensors than those of the file: parts of them, or fewer.
    """
    elements = round(parameter_bytes / ELEMENT_BYTES)
    buffers = (FlatBuffer(elements, ELEMENT_BYTES),) if elements else ()
    weighted = [layer for layer in layers if any(each.parameter_bytes for each in layer.times)]
    shapes = [TensorShape(shape, ELEMENT_BYTES) for layer in weighted for shape in layer.shapes]
    is_known = not is_divided and all(layer.shapes for layer in weighted)
    tensors = sum(max(1, len(layer.shapes)) for layer in weighted)
    return SyncGroup(replicas, buffers, buffers, tensors, network, tuple(shapes) if is_known else ())


def group_of(problem: GivenProblem, plan: GivenPlan, stage: GivenStage, held_bytes: Sequence[float]) -> SyncGroup:
    """Return what the replicas of a stage agree on; a unit of each kind has so many bytes of parameters."""
    layers = [problem.layers[index] for index in stage.layers]
    served = set() if plan.served is None else set(plan.served.tables)
    is_divided = any(each.tensor_parallel > 1 for each in stage.replicas) or any(
        table.name in served for layer in layers for table in layer.tables
    )
    network = network_of_replicas(problem, stage.replicas, held_bytes)
    return gradients_of(layers, max(held_bytes), stage.width, network, is_divided=is_divided)


def agree_s(problem: GivenProblem, stage: GivenStage, group: SyncGroup, held_bytes: Sequence[float]) -> float:
    """Return what a step waits for until the replicas of a stage agree.

    Raises:
        PlugInError: where a third party's rule fails.
    """
    if stage.sync == USUAL:
        return all_reduce_s(problem, stage.replicas, held_bytes, group.network)
    with faults_of(type(stage.sync)):
        return stage.sync.exposed(group).time_s


def held_for_rule_bytes(stage: GivenStage, group: SyncGroup) -> int:
    """Return what a replica of a stage holds besides for its rule.

    Raises:
        PlugInError: where a third party's rule fails.
    """
    with faults_of(type(stage.sync)):
        return stage.sync.extra_bytes(group)


def refused_rules(problem: GivenProblem, stages: Sequence[GivenStage]) -> Iterator[str]:
    """Yield which stages cannot have the rule that they are given, whatever they hold."""
    for number, stage in enumerate(stages):
        if stage.sync == USUAL:
            continue
        text = rule_text(stage.sync)
        if not problem.training:
            yield f"stage {number} has the rule {text}, and in inference replicas agree on nothing; leave it out"
        elif problem.batch_of == REPLICA:
            yield (
                f"stage {number} has the rule {text}, and batches of one replica each are summed in rounds; leave it "
                f"out, or say that a batch is of a step (batch_of)"
            )
        elif stage.sync.uses_servers:
            yield f"stage {number} has the rule {text}, and given costs count no servers for gradients; take another"


def refused_group(number: int, stage: GivenStage, group: SyncGroup) -> str:
    """Return why a stage cannot have its rule with what its replicas agree on; "" where it can.

    Raises:
        PlugInError: where a third party's rule fails.
    """
    with faults_of(type(stage.sync)):
        refusal = stage.sync.refusal(group)
    if not refusal:
        return ""
    way_out = "; or give the shapes of its layers (shapes)" if group.agrees and not group.shapes else ""
    return f"stage {number} cannot agree by {rule_text(stage.sync)}: {refusal}{way_out}"
