"""Hashes of what a plan was made from: graph structure, cluster, request.

Left out: weights (a plan does not depend on their values).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from heterps_compile.cluster.devices import Cluster
from heterps_compile.ir.graph import Graph

from .request import Request


def make_hashes(graph: Graph, cluster: Cluster, request: Request) -> dict[str, str]:
    """Give the SHA-256 of each, by the names ``model``, ``cluster`` and ``request``."""
    devices = [{**asdict_plain(device), "peak_flops": dict(device.peak_flops)} for device in cluster.device_types]
    return {
        "model": hash_graph(graph),
        "cluster": _hash_json([cluster.currency, devices]),
        "request": _hash_json(asdict(request)),
    }


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
    """Give a slotted dataclass as a dict, without copying its members."""
    return {name: getattr(device, name) for name in device.__dataclass_fields__}


def _line(*parts: object) -> bytes:
    return (json.dumps(parts, separators=(",", ":"), sort_keys=True) + "\n").encode()


def _hash_json(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=_plain).encode()).hexdigest()


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be hashed into a plan")
