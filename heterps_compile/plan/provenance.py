"""What a plan was made from, as hashes.

Left out: what made it, as versions (``packages.py``), the hash of the weights (``weights.py``), fingerprints of
single layers (``fingerprint.py``).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from heterps_compile.cluster.devices import (
    SERVER_MEMORY_BYTES,
    SERVER_PER_TABLE_S,
    Cluster,
    DeviceType,
    ParameterServer,
)
from heterps_compile.cost.memory import RECOMPUTATIONS, USUAL_OPTIMIZER
from heterps_compile.cost.precision import FULL
from heterps_compile.ir.graph import Graph
from heterps_compile.sync_rules.rule import EXACTNESSES

from .request import ALONE, USUAL_TABLES, Request
from .weights import hash_weights

if TYPE_CHECKING:  # numpy, which reading a plan does not need
    from heterps_compile.cost.measured import Measurements


def make_hashes(
    graph: Graph, cluster: Cluster, request: Request, measurements: "Measurements | None" = None
) -> dict[str, str]:
    """Return the SHA-256 of each, by the names ``model``, ``weights``, ``cluster``, ``profile`` and ``options``.

    ``weights`` is left out where they have no bytes; ``profile`` is "" where times are
    computed and none were measured.
    """
    weights = hash_weights(graph)
    return {
        "model": hash_graph(graph),
        **({} if weights is None else {"weights": weights}),
        "cluster": hash_cluster(cluster),
        "profile": "" if measurements is None else measurements.sha256,
        "options": _hash_json([_asked(request), graph.batch, dict(graph.bindings)]),
    }


_OF_BEFORE = (
    ("precision", FULL),
    ("optimizer", USUAL_OPTIMIZER),
    ("recompute", RECOMPUTATIONS[0]),
    ("tables", USUAL_TABLES),
    ("mixed_stages", False),
    ("allow", EXACTNESSES[0]),
)


def _asked(request: Request) -> dict[str, Any]:
    """Return what is hashed of a request: plans of before are as these were asked for, in the steady state."""
    values = asdict(request)
    del values["reading"]  # what it comes to is hashed, however that was asked for
    if request.minimises_step:
        values["reading"] = ALONE
    return {name: value for name, value in values.items() if (name, value) not in _OF_BEFORE}


def hash_cluster(cluster: Cluster) -> str:
    """Hash what a pool offers: currency, device types, links, parameter servers; not its name or its description."""
    devices = [_device_facts(device) for device in cluster.device_types]
    links = [asdict(link) for link in cluster.links]
    server = None if cluster.parameter_server is None else _server_facts(cluster.parameter_server)
    return _hash_json([cluster.currency, devices, links, server])


def _server_facts(server: ParameterServer) -> dict[str, Any]:
    """Return what is hashed of a server; what few pools say is left out where it is not said."""
    usual = (("memory_bytes", SERVER_MEMORY_BYTES), ("per_table_s", SERVER_PER_TABLE_S))
    return {name: value for name, value in asdict(server).items() if (name, value) not in usual}


def _device_facts(device: DeviceType) -> dict[str, Any]:
    """Return what is hashed of a device type; what few pools say is left out where it is not said."""
    facts = {**asdict_plain(device), "peak_flops": dict(device.peak_flops)}
    rates = {kind: asdict(rate) for kind, rate in facts.pop("rates").items()}
    for rate in rates.values():
        if rate["inference"] == 1.0:
            del rate["inference"]
    if device.units_per_machine == 1:
        for name in ("units_per_machine", "inner_bytes_per_s", "inner_latency_s"):
            del facts[name]
    if not device.whole_machines:
        del facts["whole_machines"]
    return facts | {"rates": rates} if rates else facts


def hash_graph(graph: Graph) -> str:
    """Hash a graph's structure: nodes, ops, values, shapes, parameters; not its weights, not its symbols' numbers."""
    digest = hashlib.sha256()
    for name in graph.inputs:
        value = graph.values[name]
        digest.update(_line("input", name, value.dtype, value.shape))
    for parameter in graph.parameters.values():
        digest.update(_line("parameter", parameter.name, parameter.dtype, parameter.shape, parameter.kind))
    for node in graph.nodes:
        digest.update(_line("node", node.name, node.op, node.inputs, node.outputs))
    digest.update(_line("outputs", graph.outputs))
    return digest.hexdigest()


def asdict_plain(device: Any) -> dict[str, Any]:
    """Return a slotted dataclass as a dict, without copying its members."""
    return {name: getattr(device, name) for name in device.__dataclass_fields__}


def _line(*parts: object) -> bytes:
    return (json.dumps(parts, separators=(",", ":"), sort_keys=True) + "\n").encode()


def _hash_json(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=_plain).encode()).hexdigest()


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be hashed into a plan")
