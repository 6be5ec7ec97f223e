"""Choose how many replicas every stage gets: the fewest that carry the throughput at the lowest price per sample.

The numbers are those the search priced the placement with (``cost/evaluate.py``); memory is shown part by part.

Left out: the choice of placement.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from heterps_compile.cluster.devices import Cluster, ParameterServer
from heterps_compile.cost.evaluate import StageDetail
from heterps_compile.cost.memory import stage_memory
from heterps_compile.cost.provisioners import provision
from heterps_compile.cost.server_cost import server_cost
from heterps_compile.errors import InputError
from heterps_compile.plan.plan import ParameterServers, PlannedStage

from .drafts import Annotated, Fused, Provisioned, advance


@dataclass(frozen=True, slots=True)
class Provision:
    """Give every stage its replicas, times, memory and price."""

    name: ClassVar[str] = "provision"

    def __call__(self, draft: Fused) -> Provisioned:
        """Fill in the stages' replicas and estimates."""
        server = _server(draft.cluster) if draft.request.synchronisation == "parameter-server" else None
        price = 0.0 if server is None else server.price_per_hour
        priced = provision(draft.problem, draft.search.placement, draft.request.provisioner, price)
        stages = priced_stages(draft, draft.stages, priced.stages)
        cores = 0 if server is None else server_cost(draft.layers, draft.costs, server).cores(priced.stages)
        servers = ParameterServers(cores, cores * price)
        return advance(draft, Provisioned, stages=stages, parameter_servers=servers)


def priced_stages(
    draft: Annotated, stages: Sequence[PlannedStage], priced: Sequence[StageDetail]
) -> tuple[PlannedStage, ...]:
    """Return stages with the replicas, times, memory and prices that they were priced with."""
    training = draft.request.mode == "training"
    devices = [draft.cluster.device_type(stage.device) for stage in stages]
    return tuple(
        replace(
            stage,
            kind=device.kind,
            replicas=found.replicas,
            compute_s=found.compute_s,
            data_s=found.data_s,
            received_bytes=round(found.received_bytes),
            sent_bytes=round(found.sent_bytes),
            memory=stage_memory(draft.layers, draft.costs, found.first_layer, found.end_layer, training=training),
            price_per_hour=device.price_per_hour * found.replicas,
        )
        for stage, found, device in zip(stages, priced, devices, strict=True)
    )


def _server(cluster: Cluster) -> ParameterServer:
    if cluster.parameter_server is None:
        raise InputError(
            f"the pool {cluster.name!r} has no parameter servers; add a [parameter_server] to it, or leave "
            "--sync parameter-server out"
        )
    return cluster.parameter_server
