"""Choose how many replicas every stage gets: the fewest that carry the throughput at the lowest price per sample.

The numbers are those the search priced the placement with (``cost/evaluate.py``); memory is shown part by part.

Left out: the choice of placement.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from heterps_compile.cost.memory import stage_memory
from heterps_compile.cost.pose import gradient_bytes
from heterps_compile.cost.provisioners import parameter_servers, provision
from heterps_compile.errors import InputError
from heterps_compile.plan.plan import ParameterServers, PlannedStage

from .contract import Draft, refine


@dataclass(frozen=True, slots=True)
class Provision:
    """Give every stage its replicas, times, memory and price."""

    name: ClassVar[str] = "provision"
    requires: ClassVar[tuple[str, ...]] = ("layers", "costs", "problem", "search", "stages")
    ensures: ClassVar[tuple[str, ...]] = ("stages", "parameter_servers")

    def __call__(self, draft: Draft) -> Draft:
        """Fill in the stages' replicas and estimates."""
        assert draft.layers is not None  # noqa: S101 - run_passes has checked them; this tells the type checker
        assert draft.costs is not None  # noqa: S101
        assert draft.problem is not None  # noqa: S101
        assert draft.search is not None  # noqa: S101
        assert draft.stages is not None  # noqa: S101
        server = draft.cluster.parameter_server
        has_servers = draft.request.synchronisation == "parameter-server"
        if has_servers and server is None:
            raise InputError(
                f"the pool {draft.cluster.name!r} has no parameter servers; add a [parameter_server] to it, or leave "
                "--sync parameter-server out"
            )
        price = server.price_per_hour if server is not None and has_servers else 0.0
        priced = provision(draft.problem, draft.search.placement, draft.request.provisioner, price)
        training = draft.request.mode == "training"
        stages = tuple(
            replace(
                stage,
                replicas=found.replicas,
                compute_s=found.compute_s,
                data_s=found.data_s,
                received_bytes=round(found.received_bytes),
                sent_bytes=round(found.sent_bytes),
                memory=stage_memory(draft.layers, draft.costs, found.first_layer, found.end_layer, training=training),
                price_per_hour=draft.cluster.device_type(stage.device).price_per_hour * found.replicas,
            )
            for stage, found in zip(draft.stages, priced.stages, strict=True)
        )
        servers = _parameter_servers(draft, stages) if has_servers else ParameterServers()
        return refine(draft, stages=stages, parameter_servers=servers)


def _parameter_servers(draft: Draft, stages: Sequence[PlannedStage]) -> ParameterServers:
    """Return the servers that carry every replica's parameters in the time of a batch."""
    assert draft.layers is not None  # noqa: S101 - this pass requires them; this tells the type checker
    assert draft.costs is not None  # noqa: S101
    assert draft.cluster.parameter_server is not None  # noqa: S101 - checked before
    layers, costs, server = draft.layers, draft.costs, draft.cluster.parameter_server
    index = {layer.name: i for i, layer in enumerate(layers.layers)}
    pushed = sum(
        stage.replicas * gradient_bytes(layers, index[name], costs[index[name]])
        for stage in stages
        if stage.replicas > 1
        for name in stage.layers
    )
    if pushed == 0:
        return ParameterServers()
    batch_s = max(stage.time_s for stage in stages)
    count = parameter_servers(pushed, 1, server.bytes_per_s, batch_s)
    return ParameterServers(count, count * server.price_per_hour)
