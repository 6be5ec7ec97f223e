"""Which machine every rank of a run is on, so that replicas that share one sum there first.

Ranks whose machines have one name are on one machine. A run that one launcher starts is on one machine.

Left out: how they sum (``runtime/sync/by_machine.py``).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from heterps_compile.runtime.pipeline.gpu_table import NO_GPUS, GpuTable
from heterps_compile.runtime.pipeline.planned_machines import planned_sizes
from heterps_compile.runtime.sync.collective import machines_of, sums_inside_first
from heterps_compile.sync_rules.adasum import Adasum
from heterps_compile.sync_rules.rule_text import rule_text
from heterps_compile.sync_rules.topk import TopK

from .prepare import Prepared


def machines_of_ranks(said: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """Return the machine of every rank, numbered from 0; empty where all are on one.

    Args:
        said: What each rank says of itself, rank by rank, with the name of its ``host``.
    """
    names = [str(said_by.get("host")) for said_by in said]
    machine_of = list(map(list(dict.fromkeys(names)).index, names))
    return tuple(machine_of) if any(machine_of) else ()


def machine_notes(prepared: Prepared, machine_of: Sequence[int], gpus: GpuTable = NO_GPUS) -> Iterator[str]:
    """Say which replicas sum inside machines first, where machines are not those of the plan, what GPUs copy and why.

    Args:
        prepared: The run.
        machine_of: The machine of every rank; empty where all are on one.
        gpus: Of every rank.
    """
    layout, plan = prepared.layout, prepared.plan
    if copies := gpus.host_copies(range(layout.world_size)):
        yield f"  tensors pass through the CPU's memory {copies}"
    if not layout.training:
        return
    for index, rule in enumerate(prepared.sync):
        machines = machines_of(layout.ranks_of(index), machine_of)
        sizes = [len(ranks) for ranks in machines]
        planned = planned_sizes(plan, index, sum(sizes))
        if isinstance(rule, TopK) and sizes == planned and len(sizes) == 1 < sizes[0]:
            yield (
                f"  the {sizes[0]} replicas of stage {index} stand on one machine, as the plan counts: "
                f"{rule_text(rule)} sums whole gradients inside it, and has no other machine to select for"
            )
        if len(machines) == 1:
            continue
        counts = f" (the plan counts with {' + '.join(map(str, planned))} on {len(planned)})"
        stand = (
            f"  the {sum(sizes)} replicas of stage {index} stand on {len(machines)} machines, "
            f"{' + '.join(map(str, sizes))}{'' if sizes == planned else counts}"
        )
        if gpus.connects(layout.ranks_of(index)) and not isinstance(rule, TopK):
            yield f"{stand}: NCCL sums over all of them"
        elif sums_inside_first(machines) and rule.name != Adasum.name:
            yield f"{stand}: {rule_text(rule)} sums inside each of them first"
        elif sizes != planned:
            yield stand
