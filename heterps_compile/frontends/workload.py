"""Reads a workload file: the JSON of the device-placement benchmarks, or PipeDream's profile text.

The JSON is what "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020) publishes::

    {"maxFPGAs": k, "maxCPUs": l, "maxSizePerFPGA": bytes,
     "nodes": [{"id", "supportedOnFpga", "cpuLatency", "fpgaLatency", "isBackwardNode", "size"?, "colorClass"?,
                "name"?, "layerId"?}],
     "edges": [{"sourceId", "destId", "cost", "size"?}]}

"FPGA" is any accelerator. All edges out of a node have the cost of moving that node's output. ``layerId`` and the
``size`` of an edge are notes of the authors' own and are not used.

Left out: PipeDream's text (``pipedream.py``), the laws of a workload (``cost/workload.py``).
"""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heterps_compile.conflict_markers import unmerged
from heterps_compile.cost.workload import Workload, WorkloadNode, verify_workload
from heterps_compile.errors import InputError
from heterps_compile.escape import printable
from heterps_compile.plain_file import open_plain, read_plain

from .pipedream import DEFAULT_BANDWIDTH_BYTES_PER_S, parse_pipedream

MAX_FILE_BYTES = 256 * 2**20

_PIPEDREAM_HEAD = re.compile(rb"node[0-9]")

_TOP = {"maxFPGAs": True, "maxCPUs": True, "maxSizePerFPGA": True, "nodes": True, "edges": True, "name": False}
_NODE = {
    "id": True, "supportedOnFpga": True, "cpuLatency": True, "fpgaLatency": True, "isBackwardNode": True,
    "size": False, "colorClass": False, "name": False, "layerId": False,
}  # fmt: skip
_EDGE = {"sourceId": True, "destId": True, "cost": True, "size": False}


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
    text = read_text(path)
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
        workload = _from_json(_parse(text, path), path, accelerators, cpus, memory_bytes)
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


def read_text(path: Path) -> str:
    """Read a file that may be a workload.

    Raises:
        InputError: where it cannot be read, is too large, or is no UTF-8 text.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError(f"workload file {str(path)!r} is over {MAX_FILE_BYTES // 2**20} MiB; no workload is")
        return read_plain(path).decode("utf-8")
    except OSError as e:
        raise InputError(f"cannot read workload file {str(path)!r}: {e.strerror or e}") from e
    except UnicodeDecodeError as e:
        raise InputError(f"workload file {str(path)!r} is no UTF-8 text: {e.reason} at byte {e.start}") from e


def _parse(text: str, path: Path) -> Mapping[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
            raise InputError(f"workload file {str(path)!r} has the key {printable(twice)!r} twice in one object")
        return found

    try:
        document = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as e:
        raise InputError(f"workload file {str(path)!r} is no valid JSON: {e}") from e
    return _object(document, "the document", _TOP, path)


def _object(found: object, where: str, keys: Mapping[str, bool], path: Path) -> Mapping[str, Any]:
    """Check that something is an object with all of the required keys and none but the known ones."""
    if not isinstance(found, dict):
        raise InputError(f"workload file {str(path)!r}: {where} is {_kind(found)}; expected an object")
    for key in found:
        if key not in keys:
            raise InputError(
                f"workload file {str(path)!r}: {where} has the unknown key {printable(key)!r} "
                f"(known: {', '.join(sorted(keys))})"
            )
    for key, is_required in keys.items():
        if is_required and key not in found:
            raise InputError(f"workload file {str(path)!r}: {where} lacks {key!r}")
    return found


def _kind(found: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(found), "a number")


class _Fields:
    """Reads the fields of one object; every fault names the place it is in."""

    def __init__(self, found: Mapping[str, Any], where: str, path: Path) -> None:
        self.found, self.where, self.path = found, where, path

    def _fault(self, key: str, expected: str) -> InputError:
        value = self.found[key]
        shown = _kind(value) if isinstance(value, (dict, list)) else printable(repr(value))[:40]
        return InputError(f"workload file {str(self.path)!r}: {self.where}.{key} is {shown}; expected {expected}")

    def number(self, key: str, default: float | None = None) -> float:
        """Read a finite number, 0 or more."""
        if key not in self.found and default is not None:
            return default
        value = self.found[key]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._fault(key, "a number")
        try:
            number = float(value)
        except OverflowError as e:
            raise self._fault(key, "a finite number") from e
        if not math.isfinite(number) or number < 0:
            raise self._fault(key, "a finite number, 0 or more")
        return number

    def integer(self, key: str) -> int:
        """Read an integer."""
        value = self.found[key]
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._fault(key, "an integer")
        return value

    def flag(self, key: str) -> bool:
        """Read true, false, 1 or 0."""
        value = self.found[key]
        if not isinstance(value, (bool, int)) or value not in (0, 1):
            raise self._fault(key, "true, false, 1 or 0")
        return bool(value)

    def colour(self) -> int | None:
        """Read the colour class, None where there is none."""
        return None if self.found.get("colorClass") is None else self.integer("colorClass")

    def name(self, default: str) -> str:
        """Read the name."""
        value = self.found.get("name", default)
        if not isinstance(value, str):
            raise self._fault("name", "a text")
        return value


def _list(document: Mapping[str, Any], key: str, path: Path) -> list[Any]:
    found = document[key]
    if not isinstance(found, list):
        raise InputError(f"workload file {str(path)!r}: {key} is {_kind(found)}; expected a list")
    return found


def _from_json(
    document: Mapping[str, Any], path: Path, accelerators: int | None, cpus: int | None, memory_bytes: float | None
) -> Workload:
    top = _Fields(document, "the document", path)
    counts = {key: top.integer(key) for key in ("maxFPGAs", "maxCPUs")}
    edges: list[tuple[int, int]] = []
    transfer_ms: dict[int, float] = {}
    for i, found in enumerate(_list(document, "edges", path)):
        edge = _Fields(_object(found, f"edges[{i}]", _EDGE, path), f"edges[{i}]", path)
        source, cost_ms = edge.integer("sourceId"), edge.number("cost")
        edges.append((source, edge.integer("destId")))
        other_ms = transfer_ms.setdefault(source, cost_ms)
        if abs(other_ms - cost_ms) > 1e-6 * max(1.0, cost_ms):
            raise InputError(
                f"workload file {str(path)!r}: edges out of node {source} cost {other_ms} and {cost_ms}; the cost is "
                "that of moving the node's output, so all of them must agree"
            )
    nodes: list[WorkloadNode] = []
    for i, found in enumerate(_list(document, "nodes", path)):
        node = _Fields(_object(found, f"nodes[{i}]", _NODE, path), f"nodes[{i}]", path)
        identity = node.integer("id")
        accelerator_ms = node.number("fpgaLatency")
        nodes.append(
            WorkloadNode(
                id=identity,
                name=node.name(f"node{identity}"),
                accelerator_ms=accelerator_ms if node.flag("supportedOnFpga") else math.inf,
                cpu_ms=node.number("cpuLatency"),
                size_bytes=node.number("size", 0.0),
                transfer_ms=transfer_ms.get(identity, 0.0),
                colour=node.colour(),
                is_backward=node.flag("isBackwardNode"),
            )
        )
    return Workload(
        name=top.name(path.stem),
        nodes=tuple(nodes),
        edges=tuple(edges),
        accelerators=counts["maxFPGAs"] if accelerators is None else accelerators,
        cpus=counts["maxCPUs"] if cpus is None else cpus,
        memory_bytes=top.number("maxSizePerFPGA") if memory_bytes is None else memory_bytes,
    )
