"""What a plan was made from, as hashes.

Left out: what made it, as versions (``packages.py``), the hash of the weights (``weights.py``), fingerprints of
single layers (``fingerprint.py``).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from heterps_compile.cluster.devices import Cluster
from heterps_compile.cost.precision import FULL
from heterps_compile.ir.graph import Graph

from .request import Request
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


def _asked(request: Request) -> dict[str, Any]:
    """Return what is hashed of a request: plans of before there were precisions were for float32, and stay fresh."""
    values = asdict(request)
    return {name: value for name, value in values.items() if (name, value) != ("precision", FULL)}


def hash_cluster(cluster: Cluster) -> str:
    """Hash what a pool offers: currency, device types, links, parameter servers; not its name or its description."""
    devices = [{**asdict_plain(device), "peak_flops": dict(device.peak_flops)} for device in cluster.device_types]
    links = [asdict(link) for link in cluster.links]
    server = None if cluster.parameter_server is None else asdict(cluster.parameter_server)
    return _hash_json([cluster.currency, devices, links, server])


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
