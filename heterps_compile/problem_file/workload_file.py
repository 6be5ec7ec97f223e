"""Reads a workload file: the JSON of the device-placement benchmarks, or PipeDream's profile text.

The JSON is what "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020) publishes::

    {"maxFPGAs": k, "maxCPUs": l, "maxSizePerFPGA": bytes,
     "nodes": [{"id", "supportedOnFpga", "cpuLatency", "fpgaLatency", "isBackwardNode", "size"?, "colorClass"?,
                "name"?, "layerId"?}],
     "edges": [{"sourceId", "destId", "cost", "size"?}]}

"FPGA" is any accelerator. All edges out of a node have the cost of moving that node's output. ``layerId`` and the
``size`` of an edge are notes of the authors' own and are not used.

Left out: PipeDream's text (``frontends/pipedream.py``), the laws of a workload (``cost/workload.py``).
"""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from heterps_compile.conflict_markers import unmerged
from heterps_compile.cost.workload import Workload, WorkloadNode, verify_workload
from heterps_compile.errors import InputError
from heterps_compile.escape import printable
from heterps_compile.frontends.pipedream import DEFAULT_BANDWIDTH_BYTES_PER_S, parse_pipedream
from heterps_compile.plain_file import open_plain
from heterps_compile.strict_json import Amount, Part, checked, parsed, read_utf8

_PIPEDREAM_HEAD = re.compile(rb"node[0-9]")
_MOST_RECORDS = 10_000_000

_Flag = Annotated[
    int, BeforeValidator(lambda found: int(found) if isinstance(found, bool) else found), Field(ge=0, le=1)
]


class _Node(Part):
    id: int
    on_accelerator: Annotated[_Flag, Field(alias="supportedOnFpga")]
    cpu_ms: Annotated[Amount, Field(alias="cpuLatency")]
    accelerator_ms: Annotated[Amount, Field(alias="fpgaLatency")]
    is_backward: Annotated[_Flag, Field(alias="isBackwardNode")]
    size_bytes: Annotated[Amount, Field(alias="size")] = 0.0
    colour: Annotated[int | None, Field(alias="colorClass")] = None
    name: str | None = None
    unused_layer: Annotated[object, Field(alias="layerId")] = None


class _Edge(Part):
    source: Annotated[int, Field(alias="sourceId")]
    target: Annotated[int, Field(alias="destId")]
    cost_ms: Annotated[Amount, Field(alias="cost")]
    unused_size: Annotated[object, Field(alias="size")] = None


class _File(Part):
    accelerators: Annotated[int, Field(alias="maxFPGAs")]
    cpus: Annotated[int, Field(alias="maxCPUs")]
    memory_bytes: Annotated[Amount, Field(alias="maxSizePerFPGA")]
    nodes: Annotated[list[_Node], Field(max_length=_MOST_RECORDS)]
    edges: Annotated[list[_Edge], Field(max_length=_MOST_RECORDS)]
    name: str | None = None


def read_workload(
    path: str | Path,
    *,
    accelerators: int | None = None,
    cpus: int | None = None,
    memory_bytes: float | None = None,
    bandwidth_bytes_per_s: float | None = None,
    mode: str | None = None,
) -> Workload:
    """Read a workload; what the file begins with decides which of the two formats it is.

    Args:
        path: A file.
        accelerators: How many there are, in place of the file's number; a PipeDream file needs it.
        cpus: How many there are, in place of the file's number; not for a PipeDream file, which has no times on them.
        memory_bytes: Of an accelerator, in place of the file's number.
        bandwidth_bytes_per_s: Turns the activations of a PipeDream file into times; None for 12 GB/s.
        mode: What a PipeDream file is read as: ``"inference"`` or ``"training"``; None for training.

    Raises:
        InputError: where the file cannot be read, is in neither format, or breaks a law of workloads.
    """
    path = Path(path)
    where = f"workload file {str(path)!r}"
    text = read_utf8(path, where)
    if not text.strip():
        raise InputError(f"workload file {str(path)!r} is empty; expected a JSON object or PipeDream's node lines")
    if conflict := unmerged(text):
        raise InputError(f"workload file {str(path)!r} {conflict}")
    if text.lstrip().startswith("{"):
        for what, value in (("mode", mode), ("bandwidth_bytes_per_s", bandwidth_bytes_per_s)):
            if value is not None:
                raise InputError(
                    f"{what} is for a PipeDream graph; workload file {str(path)!r} is JSON, whose nodes and edges say "
                    f"it themselves"
                )
        workload = _from_json(checked(_File, parsed(text, where), where), where, path.stem)
        workload = replace(
            workload,
            accelerators=workload.accelerators if accelerators is None else accelerators,
            cpus=workload.cpus if cpus is None else cpus,
            memory_bytes=workload.memory_bytes if memory_bytes is None else memory_bytes,
        )
    elif text.lstrip().startswith("node"):
        if cpus:
            raise InputError(
                f"workload file {str(path)!r} is a PipeDream graph, which has no times on CPUs: its {cpus} CPUs would "
                f"stay empty; leave them out"
            )
        workload = parse_pipedream(
            text,
            path,
            accelerators,
            memory_bytes,
            bandwidth_bytes_per_s=DEFAULT_BANDWIDTH_BYTES_PER_S
            if bandwidth_bytes_per_s is None
            else bandwidth_bytes_per_s,
            mode="training" if mode is None else mode,
        )
    else:
        raise InputError(
            f"workload file {str(path)!r} begins with {printable(text.strip()[:20])!r}; expected a JSON object or "
            'PipeDream\'s "nodeN -- description -- forward_compute_time=..." lines'
        )
    verify_workload(workload)
    return workload


def workload_form(path: str | Path) -> str | None:
    """Tell by a file's first characters which form of a workload it may be: ``"json"``, ``"pipedream"``, or none.

    An ONNX file begins with a protobuf tag, never with a brace or a letter.
    """
    try:
        with open_plain(path) as file:
            head = file.read(256).lstrip()
    except OSError:
        return None
    if head.startswith(b"{"):
        return "json"
    return "pipedream" if _PIPEDREAM_HEAD.match(head) else None


def is_workload_file(path: str | Path) -> bool:
    """Tell by a file's first characters whether it may be a workload rather than a model."""
    return workload_form(path) is not None


def _from_json(file: _File, where: str, name: str) -> Workload:
    transfer_ms: dict[int, float] = {}
    for edge in file.edges:
        other_ms = transfer_ms.setdefault(edge.source, edge.cost_ms)
        if abs(other_ms - edge.cost_ms) > 1e-6 * max(1.0, edge.cost_ms):
            raise InputError(
                f"{where}: edges out of node {edge.source} cost {other_ms} and {edge.cost_ms}; the cost is that of "
                "moving the node's output, so all of them must agree"
            )
    return Workload(
        name=file.name or name,
        nodes=tuple(
            WorkloadNode(
                id=node.id,
                name=node.name or f"node{node.id}",
                accelerator_ms=node.accelerator_ms if node.on_accelerator else math.inf,
                cpu_ms=node.cpu_ms,
                size_bytes=node.size_bytes,
                transfer_ms=transfer_ms.get(node.id, 0.0),
                colour=node.colour,
                is_backward=bool(node.is_backward),
            )
            for node in file.nodes
        ),
        edges=tuple((edge.source, edge.target) for edge in file.edges),
        accelerators=file.accelerators,
        cpus=file.cpus,
        memory_bytes=file.memory_bytes,
    )
