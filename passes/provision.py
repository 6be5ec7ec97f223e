"""Choose how many replicas every stage gets: the fewest that carry the throughput at the lowest price per sample.

The numbers are those the search priced the placement with (``cost/evaluate.py``); memory is shown part by part.

Left out: the choice of placement.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from heterps_compile.cluster.devices import Cluster, ParameterServer
from heterps_compile.cost.evaluate import PlacementDetail, StageDetail, detail
from heterps_compile.cost.memory import stage_memory
from heterps_compile.cost.mixed_units import MixedDetail, MixedPlacement, detail_of
from heterps_compile.cost.own_work import own_work
from heterps_compile.cost.pose import network_of, network_of_types
from heterps_compile.cost.provisioners import provision
from heterps_compile.cost.served_tables import held_by_servers_bytes
from heterps_compile.cost.server_cost import server_cost
from heterps_compile.errors import InputError
from heterps_compile.plan.planned_stage import PlannedStage, TypeReplicas
from heterps_compile.plan.served_tables import ParameterServers, ServedTables

from .drafts import Annotated, Fused, Posed, Provisioned, advance


@dataclass(frozen=True, slots=True)
class Provision:
    """Give every stage its replicas, times, memory and price."""

    name: ClassVar[str] = "provision"

    def __call__(self, draft: Fused) -> Provisioned:
        """Fill in the stages' replicas and estimates."""
        rules = draft.request.sync_rules
        server = _server(draft.cluster, draft.request.synchronisation) if rules.uses_servers else None
        price = 0.0 if server is None else server.price_per_hour
        step, units = draft.search.step, draft.search.mixed_units
        if units:
            return self._of_several_types(draft)
        if step is None:
            priced = provision(draft.problem, draft.search.placement, draft.request.provisioner, price)
        else:  # decided with the placement
            priced = detail(draft.problem, draft.search.placement, np.array(step.units, np.float64))
        stages = priced_stages(draft, draft.stages, priced.stages)
        cores = 0 if server is None else server_cost(draft.layers, draft.costs, server, rules).cores(priced.stages)
        tables = tables_on_servers(draft, priced)
        count, paid = (0, 0.0) if tables is None else (tables.servers, tables.price_per_hour)
        servers = ParameterServers(count + cores, paid + cores * price)
        return advance(draft, Provisioned, stages=stages, parameter_servers=servers, tables=tables)

    def _of_several_types(self, draft: Fused) -> Provisioned:
        """Fill in the stages of a placement whose stages may have several device types."""
        problem, placement = draft.problem, draft.search.placement
        mixed = MixedPlacement(placement.starts(), draft.search.mixed_units)
        totals = np.array([sum(units) for units in mixed.units], np.float64)
        priced, several = detail(problem, placement, totals).stages, detail_of(problem, mixed)
        stages = _priced(draft, draft.stages, priced)
        stages = tuple(_with_types(draft, stage, found) for stage, found in zip(stages, several, strict=True))
        types = [[each.type for each in found.types] for found in several]
        stages = _with_own_work(draft, stages, priced, types)
        return advance(draft, Provisioned, stages=stages, parameter_servers=ParameterServers())


def _with_types(draft: Annotated, stage: PlannedStage, found: MixedDetail) -> PlannedStage:
    """Return a stage with the replicas of its device types."""
    devices = [draft.cluster.device_types[each.type] for each in found.types]
    types = tuple(
        TypeReplicas(
            device.name,
            device.kind,
            each.units,
            each.share,
            each.compute_s,
            each.data_s,
            device.price_per_hour * each.units,
        )
        for device, each in zip(devices, found.types, strict=True)
    )
    network = network_of_types(draft.cluster, [(each.device, each.replicas) for each in types])
    return replace(
        stage,
        compute_s=max(each.compute_s for each in types),
        data_s=max(each.data_s for each in types),
        sync_s=found.sync_s,
        sync_hops_s=network.hops_s(stage.replicas) if found.sync_s > 0 else 0.0,
        price_per_hour=sum(each.price_per_hour for each in types),
        mixed=types if len(types) > 1 else (),
    )


def tables_on_servers(draft: Posed, priced: PlacementDetail) -> ServedTables | None:
    """Return the tables on servers of a placement, as it was priced; None where it has none."""
    served = [(layer.name, cost) for layer, cost in zip(draft.layers.layers, draft.costs, strict=True) if cost.served]
    if not served:
        return None
    names = dict.fromkeys(name for _, cost in served for name in cost.served)
    server = _server(draft.cluster, draft.request.synchronisation)
    optimizer = draft.request.trains_with
    return ServedTables(
        names=tuple(names),
        layers=tuple(layer for layer, _ in served),
        servers=priced.servers,
        size_bytes=held_by_servers_bytes(draft.layers, names, optimizer=optimizer),
        moved_bytes=sum(cost.pulled_bytes for _, cost in served) * (1 if optimizer is None else 2),
        batch_s=priced.servers_s,
        price_per_hour=priced.servers * server.price_per_hour,
    )


def priced_stages(
    draft: Posed, stages: Sequence[PlannedStage], priced: Sequence[StageDetail]
) -> tuple[PlannedStage, ...]:
    """Return stages with the replicas, times, memory and prices that they were priced with."""
    return _with_own_work(draft, _priced(draft, stages, priced), priced, [[found.type] for found in priced])


def _priced(draft: Posed, stages: Sequence[PlannedStage], priced: Sequence[StageDetail]) -> tuple[PlannedStage, ...]:
    """Return stages as they were priced, but for what replicas do by themselves."""
    devices = [draft.cluster.device_type(stage.device) for stage in stages]
    return tuple(
        replace(
            stage,
            kind=device.kind,
            replicas=found.replicas,
            compute_s=found.compute_s,
            data_s=found.data_s,
            sync_s=found.sync_s,
            sync_hops_s=network_of(draft.cluster, device.name).hops_s(found.replicas) if found.sync_s > 0 else 0.0,
            rows=found.rows,
            received_bytes=round(found.received_bytes),
            sent_bytes=round(found.sent_bytes),
            memory=stage_memory(
                draft.layers,
                draft.costs,
                found.first_layer,
                found.end_layer,
                optimizer=draft.request.trains_with,
                recompute=draft.recompute,
            ),
            price_per_hour=device.price_per_hour * found.replicas,
        )
        for stage, found, device in zip(stages, priced, devices, strict=True)
    )


def _with_own_work(
    draft: Posed, stages: Sequence[PlannedStage], priced: Sequence[StageDetail], types: Sequence[Sequence[int]]
) -> tuple[PlannedStage, ...]:
    """Return stages with what replicas do by themselves with an all-reduce: of several types, what takes the longest.

    Args:
        draft: Of the stages; in inference they do nothing.
        stages: As they were priced.
        priced: Their layers.
        types: The numbers of their device types.
    """
    optimizer = draft.request.trains_with
    if optimizer is None:
        return tuple(stages)
    own = own_work(draft.layers, draft.costs, draft.times, optimizer)
    found = []
    for stage, detailed, of in zip(stages, priced, types, strict=True):
        layers = detailed.first_layer, detailed.end_layer
        handling_s, update_s = own.handling_s(layers, of, stage.replicas), own.updates_s(layers, of)
        found.append(replace(stage, handling_s=handling_s, update_s=update_s))
    return tuple(found)


def _server(cluster: Cluster, asked: str) -> ParameterServer:
    if cluster.parameter_server is None:
        raise InputError(
            f"the pool {cluster.name!r} has no parameter servers; add a [parameter_server] to it, or leave "
            f"--sync {asked} out"
        )
    return cluster.parameter_server
